"""The cost of a report: ``python -m benchmarks.reporting [--runs 1000] [--documents 1000] [--json NAME]``.

Writes the records, learning curves and documents of a synthetic study, and makes its report with ``python -m ablations
report`` in a separate process. Goals: at most 20 s and 2 GB for 1,000 runs with 1,000 documents each.
"""

from __future__ import annotations

import csv
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.hardware import JSON_HELP, describe, save
from lit_transformers.records.files import CURVES, DOCUMENTS
from lit_transformers.records.plan import Metric, Plan, PlannedArm, PlannedRun, write_plan
from lit_transformers.records.record import VERSION, Gate, Record, write_record

STUDY = "xl_recurrence"
SECONDS, BYTES = 20.0, 2e9


def write_study(runs: Path, arms: int, seeds: int, documents: int, points: int = 100) -> None:
    """Writes a synthetic study with these numbers of arms, seeds, documents a run and points of a learning curve."""
    generator = np.random.default_rng(0)
    sizes = generator.lognormal(7, 1, documents).astype(int) + 1
    hardness = generator.normal(0, 0.2, documents)
    planned_arms = tuple(
        PlannedArm(f"arm {arm}", runs=tuple(PlannedRun(seed, f"{arm:04d}{seed:04d}") for seed in range(seeds)))
        for arm in range(arms)
    )
    write_plan(runs, _plan(planned_arms))
    for arm, planned in enumerate(planned_arms):
        for run in planned.runs:
            bits = 2.5 + 0.01 * arm + hardness + generator.normal(0, 0.01) + generator.normal(0, 0.05, documents)
            _write_run(runs / run.key, run, sizes, bits * sizes * math.log(2), points)


def _plan(arms: tuple[PlannedArm, ...]) -> Plan:
    return Plan(
        study=STUDY,
        scale="demo",
        question="How long does a report take?",
        metric=Metric("val/bpb", goal="minimize", label="bits per byte"),
        design="arms",
        baseline=arms[0].name,
        arms=arms,
        protocol="no corpus",
    )


def _write_run(directory: Path, run: PlannedRun, sizes: Any, nats: Any, points: int) -> None:
    bpb = float(nats.sum() / sizes.sum() / math.log(2))
    record = Record(
        version=VERSION,
        key=run.key,
        outcome="finished",
        seed=run.seed,
        config={"model": {"dim": 64, "depth": 2, "heads": 4}, "training": {"steps": 1400}, "seed": run.seed},
        data={"name": "none", "fingerprint": "0"},
        metrics={"val/bpb": bpb, "val/nats": bpb * math.log(2)},
        protocol={"segment_length": 32},
        cost={"parameters": 120_000, "flops_per_token": 7.2e5, "tokens": 1_500_000, "state_bytes": 24_576},
        gates=(Gate("no future", True, "largest change 0"),),
        environment={"torch": "2.13.0", "hardware": "2 cores"},
        measured={"seconds": 50.0, "tokens_per_second": 30_000.0},
    )
    write_record(directory, record)
    curve = [(s * 10, s * 10_240, n, 5 / s + bpb) for s in range(1, points + 1) for n in ("train/loss", "train/nats")]
    _write_rows(directory / CURVES, ("step", "tokens", "name", "value"), curve)
    lines = [
        (i, f"module{i}.py", repr(float(n)), int(b), int(b)) for i, (n, b) in enumerate(zip(nats, sizes, strict=True))
    ]
    _write_rows(directory / DOCUMENTS, ("document", "name", "nats", "tokens", "bytes"), lines)


def _write_rows(path: Path, header: tuple[str, ...], lines: list[Any]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(header)
        rows.writerows(lines)


PEAK = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs a command in a process that is small itself: the peak of a process includes that of the one that starts it."""


def measure(runs: Path) -> tuple[float, int]:
    """Seconds and peak memory in bytes of a report's process. Raises SystemExit where it fails."""
    started = time.monotonic()
    command = [sys.executable, "-m", "ablations", "report", STUDY, "--runs", str(runs)]
    process = subprocess.Popen([sys.executable, "-S", "-c", PEAK, *command], stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the report ended with status {process.returncode}")
    return time.monotonic() - started, int(output) * 1024


def main(
    runs: Annotated[int, typer.Option(min=2, help="How many runs.")] = 1000,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds an arm.")] = 25,
    documents: Annotated[int, typer.Option(min=1, help="Documents a run.")] = 1000,
    json: Annotated[str | None, typer.Option(help=JSON_HELP)] = None,
) -> None:
    """Times the report of a study that was never run."""
    with tempfile.TemporaryDirectory() as folder:
        write_study(Path(folder), runs // seeds, seeds, documents)
        seconds, peak = measure(Path(folder))
        size = (Path(folder) / "studies" / STUDY / "report" / "results.jsonl").stat().st_size
    print(
        f"{runs} runs of {documents} documents: {seconds:.1f} s, {peak / 1e9:.2f} GB; results.jsonl {size / 1e6:.1f} MB"
    )
    print(
        f"goals: {SECONDS:.0f} s, {BYTES / 1e9:.0f} GB, {'met' if seconds <= SECONDS and peak <= BYTES else 'missed'}"
    )
    if json:
        results = {"runs": runs, "documents": documents, "seconds": seconds, "peak_bytes": peak, "results_bytes": size}
        save(json, {"about": describe(("numpy", "pydantic", "matplotlib")), **results})


if __name__ == "__main__":
    typer.run(main)
