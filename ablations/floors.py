"""Measures the floors of a study when its runs are done, and keeps them beside its plan."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from ablations.plan import PlannedStudy
from lit_transformers.config import Plain
from lit_transformers.records.floors import Floors, load_floors, write_floors
from lit_transformers.records.plan import Reference
from lit_transformers.records.schema import first_fault
from lit_transformers.runner import load_runner
from sweeps.process.call import call_forked

__all__ = ["keep_floors"]


def keep_floors(runs: Path, planned: PlannedStudy, todo: int, console: Console) -> None:
    """Measures the floors of a plan, prints a line on them, and writes them; the file stays where it is of these runs.

    todo: number of runs that are still to be done; with some, floors that could not be measured are tried again. A
    fault is a line of its own, which names it, and runs need no floors.
    """
    plan = planned.plan
    baseline = next(arm for arm in plan.arms if arm.name == plan.baseline)
    key = baseline.runs[0].key
    stored = _stored(runs, plan.folder)
    if stored is not None and stored.key == key and (stored.values or not todo):
        return
    start = time.monotonic()
    try:
        with console.status(f"floors of {planned.study}: what simple predictors reach"):
            values = call_forked(planned.runner, measure, planned.runner, planned.configs[key], planned.metric)
        floors = Floors(key, values)
    except Exception as error:  # whatever it is, it is no reason not to train
        floors = Floors(key, reason=first_fault(error))
    write_floors(runs, plan.folder, floors)
    best = floors.best(plan.metric)
    text = f"none: {floors.reason}"
    if best is not None:
        text = f"{best.value:.4g} {plan.metric.title}, by {best.name} ({time.monotonic() - start:.0f} s)"
    console.print(f"{planned.study}: best floor {text}", markup=False, highlight=False, soft_wrap=True)


def measure(runner: str, config: dict[str, Plain], metric: str) -> tuple[Reference, ...]:
    """Returns the floors of a run by its runner, for a process that has imported it."""
    loaded = load_runner(runner)
    return tuple(loaded.floors(loaded.config.from_dict(config), metric))


def _stored(runs: Path, folder: str) -> Floors | None:
    """Returns the floors beside a plan; None where there are none, or a file that cannot be read."""
    try:
        return load_floors(runs, folder)
    except (OSError, ValueError, RecursionError):
        return None
