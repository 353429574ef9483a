"""Writes runs that were done elsewhere, as a tracker keeps them, to the folders where a study looks for its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lit_transformers.records.files import CURVES, RECORD
from lit_transformers.records.plan import Plan, PlannedArm
from lit_transformers.records.record import NOT_A_NUMBER, VERSION, Record, write_record
from reports.read.brought_in import BROUGHT_IN, RunOrigin, origin_of
from reports.read.measurements import write_curves
from reports.read.study import ReportError, read_record
from reports.read.trackers.factors import listed
from reports.read.trackers.selection import SelectedRun, TrackerQuestion, select_runs
from reports.read.trackers.tracked_rows import picked
from reports.read.trackers.tracked_run import TrackedRun

__all__ = ["AdoptQuestion", "Adopted", "adopt"]


@dataclass(frozen=True)
class AdoptQuestion:
    """Which runs of a store become records. metric: its name there, which is that of the study in the records. arm,
    seed: the config keys that tell arms and seeds. match: the level there of arms of the study, by their names.
    missing: whether runs that were done here, or brought in from elsewhere, stay as they are and are no error."""

    metric: str
    arm: tuple[str, ...] = ()
    seed: str | None = None
    match: Mapping[str, str] = field(default_factory=dict)
    missing: bool = False
    of_tracker: TrackerQuestion = field(default_factory=TrackerQuestion)


class Adopted(NamedTuple):
    """The number of records written, of runs that were brought in before, and a sentence on each other choice."""

    written: int
    present: int
    notes: tuple[str, ...]


def adopt(source: str, plan: Plan, runs: Path, question: AdoptQuestion) -> Adopted:
    """Writes a record, marked as brought in and with the config as it was, for each run of a store that is a run of the
    plan by its arm and seed, with its curve and its time where the store keeps them. A run that was brought in before
    is left as it is; runs that did not finish are not written.

    Raises ReportError, in one line and with nothing written, where the store cannot be read, where no run is of an arm
    of the plan, and where a run of the plan was done here, or was brought in from another one.
    """
    if plan.metric.name.startswith("measured/"):
        raise ReportError(f"{plan.metric.name} is measured on the machine of a run; do all runs of the study here")
    of_tracker = replace(question.of_tracker, curves=True)
    selection = select_runs(source, question.metric, of_tracker, question.arm, question.seed)
    arms = {level: arm for arm in plan.arms for level in _levels(arm, question.match)}
    levels = dict.fromkeys(" ".join(one.levels) for one in selection.runs)
    known = [level for level in levels if level in arms]
    if not known:
        raise ReportError(
            f"{source}: its arms are {listed(list(levels))}, and those of the study "
            f"{listed([arm.name for arm in plan.arms])}; say which are the same: --match ARM=LEVEL"
        )
    new: dict[str, SelectedRun] = {}
    unplanned, unfinished, done = list[str](), list[str](), list[str]()
    present, damaged = 0, list[str]()
    for one in selection.runs:
        arm = arms.get(" ".join(one.levels))
        key = next((run.key for run in arm.runs if str(run.seed) == one.seed), None) if arm else None
        if arm is None or key is None:
            unplanned.append(one.run.name)
        elif not one.run.points or not (one.run.has_finished or one.run.has_diverged):
            unfinished.append(one.run.name)
        elif isinstance(record := read_record(runs / key / RECORD, damaged), str):
            new[key] = one
        elif origin_of(record) == RunOrigin(source, one.run.name):
            present += 1
        else:
            done.append(f"{plan.labels.alone(arm.name)} with seed {one.seed} {_where_done(record)}")
    if done and not question.missing:
        raise ReportError(
            f"{source}: {listed(done)}; nothing is adopted. Leave these runs as they are by --missing, or move their "
            f"folders out of {runs}"
        )
    for key, one in new.items():
        _write(runs / key, key, one, source, plan, question)
    notes = [
        *selection.notes,
        *damaged,
        *([f"not runs of this study, by arm or seed: {listed(unplanned)}"] if unplanned else []),
        *([f"left as they are: {listed(done)}"] if done else []),
        *([f"not finished, and to be done here: {listed(unfinished)}"] if unfinished else []),
    ]
    return Adopted(len(new), present, tuple(notes))


def _where_done(record: Record) -> str:
    """Returns in words where the run of a record was done."""
    origin = origin_of(record)
    return f"was done here ({record.key})" if origin is None else f"is {origin.run} of {origin.source} already"


def _levels(arm: PlannedArm, match: Mapping[str, str]) -> list[str]:
    """Returns the names by which the arms of a store are an arm of the plan."""
    if arm.name in match:
        return [match[arm.name]]
    return [arm.name, " ".join(str(level) for level in arm.levels.values())]


def _write(directory: Path, key: str, one: SelectedRun, source: str, plan: Plan, question: AdoptQuestion) -> None:
    run, metric = one.run, plan.metric.name
    value = None if run.has_diverged else _value(run, plan, question)
    directory.mkdir(parents=True, exist_ok=True)
    points = np.array(sorted(dict(run.points).items()))
    write_curves(directory / CURVES, {metric: points} if len(points) > 1 else {})
    record = Record(
        version=VERSION,
        key=key,
        outcome="failed" if run.has_diverged else "finished",
        reason=f"{NOT_A_NUMBER}: {question.metric}" if run.has_diverged else None,
        seed=int(one.seed),
        config=dict(run.config),
        metrics={metric: value},
        environment={BROUGHT_IN: {"source": source, "run": run.name}},
        measured={} if run.seconds is None else {"seconds": run.seconds},
    )
    write_record(directory, record)


def _value(run: TrackedRun, plan: Plan, question: AdoptQuestion) -> float:
    return picked(run, question.metric, question.of_tracker.pick, plan.metric.goal)[1]
