"""``results.jsonl``: a study in one file, from which all its tables and figures are made, byte for byte.

The first line holds the plan and the notes, every other one a run by its key: its record, its learning curves, and the
sums of its documents. A column that several runs share, such as the documents' names, stands once, on a line of its
own, and is referred to by its number. Nothing in the file tells when, by whom or on which machine it was made, but for
its commands: they name files and folders as they were typed, and in what is published as they could be typed anywhere.

Reading is as tolerant as that of records: a damaged line is named, and what it held counts as missing.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lit_transformers.files import replace_file
from reports.measurements import NOTHING, Array, Documents, Measurements, as_documents
from reports.plans import Plan
from reports.records import Record, ReportError, Run, Study, Told, as_plan, assemble, first_line

RESULTS = "results.jsonl"
VERSION = 1

_PRIVATE = {"started", "ended", "host", "hostname", "node", "user", "process", "worker"}
_ROOTED = re.compile(r"(^|=)~?/.*/(?=[^/])", re.DOTALL)
_FOLDERS = re.compile(r"(?<![\w.:/~-])~?/(?:[^\s/'\":,;]+/)+")

Column = Array | tuple[str, ...]
Identity = bytes | tuple[str, ...]


def write_results(study: Study, path: Path, public: bool = False) -> None:
    """Writes the file, or leaves the earlier one. The same study gives the same bytes.

    public: its commands, too, name no folder of this machine.
    """

    def write(fresh: Path) -> None:
        with fresh.open("w", encoding="utf-8", newline="\n") as file:
            for line in _lines(study, public):
                file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")

    replace_file(path, write)


def _lines(study: Study, public: bool) -> Iterator[dict[str, Any]]:
    runs = list({run.key: run for run in study.runs}.values())
    plan = study.plan.model_dump(mode="json")
    commands = {name: _public_command(text) if public else text for name, text in plan["commands"].items()}
    plan = _public(plan) | {"commands": commands}
    yield {"kind": "study", "version": VERSION, "plan": plan, "notes": _public(list(study.notes))}
    uses = Counter(_identity(column) for run in runs for column in _columns(run.measurements))
    numbers: dict[Identity, int] = {}
    for run in runs:
        for column in _columns(run.measurements):
            identity = _identity(column)
            if uses[identity] > 1 and identity not in numbers:
                numbers[identity] = len(numbers)
                yield {"kind": "column", "column": numbers[identity], "values": _values(column)}
        yield _run_line(run, numbers)


def _run_line(run: Run, numbers: Mapping[Identity, int]) -> dict[str, Any]:
    line: dict[str, Any] = {"kind": "run", "arm": run.arm, "seed": run.seed, "key": run.key}
    if run.record is None:
        return line | {"missing": run.missing}

    def told(column: Column) -> Any:
        number = numbers.get(_identity(column))
        return _values(column) if number is None else number

    curves = run.measurements.curves
    line |= _public(run.record.model_dump(mode="json"))
    line["curves"] = {
        name: {"tokens": told(curve[:, 0]), "values": told(curve[:, 1])} for name, curve in curves.items()
    }
    if documents := run.measurements.documents:
        line["documents"] = {name: told(column) for name, column in _named(documents).items()}
    return line


def _columns(measurements: Measurements) -> Iterator[Column]:
    for curve in measurements.curves.values():
        yield from (curve[:, 0], curve[:, 1])
    if measurements.documents:
        yield from _named(measurements.documents).values()


def _named(documents: Documents) -> dict[str, Column]:
    sums = {"nats": documents.nats, "tokens": documents.tokens, "bytes": documents.bytes}
    return {"names": documents.names, **sums, **documents.others}


def _identity(column: Column) -> Identity:
    """Equal for equal columns."""
    return column if isinstance(column, tuple) else column.tobytes()


def _values(column: Column) -> list[Any]:
    """Plain values; whole numbers without a point."""
    if isinstance(column, tuple):
        return list(column)
    whole = bool((column == np.round(column)).all() and (np.abs(column) < 2**53).all())
    return (column.astype(np.int64) if whole else column).tolist()


def _public(plain: Any) -> Any:
    """Plain data without what tells of a machine or a person: hosts, times, and the folders that files were in."""
    if isinstance(plain, dict):
        return {name: _public(value) for name, value in plain.items() if name not in _PRIVATE}
    if isinstance(plain, list):
        return [_public(value) for value in plain]
    return _FOLDERS.sub("", plain) if isinstance(plain, str) else plain


def _public_command(command: str) -> str:
    """A command without the folder of runs, and with files that stand somewhere on this machine by their names."""
    try:
        words = shlex.split(command)
    except ValueError:
        return str(_public(command))
    if "--runs" in words:
        place = words.index("--runs")
        del words[place : place + 2]
    return shlex.join(_public([_ROOTED.sub(r"\1", word) for word in words]))


def read_results(path: Path) -> Study:
    """The study that was written. Raises ReportError: there is no such file, or its first line cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            plan, notes = _first(path, file.readline())
            reading = _Reading(path.name, plan, notes)
            for number, text in enumerate(file, start=2):
                reading.take(number, text)
    except OSError as error:
        raise ReportError(
            f"{path}: cannot be read ({error.strerror}); make it by: python -m ablations report"
        ) from None
    lost = Told(f"its line in {path.name} is missing")
    return assemble(plan, {key: reading.told.get(key, lost) for key in plan.by_key()}, notes)


def _first(path: Path, text: str) -> tuple[Plan, list[str]]:
    try:
        plain = json.loads(text)
        if not isinstance(plain, dict) or plain.get("kind") != "study":
            raise ReportError("no plan of a study")
        if plain.get("version") != VERSION:
            raise ReportError(f"made by version {plain.get('version')} of this format, not {VERSION}")
        notes = plain.get("notes")
        return as_plan(plain.get("plan")), [str(note) for note in notes] if isinstance(notes, list) else []
    except (ValueError, RecursionError) as error:
        raise ReportError(
            f"{path}, line 1: cannot be read ({first_line(error)}); make it again by: python -m ablations report"
        ) from None


@dataclass
class _Reading:
    """What the lines so far have told."""

    name: str
    plan: Plan
    notes: list[str]
    told: dict[str, Told] = field(default_factory=dict)
    columns: dict[int, list[Any]] = field(default_factory=dict)

    def take(self, number: int, text: str) -> None:
        """Takes in a line; one that cannot be read becomes a note."""
        place = f"{self.name}, line {number}"
        try:
            plain = json.loads(text)
            if plain["kind"] == "column":
                self.columns[plain["column"]] = list(plain["values"])
            elif plain["kind"] == "run":
                self._take_run(place, plain)
            else:
                raise ValueError(f"of no known kind: {plain['kind']!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self.notes.append(f"{place}: damaged ({_reason(error)}); what it held counts as missing")

    def _take_run(self, place: str, plain: Mapping[str, Any]) -> None:
        key = plain["key"]
        if key in self.told or key not in self.plan.by_key():
            raise ValueError(f"run {key!r} is {'there already' if key in self.told else 'not in the plan'}")
        if "missing" in plain:
            self.told[key] = Told(str(plain["missing"]))
            return
        record = Record.model_validate(plain)
        try:
            measurements = self._measurements(plain)
        except (ValueError, KeyError, TypeError) as error:
            self.notes.append(f"{place}: its curves and documents cannot be read ({_reason(error)}) and are not used")
            measurements = NOTHING
        self.told[key] = Told(record, measurements)

    def _measurements(self, plain: Mapping[str, Any]) -> Measurements:
        curves = {name: self._curve(curve) for name, curve in plain["curves"].items()}
        if "documents" not in plain:
            return Measurements(curves)
        columns = dict(plain["documents"])
        names = self._column(columns.pop("names"))
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a document's name is no text")
        return Measurements(curves, as_documents(names, {name: self._numbers(told) for name, told in columns.items()}))

    def _curve(self, told: Mapping[str, Any]) -> Array:
        curve = np.column_stack([self._numbers(told["tokens"]), self._numbers(told["values"])])
        if not np.isfinite(curve).all():
            raise ValueError("a point of a curve is not finite")
        return curve

    def _numbers(self, told: Any) -> Array:
        return np.array(self._column(told), dtype=np.float64)

    def _column(self, told: Any) -> Sequence[Any]:
        found = told if isinstance(told, list) else self.columns.get(told)
        if found is None:
            raise ValueError(f"column {told!r} is missing")
        return found


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else first_line(error)
