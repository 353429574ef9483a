"""A study of the suite as a job of the kit: ``python -m benchmarks.gpu.study xl_recurrence --runs DIR --json FILE``.

Runs ``python -m ablations run``, forwards SIGTERM to it, and writes the state of the study afterwards: how many runs
are finished, how fast they trained, and the report's findings. Called again, it continues the study.
"""

from __future__ import annotations

import multiprocessing
import runpy
import signal
import statistics
import sys
import time
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import typer

from lit_transformers.config import parse_assignments
from lit_transformers.records.files import PLAN, RECORD, write_json
from lit_transformers.records.plan import load_plan
from lit_transformers.records.record import Record, load_record
from lit_transformers.records.study_folder import folder_name


def standing(study: Path, runs: Path) -> dict[str, Any]:
    """The state of a study's newest plan: how many runs, how many finished, their speed, and its report's findings."""
    keys = [run.key for arm in load_plan(study / PLAN).arms for run in arm.runs]
    records = [load_record(path) for key in keys if (path := runs / key / RECORD).exists()]
    finished = [record for record in records if record.outcome == "finished"]
    report = study / "report" / "report.md"
    lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    return {
        "runs": len(keys),
        "finished": len(finished),
        "failed": sorted({str(record.reason) for record in records if record.outcome in ("failed", "invalid")}),
        "tokens_per_second_of_a_run": median_of(finished, "tokens_per_second"),
        "seconds_of_a_run": median_of(finished, "seconds"),
        "findings": [line.strip("*") for line in lines if line.startswith("**")],
    }


def median_of(records: list[Record], quantity: str) -> float | None:
    """The median of a measured quantity over records; None without records."""
    values = [record.measured[quantity] for record in records]
    return statistics.median(values) if values else None


def ablations(*words: str) -> None:
    """``python -m ablations`` with these words, in this process, which it exits."""
    sys.argv = ["ablations", *words]
    runpy.run_module("ablations", run_name="__main__", alter_sys=True)


def main(
    study: Annotated[str, typer.Argument(help="A study's name.")],
    runs: Annotated[Path, typer.Option(help="Where runs, ledger and reports are.")],
    json_file: Annotated[Path, typer.Option("--json", help="Where the standing is written.")],
    scale: Annotated[str, typer.Option(help="demo, gpu or paper.")] = "gpu",
    workers: Annotated[int, typer.Option(help="Runs at a time, on one device.")] = 4,
    seeds: Annotated[int | None, typer.Option(help="Seeds; the study's own by default.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help="PATH=VALUE, as of ablations run.")] = None,
) -> None:
    """Runs a study until it is done or asked to stop, and writes how it stands."""
    arguments = [study, "--runs", str(runs), "--scale", scale]
    arguments += [word for change in changes or () for word in ("--set", change)]
    arguments += ["--seeds", str(seeds)] if seeds else []
    begun = time.monotonic()
    # Forked: modules that are imported here need not be imported there.
    process = multiprocessing.get_context("fork").Process(
        target=ablations, args=("run", *arguments, "--workers", str(workers))
    )
    process.start()
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    process.join()
    code = process.exitcode
    if code != 0:  # a study that is done has its report
        with redirect_stdout(StringIO()), suppress(SystemExit):
            ablations("report", *arguments)
    folder = runs / "studies" / folder_name(study, scale, parse_assignments(changes or ()))
    result = standing(folder, runs) | {"seconds": time.monotonic() - begun, "workers": workers}
    write_json(json_file, result)
    raise SystemExit(code)


if __name__ == "__main__":
    typer.run(main)
