"""How the numbers of a command are read: from lines that it prints, or from a file that it writes."""

from __future__ import annotations

import csv
import json
import math
import re
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, NamedTuple, final

from pydantic import Field

from lit_transformers.config import Config, ConfigError, Plain, nearest, table

__all__ = [
    "CsvConfig",
    "JsonFileConfig",
    "JsonLinesConfig",
    "NumberLine",
    "PatternConfig",
    "UnreadableValuesError",
    "ValuesConfig",
]

GROUP = "value"
"""The name of a number that a pattern reads by a group without a name."""


class UnreadableValuesError(ValueError):
    """The values of a command cannot be read as its config states; the message gives the place."""


class NumberLine(NamedTuple):
    """The numbers of one line or row, by name; step: at which they were measured, None where that is not stated."""

    step: int | None
    numbers: dict[str, float]


class ValuesConfig(Config, ABC):
    """How the numbers of a command are read.

    step: the name under which a line states its step. names: the names that numbers get in a record, by the names that
    they are printed under: {"val_loss": "val/loss"}.
    """

    step: str = "step"
    names: dict[str, str] = field(default_factory=dict)

    @property
    def written_file(self) -> str | None:
        """The file that numbers are read from; None for the standard output."""
        path: str | None = vars(self).get("file")
        return path

    def read_line(self, line: str, wanted: Sequence[str]) -> NumberLine | None:
        """Hook: returns the numbers in a line, or None where it holds none. wanted: names that a run must print.
        Raises UnreadableValuesError for a line that seems to hold one of these and is broken."""
        raise NotImplementedError

    def read_file(self, path: Path, wanted: Sequence[str]) -> Iterator[NumberLine]:
        """Yields the numbers of a whole file. Raises UnreadableValuesError and OSError."""
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if (numbers := self.read_line(line, wanted)) is not None:
                    yield numbers

    def printed_names(self, wanted: Sequence[str]) -> list[str]:
        """Returns the names under which a command prints the numbers that a record calls ``wanted``."""
        printed = {name: original for original, name in self.names.items()}
        return [printed.get(name, name) for name in wanted]

    def numbers_of(self, entries: Mapping[str, Plain]) -> NumberLine | None:
        """Returns the numbers among the entries of a line, nested ones by their path: ``eval/loss``."""
        numbers = {path: float(value) for path, value in _flat(entries) if _is_number(value)}
        step = numbers.pop(self.step, None)
        renamed = {self.names.get(name, name): value for name, value in numbers.items()}
        if not renamed:
            return None
        return NumberLine(int(step) if step is not None and math.isfinite(step) else None, renamed)


@final
class JsonLinesConfig(ValuesConfig, kind="json_lines"):
    """Lines that are JSON objects, such as {"step": 100, "val_loss": 3.2}; other lines are ignored.

    file: a file that the command writes, in its working folder; None for its standard output.
    """

    file: str | None = None

    def read_line(self, line: str, wanted: Sequence[str]) -> NumberLine | None:
        text = line.strip()
        if not text.startswith("{"):
            return None
        try:
            entries = json.loads(text)
        except ValueError as error:
            if any(f'"{name}"' in text for name in self.printed_names(wanted)):
                raise UnreadableValuesError(f"a line is no JSON ({error}): {text[:100]}") from None
            return None
        return self.numbers_of(entries) if isinstance(entries, dict) else None


@final
class PatternConfig(ValuesConfig, kind="pattern"):
    """Regular expressions that are searched for in each line. The names of their groups are those of the numbers:
    ``step (?P<step>[0-9]+): val loss (?P<val_loss>[^ ,]+)``. The first group without a name reads a number that is
    called "value".

    file: a file that the command writes, in its working folder; None for its standard output.
    """

    patterns: Annotated[tuple[str, ...], Field(min_length=1)]
    file: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.patterns, str):
            object.__setattr__(self, "patterns", (self.patterns,))
        super().__post_init__()
        for number, pattern in enumerate(self.patterns):
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"is no regular expression: {error}", f"patterns.{number}") from None
            if not compiled.groups:
                reason = "has no group, which is what reads a number; write val loss (?P<val_loss>[^ ]+)"
                raise ConfigError(reason, f"patterns.{number}")

    def read_line(self, line: str, wanted: Sequence[str]) -> NumberLine | None:
        entries: dict[str, Plain] = {}
        for pattern in self.patterns:
            if match := re.search(pattern, line):
                groups = match.groupdict() or {GROUP: match[1]}
                entries |= {name: _number(text) for name, text in groups.items() if text is not None}
        return self.numbers_of(entries) if entries else None


@final
class CsvConfig(ValuesConfig, kind="csv"):
    """A table of comma-separated values that the command writes, with a column for each number and a line of names.

    file: its path in the working folder. separator: the character between the columns.
    """

    file: str
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","

    def read_file(self, path: Path, wanted: Sequence[str]) -> Iterator[NumberLine]:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            rows = csv.DictReader(file, delimiter=self.separator)
            columns = rows.fieldnames or []
            for name in self.printed_names(wanted):
                if name not in columns:
                    raise UnreadableValuesError(f"{path.name} has no column {name!r}; {nearest(name, columns)}")
            for row in rows:
                cells = {name: _number(cell) for name, cell in row.items() if isinstance(cell, str) and name}
                if (numbers := self.numbers_of(cells)) is not None:
                    yield numbers


@final
class JsonFileConfig(ValuesConfig, kind="json_file"):
    """A JSON file that the command writes at its end. Nested numbers are named by their path: ``eval/loss``.

    file: its path in the working folder. entries: the path of a list in it with an object for each step, as
    ``log_history`` is in the trainer_state.json of transformers; None where the file is one object of numbers.
    """

    file: str
    entries: str | None = None

    def read_file(self, path: Path, wanted: Sequence[str]) -> Iterator[NumberLine]:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UnreadableValuesError(f"{path.name} is no JSON: {error}") from None
        for name in self.entries.split("/") if self.entries else ():
            names = [*content] if isinstance(content, dict) else []
            if name not in names:
                raise UnreadableValuesError(f"{path.name} has no {name!r}; {nearest(name, names)}")
            content = content[name]
        for entry in content if isinstance(content, list) else [content]:
            numbers = self.numbers_of(entry) if isinstance(entry, dict) else None
            if numbers is not None:
                yield numbers


def _flat(entries: Mapping[str, Plain], head: str = "") -> Iterator[tuple[str, Plain]]:
    for name, value in entries.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{head}{name}/")
        else:
            yield f"{head}{name}", value


def _is_number(value: Plain) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(text: str) -> float | None:
    """Returns the number that a text is, without a comma or a full stop that ends it; None for any other text."""
    try:
        return float(text.strip().rstrip(",;.%"))
    except ValueError:
        return None


table(ValuesConfig, JsonLinesConfig, PatternConfig, CsvConfig, JsonFileConfig)
