"""Measures the floors of a study before its runs are done, where those beside its plan are not of these runs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ablations.plan import PlannedStudy
from lit_transformers.config import Plain, canonical_hash
from lit_transformers.records.floors import Floors, load_floors
from lit_transformers.records.plan import Reference
from lit_transformers.records.schema import first_fault
from lit_transformers.runner import load_runner
from sweeps.process.call import call_forked

__all__ = ["missing_floors"]


def missing_floors(runs: Path, planned: PlannedStudy, todo: int, console: Console) -> Floors | None:
    """Measures the floors of a plan, of each of the data that its arms read, and prints a line on each; returns None
    where they are known.

    todo: number of runs that are still to be done; with some, floors that could not be measured are tried again. What
    fails is named by the line and by ``reason``, and keeps no run from being done.
    """
    plan = planned.plan
    readers = _readers(planned)
    stored = _stored(runs, plan.folder)
    if stored is not None and stored.keys == [*readers] and (stored.values or not todo):
        return None
    first, *others = readers.items()
    floors = _measured(planned, *first, console)
    if others:
        rest = (
            _measured(planned, *other, console) if floors.values else Floors(other[0], (), floors.reason, other[1])
            for other in others
        )
        floors = replace(floors, arms=first[1], others=tuple(rest))
    return floors


def _readers(planned: PlannedStudy) -> dict[str, tuple[str, ...]]:
    """Returns the arms that read the same data, by the key of the first run of the first one; the baseline's first."""
    keys: dict[str, str] = {}
    readers: dict[str, tuple[str, ...]] = {}
    for arm in planned.plan.arms:
        key = keys.setdefault(canonical_hash(planned.configs[arm.runs[0].key].get("data")), arm.runs[0].key)
        readers[key] = (*readers.get(key, ()), arm.name)
    return readers


def _measured(planned: PlannedStudy, key: str, arms: tuple[str, ...], console: Console) -> Floors:
    """Measures the floors of the data that arms read, and prints a line on the best one."""
    plan, start = planned.plan, time.monotonic()
    try:
        with console.status(f"floors of {planned.study}: what simple predictors reach"):
            values = call_forked(planned.runner, measure, planned.runner, planned.configs[key], planned.metric)
        floors = Floors(key, values)
    except Exception as error:  # whatever it is, it is no reason not to train
        floors = Floors(key, reason=first_fault(error))
    best = floors.best(plan.metric)
    text = f"none: {floors.reason}"
    if best is not None:
        text = f"{best.value:.4g} {plan.metric.title}, by {best.name} ({time.monotonic() - start:.0f} s)"
    of_arm = "" if arms[0] == plan.baseline else f" of {arms[0]}"
    console.print(f"{planned.study}: best floor{of_arm} {text}", markup=False, highlight=False, soft_wrap=True)
    return floors if arms[0] == plan.baseline else replace(floors, arms=arms)


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
