"""Records of files, and the texts in them by column or path: rows of tables, JSON lines, JSON and parquet."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import Field

from datamodules.core.archives import members
from datamodules.core.documents import Split
from datamodules.core.errors import DataError
from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.core.reading import (
    COMPRESSIONS,
    Member,
    NoText,
    copied,
    damage,
    format_of,
    lines_in,
    longest_record,
    parquet_rows,
    parsed,
    text_lines,
    too_long,
    whole,
)
from datamodules.text.sources import files_of, named_split, nothing_left, split_by_hash, stamps
from lit_transformers.config import Config, Fraction, Plain, nearest

__all__ = ["COLUMNS", "Column", "FileRecord", "RecordsConfig", "column_conflicts", "records_of", "texts_at", "value_at"]

Column = str | Annotated[int, Field(ge=1)]
"""A column of a table by its name or its number from 1, or the path of a text in nested records."""
WHOLE = 1 << 30
"""A size of pieces so large that no record is cut."""
SEPARATORS = {".csv": ",", ".tsv": "\t"}
QUOTED_ROW = re.compile(r"({cell})(\t({cell}))*".format(cell=r'"([^"]|"")*"|[^"\t]*'))
"""A row whose cells are in quotes as a whole, with quotes in them doubled, or hold none."""
DECIDING = 1 << 22
"""How long a cell may be by which it is decided whether cells stand in quotes."""
COLUMNS = "the columns of data.source"
LEFT_OUT = "records without a text left out"
SUFFIXES = {*SEPARATORS, ".jsonl", ".ndjson", ".json", ".parquet"}


class FileRecord(NamedTuple):
    """A record and its place in messages, ``file:line``; ``origin`` and ``row`` name it in an index. around: the record
    that it was nested in, or itself."""

    place: str
    values: Any
    origin: str
    row: int
    around: Any


class RecordError(DataError):
    """A record without a required text, which may be left out."""


class RecordsConfig(Config):
    """Base of sources that read records: a file, or all files with their suffixes in a folder or tar, plain or
    compressed: .tsv, .csv, .jsonl, .ndjson, .json (a list of records, or one), .parquet.

    path        relative to LIT_DATA or to the working folder
    header      whether the first line of a table names its columns; None: it does, unless all columns are numbers
    separator   the character between columns of a table; None: a comma for .csv, a tab for .tsv. Any other file is
                read as a table where it is set
    quoting     whether the cells of a table may stand in quotes, which are then no part of them; None: they may, but
                between tabs only where all cells with quotes are as a program writes them that quotes cells (pandas)
    records     the path of a list in each record of JSON or parquet, each item of which is a record; in it,
                ``parent`` is the record around it
    splits      folders: by the folder or file names (train, validation, test). hash: by a hash of the text that is read
                (of a pair the source), so that equal ones share a split; of nested records by that around them
    validation  the fraction for validation, of a split by hash
    test        the fraction for the test, of a split by hash
    incomplete  a record without a required text, or with an empty one: refuse is an error that names its line,
                leave_out leaves it out, and counts it
    """

    path: str
    header: bool | None = None
    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    quoting: bool | None = None
    records: str | None = None
    splits: Literal["folders", "hash"] = "folders"
    validation: Fraction = 0.05
    test: Fraction = 0.05
    incomplete: Literal["refuse", "leave_out"] = "refuse"

    def conflicts_of(self, **columns: Column) -> Iterator[str]:
        """Yields a sentence for each impossible combination of fields; the columns are by the names of their fields."""
        yield from nothing_left(self.validation, self.test)
        yield from column_conflicts(**columns, records=self.records or "_")

    def all_records(self) -> Iterator[FileRecord]:
        """Yields all records of the files; the rows of a table by the names of its columns. Raises DataError."""
        for path, name in files_of(self.path, is_records, Counter()):
            yield from self._read(path, name, ("",), Counter())

    def indexed(
        self, key: Plain, columns: Sequence[Column], text_of: Callable[[FileRecord, list[list[str]], Path], Text]
    ) -> IndexedCorpus:
        """Returns the corpus of all records, made by ``text_of`` from a record, the texts of its columns and its file.

        key: plain data of all fields that decide a text. Raises DataError that names the line at fault.
        """
        left_out = Counter[str]()
        files = files_of(self.path, is_records, left_out)
        records = ((record, path) for path, name in files for record in self._read(path, name, columns, left_out))
        texts = (text_of(record, values, path) for record, values, path in self._complete(records, columns, left_out))
        return index_corpus(["records", key, stamps(files)], "", WHOLE, texts, left_out)

    def split_of(self, record: FileRecord, text: str) -> Split:
        """Returns the split of a record with that text. Raises DataError where it is to be named and is not."""
        if self.splits == "folders":
            return named_split(record.origin)
        if self.records:
            text = json.dumps(record.around, sort_keys=True, default=repr).replace(r"\r\n", r"\n")
        return split_by_hash(text, self.validation, self.test)

    def _read(self, path: Path, name: str, columns: Sequence[Column], left_out: Counter[str]) -> Iterator[FileRecord]:
        """Yields the records of a file, or of the files of an archive."""
        has_header = not all(isinstance(column, int) for column in columns) if self.header is None else self.header
        with damage(path):
            for member in members(path, name, is_records, left_out):
                for record in records_of(member, self.separator, self.quoting, has_header):
                    yield from _nested(record, self.records) if self.records else [record]

    def _complete(
        self, records: Iterable[tuple[FileRecord, Path]], columns: Sequence[Column], left_out: Counter[str]
    ) -> Iterator[tuple[FileRecord, list[list[str]], Path]]:
        """Yields every record with the texts of its columns and its file. Where incomplete ones are left out they are
        counted, and that no record has every text is a DataError with the first fault."""
        complete, first_fault = 0, None
        for record, path in records:
            try:
                values = [_filled(record, column) for column in columns]
            except RecordError as fault:
                if self.incomplete == "refuse":
                    raise
                left_out[LEFT_OUT] += 1
                first_fault = first_fault or fault
                continue
            complete += 1
            yield record, values, path
        if first_fault is not None and not complete:
            raise DataError(f"none of {left_out[LEFT_OUT]:,} records has every text: {first_fault}")


def column_conflicts(**columns: Column) -> Iterator[str]:
    """Yields a sentence for the first path that cannot be one."""
    for field, column in columns.items():
        try:
            _compiled(str(column))
        except JMESPathError as error:
            yield f"{field}: {column!r} is neither a name nor a JMESPath, such as questions[*].text ({_line(error)})"
            return


def is_records(name: str) -> bool:
    """Whether a file's name is that of records, or of an archive."""
    return _suffix(name) in SUFFIXES or format_of(name) == "archive"


def _suffix(name: str) -> str:
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix


def records_of(
    member: Member, separator: str | None = None, quoting: bool | None = None, has_header: bool = True
) -> Iterator[FileRecord]:
    """Yields the records of a file. separator, quoting: of the cells of a table; None: by its name and its rows.
    has_header: whether a table begins with the names of its columns. Raises DataError for another kind of file, and for
    a damaged one."""
    suffix, name = _suffix(member.name), member.name
    if suffix in SEPARATORS or (separator is not None and suffix not in SUFFIXES):
        yield from _table(member, separator or SEPARATORS[suffix], quoting, has_header)
    elif suffix in (".jsonl", ".ndjson"):
        for row, line in enumerate(lines_in(member.stream, name)):
            if line.strip():
                yield _record(f"{name}:{row + 1}", parsed(line, f"{name}:{row + 1}"), name, row)
    elif suffix == ".json":
        content = parsed(whole(member), name)
        for row, values in enumerate(content if isinstance(content, list) else [content]):
            yield _record(f"{name}:{row + 1}", values, name, row)
    elif suffix == ".parquet":
        for row, values in enumerate(parquet_rows(member)):
            yield _record(f"{name}:{row + 1}", values, name, row)
    else:
        known = ", ".join(sorted(SUFFIXES))
        raise DataError(f"{name}: its name is of no records ({known}); of a table set data.source.separator")


def _record(place: str, values: Any, origin: str, row: int) -> FileRecord:
    return FileRecord(place, values, origin, row, values)


def _table(member: Member, separator: str, quoting: bool | None, has_header: bool) -> Iterator[FileRecord]:
    """Yields the rows of a table as a dictionary by the names in its header, or as a list without one."""
    if quoting is None and separator == "\t":
        copy = copied(member.stream)
        quoting = _is_quoted(text_lines(copy, member.name), member.name)
        copy.seek(0)
        member = member._replace(stream=copy)
    lines = text_lines(member.stream, member.name)
    rows = _divided(lines, separator) if quoting is False else _quoted(lines, separator, member.name)
    header: list[str] | None = None
    for number, cells in rows:
        if not cells or cells == [""]:  # an empty line
            continue
        place = f"{member.name}:{number}"
        if has_header and header is None:
            if len({*cells}) < len(cells):
                raise DataError(f"{place}: two columns have the same name; name columns by number, with header=true")
            header = cells
            continue
        if header is None:
            yield _record(place, cells, member.name, number - 1)
            continue
        if len(cells) > len(header):
            raise DataError(f"{place}: {len(cells)} columns, and the header has {len(header)}; correct the line")
        if len(cells) < len(header):
            place = f"{place} ({len(cells)} columns, and the header has {len(header)})"
        yield _record(place, dict(zip(header, cells, strict=False)), member.name, number - 1)


def _divided(lines: Iterable[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields rows of cells between separators, with their numbers."""
    for number, line in enumerate(lines, 1):
        yield number, line.rstrip("\r\n").split(separator)


def _is_quoted(lines: Iterable[str], name: str) -> bool:
    """Whether cells between tabs stand in quotes, as a program has written them that quotes cells, such as pandas.

    Then each cell that holds a quote is in quotes as a whole, rows have as many columns as the first, and some cell
    needs its quotes: it holds another, a tab or a line end, or the first row is all in quotes. A table whose lines have
    as many columns without regard to quotes has no cell of several lines.
    """
    columns, tabs = 0, set[int]()
    is_needed = has_long_rows = False
    written: list[str] = []

    def kept() -> Iterator[str]:
        for line in lines:
            written.append(line)
            tabs.add(line.count("\t"))
            yield line

    try:
        for _, cells in _quoted(kept(), "\t", name, DECIDING):
            row, is_first, columns = "".join(written).rstrip("\r\n"), not columns, columns or len(cells)
            has_long_rows |= len(written) > 1
            written.clear()
            if cells and (len(cells) != columns or not QUOTED_ROW.fullmatch(row)):
                return False
            all_quoted = is_first and row.count('"') >= 2 * len(cells)
            is_needed |= '"' in row and (all_quoted or any(mark in cell for cell in cells for mark in '"\t\n'))
    except DataError:
        return False
    return is_needed and not (has_long_rows and len(tabs) == 1)


def _quoted(
    lines: Iterable[str], separator: str, name: str, longest: int | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yields rows with the number of their last line; a field in quotes may hold separators and line ends."""
    limit = csv.field_size_limit(longest or longest_record())  # a field may be a whole document
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        place = f"{name}:{reader.line_num}"
        if "field limit" in str(error):
            raise too_long(place, "a cell, or one whose quotes do not end,") from None
        raise DataError(f"{place}: no row of a table ({error}); quote the field, or double its quotes") from None
    finally:
        csv.field_size_limit(limit)


def _nested(record: FileRecord, path: str) -> Iterator[FileRecord]:
    """Yields the items of a list in a record, each with the record around it as ``parent``. Raises DataError."""
    items = value_at(record.values, path, record.place, "data.source.records")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise DataError(f"{record.place}: {path!r} is no list of records; correct data.source.records")
    for number, item in enumerate(items):
        values = {"parent": record.values, **item}
        yield FileRecord(f"{record.place}, item {number + 1}", values, record.place, number, record.values)


def _filled(record: FileRecord, column: Column) -> list[str]:
    """Returns the texts of a column or a path. Raises RecordError where one is empty."""
    texts = texts_at(record.values, column, record.place)
    if not all(text.strip() for text in texts):
        raise RecordError(f"{record.place}: {column!r} is empty; correct it, or set data.source.incomplete=leave_out")
    return texts


def texts_at(values: Any, column: Column, place: str, field: str = COLUMNS) -> list[str]:
    """Returns the text of a column or a path, or the texts of a list, in order; numbers and truth values as JSON writes
    them. field: the field that an error asks to correct. Raises RecordError where there is none, and DataError where it
    is something else."""
    value = value_at(values, column, place, field)
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if isinstance(text, dict | list):
            noun = "an object" if isinstance(text, dict) else "a list of lists"
            raise DataError(f"{place}: {column!r} holds {noun}, not text; give the path of a text ({field})")
        if isinstance(text, NoText) and not text.is_missing:
            raise DataError(f"{place}: {column!r} holds {text.noun}, and no text; correct {field}")
    if not texts or not all(isinstance(text, str | int) or _is_number(text) for text in texts):
        content = next((text.noun for text in texts if isinstance(text, NoText)), None)
        content = content or json.dumps(value, default=repr)[:40]
        raise RecordError(f"{place}: {column!r} holds {content}, and no text; correct it, or {field}")
    return [text if isinstance(text, str) else json.dumps(text) for text in texts]


def _is_number(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def value_at(values: Any, column: Column, place: str, field: str) -> Plain:
    """Returns the value of a column by number or by name or, where no column has this name, at a JMESPath.

    A projection such as ``questions[*].text`` is the list of existing values: an item without one has no place in it.
    Raises RecordError where there is no such column or nothing at the path.
    """
    if isinstance(column, int):
        cells = [*values.values()] if isinstance(values, dict) else values
        if not isinstance(cells, list) or column > len(cells):
            number = len(cells) if isinstance(cells, list) else "no"
            raise RecordError(f"{place}: {number} columns, and none of number {column}; correct the line, or {field}")
        return cells[column - 1]
    if not isinstance(values, dict):
        what = "a row without a header" if isinstance(values, list) else f"a {type(values).__name__}"
        raise DataError(f"{place}: no object with names but {what}, and {column!r} is a name; correct {field}")
    if column in values:
        return values[column]
    try:
        value = _compiled(column).search(values)
    except (JMESPathError, ValueError) as error:
        raise DataError(f"{place}: {column!r}: {_line(error)}; correct {field}") from None
    if value is None:
        raise RecordError(f"{place}: no {column!r}; {_nearest_name(values, column)} (set {field})")
    return value


@cache
def _compiled(path: str) -> Any:
    """Returns a compiled JMESPath; a name that is none by itself is quoted."""
    try:
        return jmespath.compile(path)
    except JMESPathError:
        if any(character in path for character in "[]().|*&@`"):
            raise
        return jmespath.compile(json.dumps(path))
    except (RecursionError, ValueError) as error:  # too deep, or a number that Python refuses to read
        raise JMESPathError(_line(error)) from None


def _nearest_name(values: Any, path: str) -> str:
    """Returns the end of a message on the first name of a path that is not there."""
    name = path
    for name in path.split("."):
        if not isinstance(values, dict) or name not in values:
            break
        values = values[name]
    return nearest(name, values) if isinstance(values, dict) else f"there is {json.dumps(values, default=repr)[:40]}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
