"""Reads and writes ``results.jsonl``: a study in one file, from which all its tables and figures are made.

The first line holds the plan, the notes and, where they were measured, the floors, the baseline's gain from its
context, the runs that were repeated by later code, the reason why a publication was withdrawn, and how many runs also
stand in other studies of the same folder of runs; every other line holds a run by its key: its record, its learning
curves, and the sums of its documents; of a run that measures the skills of networks before or after other runs, its
record alone. A column that several runs share, such as the documents' names, is written once, on a separate line, and
is referred to by its number. The file does not record when, by whom or on which machine it was made, except in its
commands: they name files and folders as they were typed; those of a published study name no folder of the machine.

Reading is as tolerant as that of records: a damaged line is noted, and its content counts as missing. The same file
gives the same tables and figures, byte for byte.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lit_transformers.config import shortened
from lit_transformers.records.context_losses import ContextUse
from lit_transformers.records.files import replace_file
from lit_transformers.records.floors import Floors
from lit_transformers.records.plan import Plan, parse_plan
from lit_transformers.records.rate_values import RateValues
from lit_transformers.records.record import Record
from lit_transformers.records.reproduction import Reproduction
from lit_transformers.records.schema import dump, first_fault, parse
from reports.read.measurements import NOTHING, Array, DocumentLosses, Measurements, as_documents
from reports.read.study import ReportError, Run, RunData, SharedRuns, Study, assemble

VERSION = 1
PLAN_END = ("protocol", "tuning", "left_out", "commands")
RECORD_END = ("environment", "measured", "gates", "observed")
"""The order in which a line ends, which is not that of ``plan.json`` and ``record.json``."""

_PRIVATE = {"started", "ended", "host", "hostname", "node", "user", "process", "worker"}
_ROOTED = re.compile(r"(^|=)~?/.*/(?=[^/])", re.DOTALL)
_FOLDERS = re.compile(r"(?<![\w.:/~-])~?/(?:[^\s/'\":,;]+/)+")

Column = Array | tuple[str, ...]
Identity = bytes | tuple[str, ...]


def write_results(study: Study, path: Path, public: bool = False) -> None:
    """Writes the file atomically: an error leaves the earlier file. The same study gives the same bytes.

    public: the commands, too, name no folder of this machine.
    """

    def write(new_path: Path) -> None:
        with new_path.open("w", encoding="utf-8", newline="\n") as file:
            for line in _lines(study, public):
                file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")

    replace_file(path, write)


def _lines(study: Study, public: bool) -> Iterator[dict[str, Any]]:
    runs = list(study.all_runs().values())
    plan = _in_order(dump(study.plan), PLAN_END)
    commands = {name: _public_command(text) if public else text for name, text in plan["commands"].items()}
    plan = _public(plan) | {"commands": commands}
    measured = {"floors": study.floors, "context": study.context, "rates": study.rates}
    beside = {name: _public(dump(value)) for name, value in measured.items() if value is not None}
    if study.reproductions:
        beside["reproductions"] = [_public(dump(reproduction)) for reproduction in study.reproductions]
    if study.withdrawn:
        beside["withdrawn"] = study.withdrawn
    if study.shared is not None and not public:
        beside["shared"] = dump(study.shared)
    yield {"kind": "study", "version": VERSION, "plan": plan, "notes": _public(list(study.notes))} | beside
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

    def encode(column: Column) -> Any:
        number = numbers.get(_identity(column))
        return _values(column) if number is None else number

    curves = run.measurements.curves
    record = {name: value for name, value in dump(run.record).items() if name != "measurement" or value is not None}
    line |= _public(_in_order(record, RECORD_END))
    line["curves"] = {
        name: {"tokens": encode(curve[:, 0]), "values": encode(curve[:, 1])} for name, curve in curves.items()
    }
    if documents := run.measurements.documents:
        line["documents"] = {name: encode(column) for name, column in _columns_by_name(documents).items()}
    return line


def _in_order(plain: dict[str, Any], last: Sequence[str]) -> dict[str, Any]:
    """Returns plain data with the ``last`` entries at their end."""
    return {name: value for name, value in plain.items() if name not in last} | {name: plain[name] for name in last}


def _columns(measurements: Measurements) -> Iterator[Column]:
    for curve in measurements.curves.values():
        yield from (curve[:, 0], curve[:, 1])
    if measurements.documents:
        yield from _columns_by_name(measurements.documents).values()


def _columns_by_name(documents: DocumentLosses) -> dict[str, Column]:
    sums = {"nats": documents.nats, "tokens": documents.tokens, "bytes": documents.bytes}
    return {"names": documents.names, **sums, **documents.others}


def _identity(column: Column) -> Identity:
    """Returns a hashable value that is equal for equal columns."""
    return column if isinstance(column, tuple) else column.tobytes()


def _values(column: Column) -> list[Any]:
    """Returns a column as plain values; a column of whole numbers becomes integers."""
    if isinstance(column, tuple):
        return list(column)
    whole = bool((column == np.round(column)).all() and (np.abs(column) < 2**53).all())
    return (column.astype(np.int64) if whole else column).tolist()


def _public(plain: Any) -> Any:
    """Returns plain data without entries that identify a machine or a person: hosts, times and folders of files."""
    if isinstance(plain, dict):
        return {name: _public(value) for name, value in plain.items() if name not in _PRIVATE}
    if isinstance(plain, list):
        return [_public(value) for value in plain]
    return _FOLDERS.sub("", plain) if isinstance(plain, str) else plain


def _public_command(command: str) -> str:
    """Returns a command without its ``--runs`` option, with absolute paths reduced to the names of files."""
    try:
        words = shlex.split(command)
    except ValueError:
        return str(_public(command))
    if "--runs" in words:
        index = words.index("--runs")
        del words[index : index + 2]
    return shlex.join(_public([_ROOTED.sub(r"\1", word) for word in words]))


def read_results(path: Path) -> Study:
    """Reads a study. Raises ReportError where the file or its first line cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            first = _parse_first_line(path, file.readline())
            plan, notes = first.plan, list(first.notes)
            reading = _Reading(path.name, plan, notes)
            for number, text in enumerate(file, start=2):
                reading.add_line(number, text)
    except OSError as error:
        raise ReportError(
            f"{path}: cannot be read ({error.strerror}); make it by: python -m ablations report"
        ) from None
    no_line = RunData(f"its line in {path.name} is missing")
    study = assemble(plan, {key: reading.runs.get(key, no_line) for key in reading.known}, notes)
    return replace(first, runs=study.runs, notes=study.notes, retention=study.retention, stages=study.stages)


def _parse_first_line(path: Path, text: str) -> Study:
    """Returns the study without its runs."""
    try:
        plain = json.loads(text)
        if not isinstance(plain, dict) or plain.get("kind") != "study":
            raise ReportError("no plan of a study")
        if plain.get("version") != VERSION:
            raise ReportError(f"made by version {plain.get('version')} of this format, not {VERSION}")
        notes = plain.get("notes")
        return Study(
            plan=parse_plan(plain.get("plan")),
            runs=(),
            notes=tuple(shortened(str(note)) for note in notes) if isinstance(notes, list) else (),
            floors=parse(Floors, plain["floors"]) if "floors" in plain else None,
            context=parse(ContextUse, plain["context"]) if "context" in plain else None,
            rates=parse(RateValues, plain["rates"]) if "rates" in plain else None,
            reproductions=tuple(parse(Reproduction, one) for one in plain.get("reproductions", ())),
            withdrawn=" ".join(str(plain.get("withdrawn", "")).split()),
            shared=parse(SharedRuns, plain["shared"]) if "shared" in plain else None,
        )
    except (ValueError, RecursionError) as error:
        raise ReportError(
            f"{path}, line 1: cannot be read ({first_fault(error)}); make it again by: python -m ablations report"
        ) from None


@dataclass
class _Reading:
    """The state of reading a file: the runs by key and the shared columns by number, as read so far."""

    name: str
    plan: Plan
    notes: list[str]
    runs: dict[str, RunData] = field(default_factory=dict)
    columns: dict[int, list[Any]] = field(default_factory=dict)

    @cached_property
    def known(self) -> set[str]:
        """The keys of all runs that the plan names."""
        return {*self.plan.all_keys()}

    def add_line(self, number: int, text: str) -> None:
        """Reads one line; a line that cannot be read becomes a note."""
        location = f"{self.name}, line {number}"
        try:
            plain = json.loads(text)
            if plain["kind"] == "column":
                self.columns[plain["column"]] = list(plain["values"])
            elif plain["kind"] == "run":
                self._add_run(location, plain)
            else:
                raise ValueError(f"of no known kind: {plain['kind']!r}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self._note(f"{location}: damaged ({_reason(error)}); its run counts as missing")

    def _note(self, note: str) -> None:
        self.notes.append(shortened(note))

    def _add_run(self, location: str, plain: Mapping[str, Any]) -> None:
        key = plain["key"]
        if key in self.runs or key not in self.known:
            raise ValueError(f"run {key!r} is {'there already' if key in self.runs else 'not in the plan'}")
        if "missing" in plain:
            self.runs[key] = RunData(shortened(str(plain["missing"])))
            return
        record = parse(Record, plain)
        try:
            measurements = self._measurements(plain)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._note(f"{location}: its curves and documents cannot be read ({_reason(error)}) and are not used")
            measurements = NOTHING
        self.runs[key] = RunData(record, measurements)

    def _measurements(self, plain: Mapping[str, Any]) -> Measurements:
        curves = {name: self._curve(curve) for name, curve in plain["curves"].items()}
        if "documents" not in plain:
            return Measurements(curves)
        columns = dict(plain["documents"])
        names = self._column(columns.pop("names"))
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a document's name is no text")
        return Measurements(
            curves, as_documents(names, {name: self._numbers(column) for name, column in columns.items()})
        )

    def _curve(self, encoded: Mapping[str, Any]) -> Array:
        curve = np.column_stack([self._numbers(encoded["tokens"]), self._numbers(encoded["values"])])
        if not np.isfinite(curve).all():
            raise ValueError("a point of a curve is not finite")
        return curve

    def _numbers(self, encoded: Any) -> Array:
        return np.array(self._column(encoded), dtype=np.float64)

    def _column(self, encoded: Any) -> Sequence[Any]:
        values = encoded if isinstance(encoded, list) else self.columns.get(encoded)
        if values is None:
            raise ValueError(f"column {encoded!r} is missing")
        return values


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else first_fault(error)
