"""Measures the floors of a study: before its runs are done, where the floors next to its plan are not of these runs, or
of a publication without floors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ablations.plan import PlannedStudy
from lit_transformers.config import ConfigError, Plain, canonical_hash
from lit_transformers.records.floors import VERSION, Floors, StageFloor, best_of, load_floors
from lit_transformers.records.plan import Plan
from lit_transformers.records.reference import Reference
from lit_transformers.records.schema import first_fault
from lit_transformers.runner import load_runner
from sweeps.process.call import call_forked

if TYPE_CHECKING:
    from reports.read.study import Study

__all__ = ["floors_of_published", "missing_floors"]

Configs = Mapping[str, Mapping[str, Plain]]
"""The configs of runs, as their records hold them, by key."""


def missing_floors(runs: Path, planned: PlannedStudy, todo: int, console: Console) -> Floors | None:
    """Measures the floors of a plan, of each of the data that its arms read and of how much of them they see, and of
    its stages, and prints a line on each; returns None where they are known.

    todo: number of runs that are still to be done; with some, floors that could not be measured are tried again. A
    failed measurement is named by the line and by ``reason``, and keeps no run from being done.
    """
    stored = _stored(runs, planned.folder)
    plan = planned.plan
    if stored is None or stored.version != VERSION or not (stored.are_of(plan) and stored.know_stages(plan)):
        stored = None
    if stored is not None and not todo:
        return None
    readers = _readers(plan, planned.configs, planned.runner)
    if stored is not None and stored.values and stored.keys == [*readers]:
        return None
    floors = _floors(plan, readers, planned.configs, planned.runner, console)
    stages = (_stage_floor(planned, name, key, console) for name, key in plan.first_stages().items())
    return replace(floors, stages=tuple(stages))


def floors_of_published(study: Study, runner: str, console: Console) -> Floors:
    """Measures the floors of a study from its results alone, of each of the data that its arms read, and prints a line
    on each. The scores of simple predictors do not depend on the code that trained the runs, so the age of the runs
    does not matter.

    runner: the name of the runner of the study's runs. Raises ConfigError where the first run of an arm has no result,
    or has read other data than its config stands for on this machine.
    """
    records = {run.key: run.record for run in study.runs if run.record is not None}
    for arm in study.plan.arms:
        if arm.runs[0].key not in records:
            raise ConfigError(f"the first run of {arm.name} has no result, so that its data are not known")
    configs = {key: record.config for key, record in records.items()}
    readers = _readers(study.plan, configs, runner)
    for key in readers:
        if call_forked(runner, data_content, runner, configs[key]) != records[key].data.get("fingerprint"):
            raise ConfigError(f"run {key} has read other data than its config stands for on this machine")
    return _floors(study.plan, readers, configs, runner, console)


def _readers(plan: Plan, configs: Configs, runner: str) -> dict[str, tuple[str, ...]]:
    """Returns the arms that read the same data and see as much of them, by the key of the first run of the first one;
    the baseline's first."""
    loaded = load_runner(runner)
    keys: dict[str, str] = {}
    readers: dict[str, tuple[str, ...]] = {}
    for arm in plan.arms:
        config = configs[arm.runs[0].key]
        seen = loaded.visible_context(loaded.config.from_dict(config))
        key = keys.setdefault(canonical_hash([config.get("data"), seen]), arm.runs[0].key)
        readers[key] = (*readers.get(key, ()), arm.name)
    return readers


def _floors(
    plan: Plan, readers: Mapping[str, tuple[str, ...]], configs: Configs, runner: str, console: Console
) -> Floors:
    """Measures the floors of each of the data that arms read, and prints a line on each."""

    def measured(key: str, arms: tuple[str, ...]) -> Floors:
        start = time.monotonic()
        try:
            with console.status(f"measuring the floors of {plan.study}"):
                values, document = call_forked(runner, measure, runner, configs[key], plan.metric.name)
            floors = Floors(key, values, document=document, version=VERSION)
        except Exception as error:  # no error is a reason not to train
            floors = Floors(key, reason=first_fault(error), version=VERSION)
        best = floors.best(plan.metric)
        text, beyond = f"none: {floors.reason}", floors.best_of_document(plan.metric)
        if best is not None:
            text = f"{best.value:.4g} {plan.metric.title}, by {best.name} ({time.monotonic() - start:.0f} s)"
        if beyond is not None:
            text += f"; {beyond.value:.4g} by {beyond.name}"
        of_arm = "" if arms[0] == plan.baseline else f" of {arms[0]}"
        console.print(f"{plan.study}: best floor{of_arm} {text}", markup=False, highlight=False, soft_wrap=True)
        return floors if arms[0] == plan.baseline else replace(floors, arms=arms)

    first, *others = readers.items()
    floors = measured(*first)
    if not others:
        return floors
    none = replace(floors, arms=(), values=(), document=())
    rest = (measured(*other) if floors.values else replace(none, key=other[0], arms=other[1]) for other in others)
    return replace(floors, arms=first[1], others=tuple(rest))


def _stage_floor(planned: PlannedStudy, name: str, key: str, console: Console) -> StageFloor:
    """Measures the floor of a stage, and prints a line on it. key: of its first run."""
    start = time.monotonic()
    try:
        with console.status(f"measuring the floor of {name}"):
            floor = call_forked(planned.runner, measure_stage, planned.runner, name, key, planned.configs[key])
    except Exception as error:  # no error is a reason not to train
        floor = StageFloor(name, key, reason=first_fault(error))
    text = f"none: {floor.reason}"
    if floor.best is not None:
        text = f"{floor.best.value:.4g} {floor.metric}, by {floor.best.name} ({time.monotonic() - start:.0f} s)"
    line = f"{planned.plan.study}: best floor of {name} {text}"
    console.print(line, markup=False, highlight=False, soft_wrap=True)
    return floor


def measure_stage(runner: str, name: str, key: str, config: Mapping[str, Plain]) -> StageFloor:
    """Returns the floor of a stage, for a process that has imported its runner: of the first metric of its objective
    that simple predictors have."""
    loaded = load_runner(runner)
    parsed = loaded.config.from_dict(config)
    for metric, goal in loaded.learning_metrics(parsed).items():
        try:
            values = loaded.floors(parsed, metric)
        except ValueError:  # simple predictors have no such metric; the next one may be theirs
            continue
        if best := best_of(values, goal):
            return StageFloor(name, key, metric, goal, best)
    return StageFloor(name, key, reason="simple predictors have no metric of its objective")


def measure(
    runner: str, config: Mapping[str, Plain], metric: str
) -> tuple[tuple[Reference, ...], tuple[Reference, ...]]:
    """Returns the floors of a run by its runner, and the values of predictors that see the whole document, for a
    process that has imported it."""
    loaded = load_runner(runner)
    parsed = loaded.config.from_dict(config)
    return tuple(loaded.floors(parsed, metric)), tuple(loaded.document_floors(parsed, metric))


def data_content(runner: str, config: Mapping[str, Plain]) -> str | None:
    """Returns the fingerprint of a run's data by its runner, for a process that has imported it."""
    loaded = load_runner(runner)
    return loaded.data_content(loaded.config.from_dict(config))


def _stored(runs: Path, folder: str) -> Floors | None:
    """Returns the floors next to a plan; None where there are none, or their file cannot be read."""
    try:
        return load_floors(runs, folder)
    except (OSError, ValueError, RecursionError):
        return None
