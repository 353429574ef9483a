"""The seam of all trackers: a run as they keep it, the address of a store of runs, and the reader of a tracker."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from lit_transformers.plain_yaml import read_yaml
from lit_transformers.records.measure import Goal
from reports.read.study import ReportError
from reports.read.table_rows import Cell

__all__ = [
    "CUT_OFF",
    "FINISHED",
    "RunsAddress",
    "TrackedRun",
    "TrackerReader",
    "config_of_yaml",
    "flat",
    "is_database",
    "library",
    "of_folder",
    "value_of",
]

FINISHED = "finished"
CUT_OFF = "cut off"
"""The status of a run whose file ends within a line."""
_SQLITE = "sqlite:///"
_SQLITE_START = b"SQLite format 3\0"
_DATABASES = (".db", ".sqlite", ".sqlite3")
_SEEDED = re.compile(r"(?P<name>.*?)[-_.]?(?:seed|(?<![a-z])s)[-_=]?(?P<seed>\d+)", re.IGNORECASE)
_CHOSEN_BY_TRACKERS = re.compile(
    r"version_\d+|\d+|checkpoint-\d+|runs|lightning_logs|[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_.*|\d{4}-\d\d-\d\d.*"
)
"""Names of folders that trackers choose: they say nothing about the run."""


@dataclass(frozen=True)
class TrackedRun:
    """A run of a tracker.

    config: by dotted key. labels: names that the tracker keeps next to the config, such as its group or its folder.
    status: how it ended, None where the tracker does not keep it. metrics: the names that it logged. points: the steps
    and values of the metric that is judged, in any order. seconds: how long it ran. goal: the better direction of the
    metric where the tracker knows it.
    """

    name: str
    config: Mapping[str, Cell]
    labels: Mapping[str, str] = field(default_factory=dict)
    status: str | None = None
    metrics: frozenset[str] = frozenset()
    points: tuple[tuple[float, float], ...] = ()
    seconds: float | None = None
    goal: Goal | None = None

    @property
    def has_finished(self) -> bool:
        """Whether it ended by itself, as far as the tracker knows."""
        return self.status in (None, FINISHED)

    @property
    def has_diverged(self) -> bool:
        """Whether a value of the metric is not finite."""
        return any(not math.isfinite(value) for _, value in self.points)


@dataclass(frozen=True)
class RunsAddress:
    """Where runs are kept: a folder, a file, or a name such as ``wandb:entity/project`` or ``sqlite:///runs.db``.

    values: the file in the folder of each run that holds its values, for trackers that keep none themselves. curves:
    whether the values of all steps are needed, where reading them costs a request for each run.
    """

    text: str
    values: str | None = None
    curves: bool = False

    @property
    def path(self) -> Path:
        """The folder or file."""
        return Path(self.text.removeprefix(_SQLITE))

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """All files below the folder, in the order of their names, or the file itself."""
        if self.path.is_file():
            return (self.path,)
        below = (Path(folder, name) for folder, _, names in os.walk(self.path) for name in names)
        return tuple(sorted(below))

    def named(self, name: str) -> list[Path]:
        """Returns the files of a name or of a pattern of names."""
        return [file for file in self.files if file.match(name)]

    def folder_of(self, file: Path) -> str:
        """Returns the folder of a file within this one, "" where they are the same."""
        return "" if self.path.is_file() else file.parent.relative_to(self.path).as_posix().removeprefix(".")

    def databases(self, *tables: str) -> list[Path]:
        """Returns the files that are SQLite databases with all of the tables. Raises ReportError for a damaged one."""
        files = [file for file in self.files if file.suffix in _DATABASES or file == self.path]
        return [file for file in files if is_database(file) and set(tables) <= _tables(file)]


class TrackerReader(NamedTuple):
    """The reader of a tracker.

    kind: its name for ``--from``. title: its name in sentences. recognises: whether an address is a store of it. runs:
    yields the runs of an address, with the points of a metric.
    """

    kind: str
    title: str
    recognises: Callable[[RunsAddress], bool]
    runs: Callable[[RunsAddress, str], Iterable[TrackedRun]]


def is_database(path: Path) -> bool:
    """Whether a file begins as databases of SQLite do."""
    with path.open("rb") as file:
        return file.read(len(_SQLITE_START)) == _SQLITE_START


def _tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        try:
            return {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        except sqlite3.Error as error:
            raise ReportError(f"{path}: is a damaged database ({error}); copy it again") from None


def library(module: str, package: str, tracker: str) -> ModuleType:
    """Imports a module of a tracker's library. Raises ReportError with the package to install where it is missing."""
    try:
        return import_module(module)
    except ImportError:
        raise ReportError(
            f"runs of {tracker} are read by a package that is not installed; install it: pip install {package}"
        ) from None


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Cell]:
    """Returns a config by dotted key. Values that are no text, number or truth value are written as JSON."""
    cells: dict[str, Cell] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            cells |= flat(value, f"{name}.")
        elif value is None or isinstance(value, str | int | float | bool):
            cells[name] = value
        else:
            cells[name] = json.dumps(value, default=str)
    return cells


def value_of(cell: object) -> float | None:
    """Returns a number, or NaN for the texts by which JSON writes one that is not finite; None for anything else."""
    if isinstance(cell, str) and cell.strip().casefold().lstrip("+-") in ("nan", "inf", "infinity"):
        return math.nan
    return float(cell) if isinstance(cell, int | float) and not isinstance(cell, bool) else None


def config_of_yaml(path: Path) -> dict[str, Cell]:
    """Returns the config in a YAML file, an empty one where there is no file. Objects of Python are read as text.

    Raises ReportError for a file that is no YAML.
    """
    if not path.is_file():
        return {}
    try:
        config = read_yaml(path.read_text(encoding="utf-8"), is_foreign=True)
    except ValueError as error:
        raise ReportError(f"{path}: is no YAML ({' '.join(str(error).split())[:100]})") from None
    return flat(config) if isinstance(config, dict) else {}


def of_folder(folder: str) -> tuple[dict[str, Cell], dict[str, str]]:
    """Returns the config and the labels that the name of a run's folder states, as ``lr=0.1,depth=4/seed_3`` does."""
    config: dict[str, Cell] = {}
    names: list[str] = []
    for part in folder.split("/"):
        pairs = [pair.partition("=") for pair in part.split(",")]
        if all(equals for _, equals, _ in pairs):
            config |= {key: value for key, _, value in pairs}
        elif match := _SEEDED.fullmatch(part):
            config["seed"] = int(match["seed"])
            names += [match["name"]] if match["name"] else []
        elif part and not _CHOSEN_BY_TRACKERS.fullmatch(part):
            names.append(part)
    return config, {"folder": "/".join(names)} if names else {}
