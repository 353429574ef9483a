"""Reads the records of a study's runs tolerantly: a damaged record is noted, moved aside and counts as missing.

Nothing here depends on a model: only ``plan.json``, ``record.json``, ``metrics.csv``, ``documents.csv`` and
``outputs.jsonl`` are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lit_transformers.config import ConfigError, nearest
from lit_transformers.records.context_losses import CONTEXT, ContextUse, load_context
from lit_transformers.records.files import CURVES, DOCUMENTS, RECORD
from lit_transformers.records.floors import FLOORS, Floors, load_floors
from lit_transformers.records.plan import Metric, Plan, PlannedRun, load_plan, plan_path
from lit_transformers.records.rate_values import RATES, RateValues, load_rates
from lit_transformers.records.record import Record, VersionError, load_record
from lit_transformers.records.reference import Reference
from lit_transformers.records.reproduction import Reproduction
from lit_transformers.records.schema import first_fault
from lit_transformers.records.study_folder import require_name
from reports.read.brought_in import brought_in_notes
from reports.read.measurements import NOTHING, Array, DocumentLosses, Measurements, read_curves, read_documents
from reports.read.outputs import OUTPUTS, with_outputs, words_of

NOT_FINITE = "is not finite"
FROM_TABLE = "table of results"
"""The design of a study that was read from a table of values."""
MANY_RUNS = 2000
"""The number of runs beyond which a study is large."""
COUNTED = "counted_examples"
"""The measured quantity in records of a table: the number of examples of which the value is the correct share."""


class ReportError(ValueError):
    """Raised where a report cannot be written; its message is one line that names the file and the remedy."""


@dataclass(frozen=True)
class Run:
    """One planned run with its outcome. ``missing`` says why it has no value in a table; None where it has one."""

    arm: str
    seed: int
    key: str
    record: Record | None
    missing: str | None
    value: float = math.nan
    measurements: Measurements = NOTHING

    @property
    def diverged(self) -> bool:
        """Whether it ended with a loss or a value that is infinite or no number: an outcome, unlike a lost run."""
        if self.record is None or self.missing is None:
            return False
        return self.record.diverged or self.missing.endswith(NOT_FINITE)

    @property
    def lacks_measurement(self) -> bool:
        """Whether its record is an old one, which does not describe its measurement."""
        return self.record is not None and self.record.measurement is None

    def curves(self, names: Iterable[str]) -> dict[str, Array]:
        """Returns the run's learning curves of these names, each [points, 2] of tokens seen and value."""
        curves = self.measurements.curves
        return {name: curves[name] for name in names if name in curves}

    def documents(self) -> DocumentLosses | None:
        """Returns the sums per document of the final evaluation, or None where they are missing or damaged."""
        return self.measurements.documents


@dataclass(frozen=True)
class SharedRuns:
    """How many runs of a study also stand in other ``studies``, which are named by their folders."""

    runs: int
    studies: tuple[str, ...]


@dataclass(frozen=True)
class Study:
    """A plan, its runs in the plan's order, notes on every file that could not be used, its floors, and how much of its
    context the baseline uses; None where these were not measured. reproductions: runs that were repeated later.
    withdrawn: the reason why a publication is wrong; empty where it stands. retention: the runs that measure the skills
    of networks before and after the runs of arms, by key, each with its value. stages: the records of the runs that the
    runs of arms start from, by key. rates: the arms at other learning rates; None where these were not measured.
    shared: the runs that also stand in other studies; None where there are none, and where that was not looked up."""

    plan: Plan
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()
    floors: Floors | None = None
    context: ContextUse | None = None
    reproductions: tuple[Reproduction, ...] = ()
    withdrawn: str = ""
    retention: Mapping[str, Run] = field(default_factory=dict)
    stages: Mapping[str, Record] = field(default_factory=dict)
    rates: RateValues | None = None
    shared: SharedRuns | None = None

    def all_runs(self) -> dict[str, Run]:
        """Returns by key the runs of arms, those that measure retention, and those with a record that others start
        from, which have no value."""
        planned = {stage.key: stage for stage in self.plan.stages}
        stages = {key: Run(planned[key].name, planned[key].seed, key, one, None) for key, one in self.stages.items()}
        return {**stages, **{run.key: run for run in self.runs}, **self.retention}

    @property
    def arm_names(self) -> list[str]:
        """The names of all arms of the plan."""
        return [arm.name for arm in self.plan.arms]

    @cached_property
    def _by_arm(self) -> Mapping[str, tuple[Run, ...]]:
        runs: dict[str, list[Run]] = {}
        for run in self.runs:
            runs.setdefault(run.arm, []).append(run)
        return {arm: tuple(own) for arm, own in runs.items()}

    @cached_property
    def _finished_by_arm(self) -> Mapping[str, tuple[Run, ...]]:
        return {arm: tuple(run for run in own if run.missing is None) for arm, own in self._by_arm.items()}

    def of(self, arm: str) -> tuple[Run, ...]:
        return self._by_arm.get(arm, ())

    def finished(self, arm: str) -> tuple[Run, ...]:
        return self._finished_by_arm.get(arm, ())

    def mean_of(self, arm: str) -> float | None:
        """Returns the mean of an arm's finished runs; None where none has finished."""
        values = [run.value for run in self.finished(arm)]
        return float(np.mean(values)) if values else None

    @property
    def knows_configs(self) -> bool:
        """Whether runs say by their configs how they were trained, which those of a table of results do not."""
        return self.plan.design != FROM_TABLE

    @property
    def is_large(self) -> bool:
        """Whether it has more than MANY_RUNS runs: then a page shows each of them in few characters, and figures show a
        part."""
        return len(self.runs) > MANY_RUNS

    @property
    def floor(self) -> Reference | None:
        """The best value of simple predictors; None if it was not measured or there is none."""
        return self.floors.best(self.plan.metric) if self.floors else None

    def gain_over(self, floor: Reference, arm: str = "") -> float | None:
        """Returns by how much the mean of an arm, by default the baseline, is better than a floor, in units of the
        metric; negative where it is worse, and None without a finished run."""
        mean = self.mean_of(arm or self.plan.baseline)
        if mean is None:
            return None
        return floor.value - mean if self.plan.metric.goal == "minimize" else mean - floor.value

    def by(self, metric: Metric) -> Study:
        """Returns the study with the values of another metric of its records, of which no floor and no reference is
        known."""
        arms = tuple(replace(arm, references=()) for arm in self.plan.arms)
        plan = replace(self.plan, metric=metric, also=(), references=(), arms=arms)
        runs = []
        for run in self.runs:
            missing, value, _ = _outcome(run.record or run.missing or "not run", metric)
            runs.append(replace(run, missing=missing, value=value))
        return replace(self, plan=plan, runs=tuple(runs), floors=None, context=None, rates=None)

    def missing(self) -> int:
        """Returns how many runs have no value in a table."""
        return sum(run.missing is not None for run in self.runs)


class RunData(NamedTuple):
    """The data of a run: its ``record``, or a text that says why there is none, and its measurements."""

    record: Record | str
    measurements: Measurements = NOTHING


def load_study(runs: Path, study: str, plan: Plan | None = None) -> Study:
    """Reads the plan of a study, where none is given, and the records, learning curves and documents of its runs.

    Raises ReportError where there is no such study or its plan cannot be read. A damaged record raises nothing: it is
    moved aside to ``record.json.damaged`` and noted. Notes name files by their paths within ``runs``.
    """
    plan = plan or read_plan(runs, study)
    notes: list[str] = []
    floors, context = read_floors(runs, plan, notes), read_context(runs, plan, notes)
    runs_by_key = {key: read_run(runs / key, notes) for key in plan.by_key()}
    others = [key for key in plan.all_keys() if key not in runs_by_key]
    runs_by_key |= {key: RunData(read_record(runs / key / RECORD, notes)) for key in others}
    rates = read_rates(runs, plan, notes)
    whole = assemble(plan, runs_by_key, notes)
    origins = brought_in_notes((run.arm, run.seed, run.record) for run in whole.runs)
    return replace(whole, notes=(*whole.notes, *origins), floors=floors, context=context, rates=rates)


def assemble(plan: Plan, runs_by_key: Mapping[str, RunData], notes: Iterable[str]) -> Study:
    """Builds a study from its plan and from the data of each of its runs, by key."""
    runs = [_run(arm.name, planned, runs_by_key[planned.key], plan.metric) for arm in plan.arms for planned in arm.runs]
    retention = {
        planned.key: _run(arm, planned, runs_by_key[planned.key], one.metric)
        for one in plan.retention
        for arm, pairs in one.arms.items()
        for pair in pairs
        for planned in (pair.before, pair.after)
    }
    records = {stage.key: runs_by_key[stage.key].record for stage in plan.stages if stage.key in runs_by_key}
    stages = {key: record for key, record in records.items() if isinstance(record, Record)}
    return Study(plan, tuple(runs), tuple(notes), retention=retention, stages=stages)


def read_floors(runs: Path, plan: Plan, notes: list[str]) -> Floors | None:
    """Returns the floors next to a plan; None if they were not measured for it or cannot be read, which is noted."""
    try:
        floors = load_floors(runs, plan.folder)
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{plan.folder}/{FLOORS}: damaged ({first_fault(error)}); run the study again to measure them")
        return None
    return floors if floors is not None and floors.are_of(plan) else None


def read_context(runs: Path, plan: Plan, notes: list[str]) -> ContextUse | None:
    """Returns how much of its context a plan's baseline uses; None if that was not measured for a run of the plan or
    cannot be read, which is noted."""
    try:
        context = load_context(runs, plan.folder)
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{plan.folder}/{CONTEXT}: damaged ({first_fault(error)}); remove it and run the study again")
        return None
    return context if context is not None and context.key in plan.by_key() else None


def read_rates(runs: Path, plan: Plan, notes: list[str]) -> RateValues | None:
    """Returns the arms of a plan at other learning rates; None where these were not measured for its runs or cannot be
    read, which is noted."""
    try:
        rates = load_rates(runs, plan.folder)
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{plan.folder}/{RATES}: damaged ({first_fault(error)}); remove it and run the study again")
        return None
    return rates if rates is not None and rates.are_of(plan) else None


def read_run(directory: Path, notes: list[str]) -> RunData:
    """Reads a run from its folder: its record, its learning curves and, where it has finished, its documents."""
    record = read_record(directory / RECORD, notes)
    if isinstance(record, str):
        return RunData(record)
    documents = read_documents(directory / DOCUMENTS, notes) if record.outcome == "finished" else None
    if documents is not None:
        documents = with_outputs(documents, directory / OUTPUTS, record.metrics, notes, words_of(record))
    return RunData(record, Measurements(read_curves(directory / CURVES, notes), documents))


def read_plan(runs: Path, study: str) -> Plan:
    """Reads the plan of a study. Raises ReportError where there is none or it cannot be read."""
    try:
        require_name(study, "study")
    except ConfigError as error:
        raise ReportError(str(error)) from None
    path = plan_path(runs, study)
    if not path.is_file():
        known_names = [plan_file.parent.name for plan_file in (runs / "studies").glob("*/plan.json")]
        raise ReportError(f"{path}: no plan of a study {study!r} has been kept here; {nearest(study, known_names)}")
    remedy = "move it away and run the study again; finished runs are not repeated"
    try:
        return load_plan(path)
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(f"{path}: cannot be read as a plan ({first_fault(error)}); {remedy}") from None


def read_record(path: Path, notes: list[str]) -> Record | str:
    """Returns the record, or why it is missing.

    A damaged file is moved aside and noted; a file of another version is noted and stays where it is.
    """
    short_path = f"{path.parent.name}/{path.name}"
    try:
        return load_record(path)
    except FileNotFoundError:
        return "not run"
    except VersionError as error:
        notes.append(f"{short_path}: {error}; it counts as missing")
        return "made by another version"
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{short_path}: damaged ({first_fault(error)}); {_set_aside(path)}")
        return "its record was damaged"


def _run(arm: str, planned: PlannedRun, run_data: RunData, metric: Metric) -> Run:
    missing, value, record = _outcome(run_data.record, metric)
    return Run(arm, planned.seed, planned.key, record, missing, value, run_data.measurements)


def _outcome(record: Record | str, metric: Metric) -> tuple[str | None, float, Record | None]:
    """Returns why a run has no value in a table (or None), its value (NaN without one), and its record."""
    if isinstance(record, str):
        return record, math.nan, None
    value = record.value(metric.name)
    if record.outcome != "finished":
        reason = f": {' '.join(record.reason.split())}" if record.reason else ""
        return f"{record.outcome}{reason}", math.nan, record
    if value is None:
        return f"no {metric.name} in its record", math.nan, record
    if not math.isfinite(value):
        return f"{metric.name} {NOT_FINITE}", math.nan, record
    return None, value, record


def _set_aside(path: Path) -> str:
    aside = path.with_name(f"{path.name}.damaged")
    try:
        path.replace(aside)
    except OSError as reason:
        return f"it could not be moved aside ({reason.strerror})"
    return f"moved aside to {aside.name}; run the study again to repeat the run"
