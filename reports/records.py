"""What the runs of a study left on disk, read tolerantly: a damaged file is named, moved aside and counts as missing.

Nothing here knows a model: ``plan.json``, ``record.json``, ``metrics.csv`` and ``documents.csv`` are all that is read.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lit_transformers.config import nearest

VERSION = 1

Label = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else json.dumps(value))]
"""The name of a level, a number included, or of anything else that is printed and compared but never computed with."""


class ReportError(ValueError):
    """A report that cannot be written: one line that names the file and the way out."""


class Data(BaseModel):
    """Base of what is read from JSON: frozen, and deaf to fields that a later writer may add."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Record(Data):
    """One run as its ``record.json`` tells it."""

    version: int
    key: str
    outcome: Literal["finished", "pruned", "failed", "invalid"]
    reason: str | None = None
    seed: int
    data: Mapping[str, Any] = Field(default_factory=dict)
    metrics: Mapping[str, float | None] = Field(default_factory=dict)
    protocol: Mapping[str, Any] = Field(default_factory=dict)
    cost: Mapping[str, float | None] = Field(default_factory=dict)
    environment: Mapping[str, Any] = Field(default_factory=dict)
    measured: Mapping[str, Any] = Field(default_factory=dict)

    def value(self, metric: str) -> float | None:
        """A number by name: what the run reports, or, below ``measured/``, what the clock and the machine said."""
        name = metric.removeprefix("measured/")
        return self.metrics.get(metric) if name == metric else self.measured.get(name)


class Source(Data):
    """Whose question the study asks."""

    title: str
    arxiv: str | None = None
    table: str | None = None


class Metric(Data):
    """What is compared. ``compare`` by ratio suits rates that span orders of magnitude, such as tokens per second."""

    name: str
    goal: Literal["minimize", "maximize"] = "minimize"
    label: str = ""
    compare: Literal["difference", "ratio"] = "difference"

    @property
    def title(self) -> str:
        return self.label or self.name


class PlannedRun(Data):
    """One seed of an arm, and the folder its record is in."""

    seed: int
    key: str


class Arm(Data):
    """One way to run the study, with its level of every factor."""

    name: str
    levels: Mapping[str, Label] = Field(default_factory=dict)
    runs: tuple[PlannedRun, ...] = ()


class Contrast(Data):
    """A difference that was asked for: ``arm`` minus ``against``."""

    name: str
    arm: str
    against: str


class Matched(Data):
    """What an arm should have spent of the matched quantity, and what it does."""

    target: float
    reached: float


class Match(Data):
    """What is held equal between arms, and by which field where one was solved for."""

    on: str
    free: str | None = None
    per_arm: Mapping[str, Matched] = Field(default_factory=dict)


class PublishedCell(Data):
    """A number of the source, and the arm or the levels it is about."""

    arm: str | Mapping[str, Label]
    value: float
    note: str = ""


class Protocol(Data):
    """How the source's numbers were measured."""

    text: str


class Claim(Data):
    """What the source says beyond its numbers."""

    text: str


def _texted(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


class Published(Data):
    """What the source reports."""

    protocol: Annotated[Protocol, BeforeValidator(_texted)]
    metric: str
    cells: tuple[PublishedCell, ...] = ()
    claims: tuple[Annotated[Claim, BeforeValidator(_texted)], ...] = ()


class LeftOut(Data):
    """An arm that this scale does not run, and why."""

    arm: str
    reason: str


class Plan(Data):
    """One study as it was planned: its question, arms, runs and what the source has published."""

    version: int
    study: str
    scale: str = ""
    question: str
    source: Source | None = None
    metric: Metric
    design: str = ""
    factors: Mapping[str, tuple[Label, ...]] = Field(default_factory=dict)
    baseline: str
    match: Match | None = None
    arms: tuple[Arm, ...]
    contrasts: tuple[Contrast, ...] | None = None
    published: Published | None = None
    protocol: str = ""
    left_out: tuple[LeftOut, ...] = ()
    commands: Mapping[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class Documents:
    """Sums per document of the final evaluation: ``nats``, ``tokens`` and ``bytes`` of shape [documents]."""

    names: tuple[str, ...]
    nats: NDArray[np.float64]
    tokens: NDArray[np.float64]
    bytes: NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """One planned run and what became of it. ``missing`` says why it has no value in a table; None where it has one."""

    arm: str
    seed: int
    directory: Path
    record: Record | None
    missing: str | None
    value: float = math.nan


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


def load_study(runs: Path, study: str) -> Study:
    """Reads the plan of a study and the records of its runs.

    Raises ReportError: there is no such study, or its plan cannot be read. A damaged record raises nothing: it is moved
    aside to ``record.json.damaged`` and noted.
    """
    plan = read_plan(runs, study)
    notes: list[str] = []
    found: dict[str, Record | str] = {}
    loaded = []
    for arm in plan.arms:
        for planned in arm.runs:
            if planned.key not in found:
                found[planned.key] = read_record(runs / planned.key / "record.json", notes)
            loaded.append(_run(arm.name, planned, runs / planned.key, found[planned.key], plan.metric))
    return Study(plan, tuple(loaded), tuple(notes))


def read_plan(runs: Path, study: str) -> Plan:
    """The plan of a study. Raises ReportError where there is none that can be read."""
    path = runs / "studies" / study / "plan.json"
    if not path.is_file():
        known = [found.parent.name for found in (runs / "studies").glob("*/plan.json")]
        raise ReportError(f"{path}: no plan of a study {study!r} has been kept here; {nearest(study, known)}")
    again = f"move it away and run `python -m ablations run {study}` again; finished runs are not repeated"
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(plain, dict) and plain.get("version") != VERSION:
            raise ReportError(f"{path}: made by version {plain.get('version')} of this format, not {VERSION}; {again}")
        plan = Plan.model_validate(plain)
    except (OSError, ValidationError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ReportError(f"{path}: cannot be read as a plan ({_first_line(error)}); {again}") from None
    _check_names(plan, path)
    return plan


def read_record(path: Path, notes: list[str]) -> Record | str:
    """The record, or why it is missing. A damaged file is moved aside, one of another version stays where it is."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return "not run"
    except (OSError, UnicodeDecodeError) as error:
        return _set_aside(path, error, notes)
    try:
        plain = json.loads(text)
        if isinstance(plain, dict) and plain.get("version", VERSION) != VERSION:
            notes.append(
                f"{path}: made by version {plain['version']} of this format, not {VERSION}; it counts as missing"
            )
            return "made by another version"
        return Record.model_validate(plain)
    except (ValidationError, json.JSONDecodeError) as error:
        return _set_aside(path, error, notes)


def read_documents(path: Path, notes: list[str]) -> Documents | None:
    """Losses per document, in order; None where the file is missing or, with a note, damaged."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [_document(row) for row in csv.DictReader(file)]
        sums = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 3)
        if not np.isfinite(sums).all():
            raise ValueError("a sum is not finite")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        notes.append(f"{path}: cannot be read ({_first_line(error)}); the run's documents are not used")
        return None
    return Documents(tuple(row[0] for row in rows), sums[:, 0], sums[:, 1], sums[:, 2]) if rows else None


def read_curves(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Learning curves by name, each [points, 2] of tokens seen and value, ascending.

    A step logged twice counts once, as written last; a line cut short, such as the last of a killed run, is skipped.
    """
    points: dict[str, dict[float, float]] = {name: {} for name in names}
    try:
        with path.open(encoding="utf-8", newline="", errors="replace") as file:
            for row in csv.DictReader(file):
                _add_point(points, row)
    except (OSError, csv.Error):
        return {}
    return {name: np.array(sorted(curve.items()), dtype=np.float64) for name, curve in points.items() if curve}


def _add_point(points: dict[str, dict[float, float]], row: Mapping[str, str | None]) -> None:
    name, tokens, value = row.get("name"), row.get("tokens"), row.get("value")
    if name not in points or not tokens or not value:
        return
    try:
        x, y = float(tokens), float(value)
    except ValueError:
        return
    if math.isfinite(x) and math.isfinite(y):
        points[name][x] = y


def _document(row: Mapping[str, str]) -> tuple[str, float, float, float]:
    return f"{row['document']} {row['name']}", float(row["nats"]), float(row["tokens"]), float(row["bytes"])


def _run(arm: str, planned: PlannedRun, directory: Path, found: Record | str, metric: Metric) -> Run:
    if isinstance(found, str):
        return Run(arm, planned.seed, directory, None, found)
    if found.outcome != "finished":
        reason = f": {' '.join(found.reason.split())}" if found.reason else ""
        return Run(arm, planned.seed, directory, found, f"{found.outcome}{reason}")
    value = found.value(metric.name)
    if value is None:
        return Run(arm, planned.seed, directory, found, f"no {metric.name} in its record")
    if not math.isfinite(value):
        return Run(arm, planned.seed, directory, found, f"{metric.name} is not finite")
    return Run(arm, planned.seed, directory, found, None, value)


def _set_aside(path: Path, error: Exception, notes: list[str]) -> str:
    aside = path.with_name(f"{path.name}.damaged")
    try:
        path.replace(aside)
        moved = f"moved aside to {aside.name}; run the study again to repeat the run"
    except OSError as reason:
        moved = f"it could not be moved aside ({reason.strerror})"
    notes.append(f"{path}: damaged ({_first_line(error)}); {moved}")
    return "its record was damaged"


def _check_names(plan: Plan, path: Path) -> None:
    names = [arm.name for arm in plan.arms]
    if len(set(names)) != len(names):
        raise ReportError(f"{path}: two arms have the same name; name every arm once")
    for contrast in plan.contrasts or ():
        if contrast.arm == contrast.against:
            raise ReportError(f"{path}: contrast {contrast.name!r} sets an arm against itself; name two arms")
    wanted = [plan.baseline, *(name for contrast in plan.contrasts or () for name in (contrast.arm, contrast.against))]
    for name in wanted:
        if name not in names:
            raise ReportError(f"{path}: there is no arm {name!r}; {nearest(name, names)}")


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    return next(iter(str(error).splitlines()), type(error).__name__)
