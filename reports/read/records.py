"""Reads the records of a study's runs tolerantly: a damaged record is noted, moved aside and counts as missing.

Nothing here depends on a model: only ``plan.json``, ``record.json``, ``metrics.csv``, ``documents.csv`` and
``outputs.jsonl`` are read.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from lit_transformers.config import nearest
from lit_transformers.records.files import CURVES, DOCUMENTS, PLAN, RECORD
from reports.read.measurements import NOTHING, Array, DocumentLosses, Measurements, read_curves, read_documents
from reports.read.outputs import OUTPUTS, with_outputs
from reports.read.plans import Data, Metric, Number, Plan, PlannedRun

VERSION = 1
LONGEST_NAME = 200
"""The largest length of a name in bytes; every file system accepts it, with room for an extension."""


class ReportError(ValueError):
    """Raised where a report cannot be written; its message is one line that names the file and the remedy."""


class Gate(Data):
    """A probe that the run's model passed or failed before training."""

    name: str
    passed: bool
    detail: str = ""


class Record(Data):
    """The record of one run, as ``record.json`` holds it."""

    version: int
    key: str
    outcome: Literal["finished", "pruned", "failed", "invalid"]
    reason: str | None = None
    seed: int
    config: Mapping[str, Any] = Field(default_factory=dict)
    data: Mapping[str, Any] = Field(default_factory=dict)
    metrics: Mapping[str, Number | None] = Field(default_factory=dict)
    protocol: Mapping[str, Any] = Field(default_factory=dict)
    cost: Mapping[str, Number | None] = Field(default_factory=dict)
    environment: Mapping[str, Any] = Field(default_factory=dict)
    measured: Mapping[str, Any] = Field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    observed: Mapping[str, Any] = Field(default_factory=dict)

    def value(self, metric: str) -> float | None:
        """Returns a number by name: a metric of the run or, below ``measured/``, a measured time, rate or memory."""
        name = metric.removeprefix("measured/")
        number = self.metrics.get(metric) if name == metric else self.measured.get(name)
        return float(number) if isinstance(number, int | float) else None


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

    def curves(self, names: Iterable[str]) -> dict[str, Array]:
        """Returns the run's learning curves of these names, each [points, 2] of tokens seen and value."""
        curves = self.measurements.curves
        return {name: curves[name] for name in names if name in curves}

    def documents(self) -> DocumentLosses | None:
        """Returns the sums per document of the final evaluation, or None where they are missing or damaged."""
        return self.measurements.documents


@dataclass(frozen=True)
class Study:
    """A plan, its runs in the plan's order, and notes on every file that could not be used."""

    plan: Plan
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()

    def of(self, arm: str) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.arm == arm)

    def finished(self, arm: str) -> tuple[Run, ...]:
        return tuple(run for run in self.of(arm) if run.missing is None)

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
    return assemble(plan, {key: read_run(runs / key, notes) for key in plan.by_key()}, notes)


def assemble(plan: Plan, runs_by_key: Mapping[str, RunData], notes: Iterable[str]) -> Study:
    """Builds a study from its plan and from the data of each of its runs, by key."""
    runs = [_run(arm.name, planned, runs_by_key[planned.key], plan.metric) for arm in plan.arms for planned in arm.runs]
    return Study(plan, tuple(runs), tuple(notes))


def read_run(directory: Path, notes: list[str]) -> RunData:
    """Reads a run from its folder: its record, its learning curves and, where it has finished, its documents."""
    record = read_record(directory / RECORD, notes)
    if isinstance(record, str):
        return RunData(record)
    documents = read_documents(directory / DOCUMENTS, notes) if record.outcome == "finished" else None
    if documents is not None:
        documents = with_outputs(documents, directory / OUTPUTS, record.metrics, notes)
    return RunData(record, Measurements(read_curves(directory / CURVES), documents))


def read_plan(runs: Path, study: str) -> Plan:
    """Reads the plan of a study. Raises ReportError where there is none or it cannot be read."""
    require_name(study, "study")
    path = runs / "studies" / study / PLAN
    if not path.is_file():
        known_names = [plan_path.parent.name for plan_path in (runs / "studies").glob("*/plan.json")]
        raise ReportError(f"{path}: no plan of a study {study!r} has been kept here; {nearest(study, known_names)}")
    remedy = "move it away and run the study again; finished runs are not repeated"
    try:
        return as_plan(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(f"{path}: cannot be read as a plan ({first_line(error)}); {remedy}") from None


def as_plan(plain: Any) -> Plan:
    """Builds a plan from plain data.

    Raises ValueError where the data are no plan, are of another version, or name an arm that does not exist.
    """
    if isinstance(plain, dict) and plain.get("version") != VERSION:
        raise ReportError(f"made by version {plain.get('version')} of this format, not {VERSION}")
    plan = Plan.model_validate(plain)
    require_name(plan.study, "study")
    for key in plan.by_key():
        require_name(key, "run")
    _check_names(plan)
    return plan


def require_name(name: str, of: str) -> None:
    """Raises ReportError where the name of a study or a run would lead out of its folder or cannot name a file."""
    if name in ("", ".", "..") or re.search(r"[/\\]", name):
        raise ReportError(f"{name!r} is no name of a {of}: it would lead out of its folder; give a plain name")
    if len(name.encode("utf-8", "replace")) > LONGEST_NAME or not name.isprintable():
        raise ReportError(f"{reprlib.repr(name)} is no name of a {of}: no file can be called so; give a plain name")


def read_record(path: Path, notes: list[str]) -> Record | str:
    """Returns the record, or why it is missing.

    A damaged file is moved aside and noted; a file of another version is noted and stays where it is.
    """
    short_path = f"{path.parent.name}/{path.name}"
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(plain, dict) and plain.get("version", VERSION) != VERSION:
            version = reprlib.repr(plain["version"])
            notes.append(f"{short_path}: made by version {version} of this format, not {VERSION}; it counts as missing")
            return "made by another version"
        return Record.model_validate(plain)
    except FileNotFoundError:
        return "not run"
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{short_path}: damaged ({first_line(error)}); {_set_aside(path)}")
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
        return f"{metric.name} is not finite", math.nan, record
    return None, value, record


def _set_aside(path: Path) -> str:
    aside = path.with_name(f"{path.name}.damaged")
    try:
        path.replace(aside)
    except OSError as reason:
        return f"it could not be moved aside ({reason.strerror})"
    return f"moved aside to {aside.name}; run the study again to repeat the run"


def _check_names(plan: Plan) -> None:
    names = [arm.name for arm in plan.arms]
    if len(set(names)) != len(names):
        raise ReportError("two arms have the same name; name every arm once")
    for contrast in plan.contrasts or ():
        if contrast.arm == contrast.against:
            raise ReportError(f"contrast {contrast.name!r} sets an arm against itself; name two arms")
    required = [
        plan.baseline,
        *(name for contrast in plan.contrasts or () for name in (contrast.arm, contrast.against)),
    ]
    for name in required:
        if name not in names:
            raise ReportError(f"there is no arm {name!r}; {nearest(name, names)}")


def first_line(error: Exception) -> str:
    """Returns the message of an error as one line that names no folder of this machine."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(part if part.isprintable() else repr(part) for part in map(str, first["loc"]))
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).splitlines()), type(error).__name__)
