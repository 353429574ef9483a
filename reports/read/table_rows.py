"""The rows of a table of results, whoever wrote it: CSV, TSV, a table pasted from a page, JSON, JSON lines or parquet.

A row maps columns to cells. A cell is a text, a number, a truth value, or None where it is empty.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from reports.read.study import ReportError

__all__ = ["STANDARD_INPUT", "Cell", "TableRow", "as_rows", "number", "read_rows", "text"]

Cell = str | int | float | bool | None

STANDARD_INPUT = "-"
_PARQUET = ".parquet"
_MARKDOWN = "|"


class TableRow(NamedTuple):
    """A row of a table and its place there, for messages: "line 3" or "row 3"."""

    place: str
    cells: Mapping[str, Cell]


def text(cell: Cell) -> str:
    """Returns a cell as the name of an arm or of a document."""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell)


def number(cell: Cell, place: str, column: str) -> float:
    """Returns a cell as a number. Raises ReportError for a text."""
    if isinstance(cell, str):
        try:
            return float(cell.replace("\N{MINUS SIGN}", "-"))
        except ValueError:
            raise ReportError(f"{place}: {column} is {cell!r}, which is no number; {_remedy(cell)}") from None
    return math.nan if cell is None else float(cell)


def _remedy(cell: str) -> str:
    if "±" in cell or "+-" in cell:
        return "give a row for each run in place of a mean with its deviation"
    if re.fullmatch(r"[-+]?\d+,\d+", cell.strip()):
        return "write decimals with a point"
    if re.match(r"\s*[-+]?\.?\d", cell):
        return "write all values in one unit, as numbers alone"
    return "leave the cell empty where a run has no value"


def read_rows(source: str | Path) -> list[TableRow]:
    """Returns the rows of a file or, for ``-``, of standard input.

    The format follows from the content, but for parquet, which the ending of the file name states.

    Raises ReportError where there is no table or a row does not fit its header, OSError where the file cannot be read.
    """
    name = str(source)
    try:
        if name.endswith(_PARQUET):
            return _parquet(Path(source))
        text = sys.stdin.read() if name == STANDARD_INPUT else Path(source).read_text(encoding="utf-8-sig")
        return _rows_of(text)
    except UnicodeDecodeError:
        raise ReportError(f"{name}: is not text in UTF-8; save it as UTF-8, or as .parquet") from None
    except ValueError as error:
        raise ReportError(f"{'standard input' if name == STANDARD_INPUT else name}: {error}") from None


def _rows_of(text: str) -> list[TableRow]:
    start = text.lstrip()[:1]
    if not start:
        raise ValueError("is empty; a table has a header and a row for each run")
    if start == "[":
        return as_rows(json.loads(text))
    if start == "{":
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        return [_plain_row(f"line {number}", _json(number, line)) for number, line in lines]
    return _delimited(text)


def _json(number: int, line: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is no JSON ({error.msg})") from None


def as_rows(entries: Sequence[object]) -> list[TableRow]:
    """Returns objects as rows. Raises ValueError for one that is none."""
    return [_plain_row(f"row {number}", entry) for number, entry in enumerate(entries, 1)]


def _plain_row(place: str, entry: object) -> TableRow:
    if not isinstance(entry, dict):
        raise ValueError(f"{place} is no object with the columns as names")
    return TableRow(place, dict(_flat(entry)))


def _flat(entry: Mapping[str, object], prefix: str = "") -> Sequence[tuple[str, Cell]]:
    """Returns the cells of an object; those of an object within it have its name and a dot in front."""
    cells: list[tuple[str, Cell]] = []
    for name, value in entry.items():
        if isinstance(value, dict):
            cells += _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            cells.append((f"{prefix}{name}", json.dumps(value)))
        elif value is None or isinstance(value, str | int | float | bool):
            cells.append((f"{prefix}{name}", value))
    return cells


def _delimited(text: str) -> list[TableRow]:
    numbered = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    header = numbered[0][1]
    if header.lstrip().startswith(_MARKDOWN):
        lines = [(number, _pasted(line)) for number, line in numbered if set(line) - set("|-: ")]
    else:
        delimiter = max("\t,;", key=header.count)
        reader = csv.reader(io.StringIO(text), delimiter=delimiter)
        lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    columns = [column.strip() for column in lines[0][1]]
    if twice := next((column for column in columns if columns.count(column) > 1), None):
        raise ValueError(f"has the column {twice!r} twice; rename one")
    rows = []
    for number, cells in lines[1:]:
        if len(cells) != len(columns):
            raise ValueError(f"line {number} has {len(cells)} cells, and the header has {len(columns)}")
        values = [cell.strip() or None for cell in cells]
        rows.append(TableRow(f"line {number}", dict(zip(columns, values, strict=True))))
    return rows


def _pasted(line: str) -> list[str]:
    """Returns the cells of a line of a Markdown table, without the marks of bold text and code."""
    return [cell.strip().strip("*`") for cell in line.strip().strip(_MARKDOWN).split(_MARKDOWN)]


def _parquet(path: Path) -> list[TableRow]:
    import pyarrow
    from pyarrow import parquet

    if not path.is_file():
        raise ReportError(f"{path}: there is no such file")
    try:
        return as_rows(parquet.read_table(path).to_pylist())
    except pyarrow.ArrowException as error:
        raise ReportError(f"{path}: cannot be read as parquet ({str(error).splitlines()[0]})") from None
