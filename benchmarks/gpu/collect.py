"""Writes the kit's measurements to one file next to the other results: ``python -m benchmarks.gpu.collect OUT``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gpu.goals import goals
from benchmarks.gpu.job_queue import attempts_in, code_fingerprint, last_attempts
from benchmarks.gpu.session import MACHINE
from benchmarks.hardware import save
from lit_transformers.runs.environment import commit


def collected(folder: Path) -> dict[str, Any]:
    """The machine, the goals, and the last attempt at every job with its result, failed ones included.

    The ``commit`` of an attempt is that of this checkout where the attempt ran the same code, and None otherwise.
    """
    current_commit, fingerprint = commit(), code_fingerprint()
    machine = json.loads((folder / MACHINE).read_text(encoding="utf-8"))
    last = last_attempts(attempts_in(folder))
    attempts = [
        attempt._asdict() | {"commit": current_commit if attempt.code == fingerprint else None}
        for attempt in last.values()
    ]
    reached = [goal._asdict() | {"verdict": goal.verdict} for goal in goals(last, machine)]
    return {"benchmark": "gpu", "machine": machine, "goals": reached, "attempts": attempts}


def main(out: Annotated[Path, typer.Argument(help="The folder that --out of the kit named.")]) -> None:
    """Writes benchmarks/results/NAME.json, named by the device."""
    try:
        result = collected(out)
    except (OSError, ValueError) as error:
        typer.echo(f"error: {out} holds no results of the kit: {error}", err=True)
        raise SystemExit(2) from None
    device = result["machine"]["gpu"]
    if device is None:
        typer.echo(f"error: {out} is of a rehearsal on a CPU, which measures nothing", err=True)
        raise SystemExit(2)
    path = save(re.sub(r"[^a-z0-9]+", "_", device.lower()), result)
    typer.echo(f"{len(result['attempts'])} jobs, written to {path}")
    unmatched = sorted(attempt["name"] for attempt in result["attempts"] if attempt["commit"] is None)
    if unmatched:
        typer.echo(f"run on other code than this checkout's, so without a commit: {', '.join(unmatched)}", err=True)


if __name__ == "__main__":
    typer.run(main)
