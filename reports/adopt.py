"""Writes runs that were done elsewhere, as a tracker keeps them, to the folders where a study looks for its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lit_transformers.records.files import RECORD
from lit_transformers.records.plan import Plan, PlannedArm
from lit_transformers.records.record import NOT_A_NUMBER, VERSION, Record, write_record
from reports.read.brought_in import BROUGHT_IN
from reports.read.study import ReportError
from reports.read.trackers.factors import listed
from reports.read.trackers.selection import SelectedRun, TrackerQuestion, select_runs
from reports.read.trackers.tracked_rows import picked
from reports.read.trackers.tracked_run import TrackedRun

__all__ = ["AdoptQuestion", "Adopted", "adopt"]


@dataclass(frozen=True)
class AdoptQuestion:
    """Which runs of a store become records. metric: its name there, which is that of the study in the records. arm,
    seed: the config keys that tell arms and seeds. match: the level there of arms of the study, by their names."""

    metric: str
    arm: tuple[str, ...] = ()
    seed: str | None = None
    match: Mapping[str, str] = field(default_factory=dict)
    of_tracker: TrackerQuestion = field(default_factory=TrackerQuestion)


class Adopted(NamedTuple):
    """The number of records written, of runs whose record was there already, and a sentence on each other choice."""

    written: int
    present: int
    notes: tuple[str, ...]


def adopt(source: str, plan: Plan, runs: Path, question: AdoptQuestion) -> Adopted:
    """Writes a record, marked as brought in and with the config as it was, for each run of a store that is a run of the
    plan by its arm and seed. What is there already is left as it is; runs that did not finish are not written.

    Raises ReportError, in one line, where the store cannot be read, and where no run is of an arm of the plan.
    """
    selection = select_runs(source, question.metric, question.of_tracker, question.arm, question.seed)
    arms = {level: arm for arm in plan.arms for level in _levels(arm, question.match)}
    levels = dict.fromkeys(" ".join(one.levels) for one in selection.runs)
    known = [level for level in levels if level in arms]
    if not known:
        raise ReportError(
            f"{source}: its arms are {listed(list(levels))}, and those of the study "
            f"{listed([arm.name for arm in plan.arms])}; say which are the same: --match ARM=LEVEL"
        )
    written = present = 0
    unplanned, unfinished = [], []
    for one in selection.runs:
        arm = arms.get(" ".join(one.levels))
        key = next((run.key for run in arm.runs if str(run.seed) == one.seed), None) if arm else None
        if key is None:
            unplanned.append(one.run.name)
        elif not one.run.points or not (one.run.has_finished or one.run.has_diverged):
            unfinished.append(one.run.name)
        elif (runs / key / RECORD).exists():
            present += 1
        else:
            _write(runs / key, key, one, source, plan, question)
            written += 1
    notes = [
        *selection.notes,
        *([f"not runs of this study, by arm or seed: {listed(unplanned)}"] if unplanned else []),
        *([f"not finished, and to be done here: {listed(unfinished)}"] if unfinished else []),
    ]
    return Adopted(written, present, tuple(notes))


def _levels(arm: PlannedArm, match: Mapping[str, str]) -> list[str]:
    """Returns the names by which the arms of a store are an arm of the plan."""
    if arm.name in match:
        return [match[arm.name]]
    return [arm.name, " ".join(str(level) for level in arm.levels.values())]


def _write(directory: Path, key: str, one: SelectedRun, source: str, plan: Plan, question: AdoptQuestion) -> None:
    run, metric = one.run, plan.metric.name
    value = None if run.has_diverged else _value(run, plan, question)
    directory.mkdir(parents=True, exist_ok=True)
    record = Record(
        version=VERSION,
        key=key,
        outcome="failed" if run.has_diverged else "finished",
        reason=f"{NOT_A_NUMBER}: {question.metric}" if run.has_diverged else None,
        seed=int(one.seed),
        config=dict(run.config),
        metrics={metric: value},
        # Times of another machine are not compared with those of runs that are done here.
        environment={BROUGHT_IN: {"source": source, "run": run.name, "seconds": run.seconds}},
    )
    write_record(directory, record)


def _value(run: TrackedRun, plan: Plan, question: AdoptQuestion) -> float:
    return picked(run, question.metric, question.of_tracker.pick, plan.metric.goal)[1]
