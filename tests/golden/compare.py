"""Compares the records of two folders of runs, to the bit."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Difference", "compared", "differences", "reason_of"]

Changes = Mapping[str, Mapping[str, str]]
Values = dict[tuple[Any, ...], tuple[int, Any]]
"""The line and the value of each result of a file, by its field and the keys that tell it from other results of the
field."""

OUTSIDE = frozenset({"version", "key", "config", "data", "environment"})
"""The parts of a record that name the run and its origin."""
RESULTS = frozenset({"steps", "measured_step", "ranks", "cut", "trained_by"})
"""The entries of ``measured`` besides times, speeds and memory."""
ABSENT = "nothing"
RECORD = "record.json"


class Difference(NamedTuple):
    """A value that differs. ``field`` begins with the name of its file; ``line`` is 0 where a file has no lines."""

    field: str
    line: int
    before: Any
    after: Any

    def __str__(self) -> str:
        file, _, name = self.field.partition(" ")
        place = f"{file} line {self.line}" if self.line else file
        return f"{place}, {name}: {self.before} became {self.after}{self._relative()}"

    def _relative(self) -> str:
        numbers = [number_of(value) for value in (self.before, self.after)]
        if None in numbers:
            return ""
        before, after = (float(number or 0) for number in numbers)
        return f" (relative {abs(after - before) / (abs(before) or abs(after)):.1e})" if before != after else ""


def compared(before: Path, after: Path, names: Sequence[str], changes: Changes) -> Iterator[tuple[str, bool]]:
    """Yields of each run a line that says how it differs, and whether it differs where no change is listed."""
    for name in names:
        if missing := [folder for folder in (before, after) if not (folder / name / RECORD).exists()]:
            yield f"{name}: not recorded in {missing[0]}", True
            continue
        found = list(differences(before / name, after / name))
        unlisted = [difference for difference in found if reason_of(name, difference.field, changes) is None]
        if unlisted:
            others = f", and {len(unlisted) - 1} more" if len(unlisted) > 1 else ""
            yield f"{name}: {unlisted[0]}{others}", True
        elif found:
            yield f"{name}: equal but for {len(found)} listed value{'s' if len(found) > 1 else ''}", False
        else:
            yield f"{name}: equal", False


def reason_of(name: str, field: str, changes: Changes) -> str | None:
    """Returns why a field of a run is meant to differ; None where it is not listed."""
    reasons = (fields for pattern, fields in changes.items() if fnmatchcase(name, pattern))
    return next((why for fields in reasons for pattern, why in fields.items() if fnmatchcase(field, pattern)), None)


def differences(before: Path, after: Path) -> Iterator[Difference]:
    """Yields the values that differ between two folders of one run, in the order of their files and lines."""
    for file, read in READERS.items():
        first, second = (read(folder / file) if (folder / file).exists() else {} for folder in (before, after))
        for key in [*first, *(key for key in second if key not in first)]:
            line, value = first.get(key, (0, ABSENT))
            other_line, other = second.get(key, (0, ABSENT))
            if value != other:
                yield Difference(f"{file} {key[0]}", line or other_line, value, other)


def record_values(path: Path) -> Values:
    """Returns the results of a record, by their paths in it."""
    record = {name: part for name, part in json.loads(path.read_text(encoding="utf-8")).items() if name not in OUTSIDE}
    record["measured"] = {name: value for name, value in record["measured"].items() if name in RESULTS}
    return {(name,): (0, value) for name, value in leaves(record)}


def document_values(path: Path) -> Values:
    """Returns the cells of a table of documents, by column and line. The lines of a file are counted from 1."""
    lines = enumerate(rows(path), start=2)
    return {(column, line): (line, cell) for line, row in lines for column, cell in row.items()}


def curve_values(path: Path) -> Values:
    """Returns the points of curves, by name and step, and the tokens of each step, so that a further curve is a further
    value alone."""
    found: Values = {}
    for line, row in enumerate(rows(path), start=2):
        found.setdefault(("tokens", row["step"]), (line, row["tokens"]))
        points = sum(key[:2] == (row["name"], row["step"]) for key in found)
        found[row["name"], row["step"], points] = (line, row["value"])
    return found


def output_values(path: Path) -> Values:
    """Returns the generated outputs, by key and line."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return {(name, line): (line, value) for line, text in lines for name, value in leaves(json.loads(text))}


READERS: Mapping[str, Callable[[Path], Values]] = {
    RECORD: record_values,
    "documents.csv": document_values,
    "metrics.csv": curve_values,
    "outputs.jsonl": output_values,
}
"""The files that are compared, and the reader of each."""


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested plain data with their paths; empty parts count as values."""
    if not value or not isinstance(value, dict | list):
        yield path, value
        return
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(part, f"{path}.{name}" if path else str(name))


def number_of(value: Any) -> float | None:
    """Returns the number that a cell or a field of JSON holds; None where it holds none."""
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
