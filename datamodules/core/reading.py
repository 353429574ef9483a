"""Opens files by their names: text, JSON lines, parquet; plain, compressed or in an archive."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import os
import shutil
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache
from io import BufferedReader, BytesIO, RawIOBase
from itertools import count
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from typing import IO, Any, BinaryIO, Literal, NamedTuple, cast
from uuid import UUID
from zipfile import BadZipFile

import numpy as np

from datamodules.core.errors import DataError
from lit_transformers.config import existing, named_by, nearest

__all__ = [
    "COMPRESSIONS",
    "OPEN_FILES",
    "Entry",
    "Format",
    "Member",
    "NoText",
    "Slice",
    "beginning",
    "copied",
    "cut",
    "damage",
    "format_of",
    "is_hidden",
    "line_starts",
    "lines_in",
    "locate",
    "longest_record",
    "member_of",
    "parquet_rows",
    "parsed",
    "parts",
    "plain_values",
    "require_regular",
    "sliced",
    "slices",
    "text_lines",
    "too_long",
    "unfinished",
    "whole",
    "without_mark",
]

COMPRESSIONS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".tbz2", ".txz", ".zip")
TEXT_SUFFIXES = {".txt", ".text", ".py", ".md", ".rst", ".xml", ".raw", ".tokens"}
LINES_SUFFIXES = {".jsonl", ".ndjson"}

OPEN_FILES = 32
"""How many corpora, or splits of one, each cache of a process holds open. The least recently used one is closed, as a
process may open few files and a mapped one counts."""
LONGEST = "LIT_LONGEST_RECORD"
"""The environment variable that says how many bytes a line or a record may have."""
USUAL_LONGEST = 1 << 26
BUFFER = 1 << 16
BLOCK = 1 << 20
"""How many bytes are read at once to count lines."""
ROWS = 64
"""How many rows of parquet are held at once."""
MARK = b"\xef\xbb\xbf"
"""Stands before a text of UTF-8 that some editors wrote, and is no part of it."""
FOREIGN_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}

PACKED_MARKS = {
    b"\x1f\x8b": ".gz",
    b"\xfd7zXZ\0": ".xz",
    b"BZh91AY&SY": ".bz2",
    b"PK\x03\x04": ".zip",
    b"\x28\xb5\x2f\xfd": None,
    b"%PDF-": None,
}
"""The first bytes of files that are not text, and the suffix by which they are unpacked; None: they are not."""

Format = Literal["text", "lines", "parquet", "archive"]


class Member(NamedTuple):
    """One file, or one file of an archive: ``path`` is set where the bytes can be read again in place."""

    name: str
    stream: BinaryIO
    path: Path | None


class Entry(NamedTuple):
    """One text of a member: ``row`` counts within JSON lines and parquet and is -1 where the file is one text; then
    ``content`` is None."""

    row: int
    stream: BinaryIO
    content: bytes | None = None


class NoText:
    """A value that no text stands for; its text is an error. is_missing: whether it says that there is none."""

    def __init__(self, noun: str, is_missing: bool = True) -> None:
        self.noun, self.is_missing = noun, is_missing

    def __repr__(self) -> str:
        return f"<{self.noun}>"

    def __str__(self) -> str:
        raise ValueError(f"{self.noun}, and no text")


def locate(path: str, field: str = "data.source.path", variables: Sequence[str] = ("LIT_DATA",)) -> Path:
    """Returns a path below the folder that LIT_DATA names, or as it is. Raises DataError where neither exists, or it is
    neither a file nor a folder.

    field: the field of the config that names it. variables: environment variables in place of LIT_DATA.
    """
    place = existing(path, *variables)
    if place is None:
        bases = "; ".join(map(named_by, variables))
        raise DataError(f"{path}: no such file or folder ({bases}); correct {field} or {' or '.join(variables)}")
    if not place.is_dir():
        require_regular(place)
    return place


def require_regular(path: Path) -> None:
    """Raises DataError for a pipe, a device or a socket: to read one may last for ever."""
    with damage(path):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        nouns = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
        noun = nouns.get(stat.S_IFMT(mode), "a device")
        raise DataError(f"{path}: {noun}, and only regular files are read; copy the data into a file")


def is_hidden(name: str) -> bool:
    """Whether a name in a folder or an archive is one of those that programs store next to a person's files."""
    parts = (part for part in PurePosixPath(name).parts if part != "..")
    return any(part.startswith(".") or part == "__MACOSX" for part in parts)


def format_of(name: str) -> Format | None:
    """Returns the format that a file's name implies, apart from compression; None where it implies none."""
    path = PurePosixPath(name.lower())
    if path.name.endswith(ARCHIVE_SUFFIXES):
        return "archive"
    suffix = PurePosixPath(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix
    if suffix in LINES_SUFFIXES:
        return "lines"
    if suffix == ".parquet":
        return "parquet"
    return "text" if suffix in TEXT_SUFFIXES else None


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Turns the errors of reading a file into a DataError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (EOFError, OSError, lzma.LZMAError, zlib.error, tarfile.TarError, BadZipFile) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path}: cannot be read, damaged or of another format than its name says ({reason}); fetch it again"
        ) from None


def member_of(name: str, stream: IO[bytes], path: Path | None = None) -> Member:
    """Returns a file, unpacked where its name says that it is compressed, from behind the mark of UTF-8 where it has
    one. Raises DataError where it is UTF-16 or UTF-32.

    path: the file itself, where the stream is all of it.
    """
    opener = COMPRESSIONS.get(PurePosixPath(name.lower()).suffix)
    content = BufferedReader(opener(stream) if opener else cast(Any, stream), BUFFER)
    in_place = None if opener else path
    if format_of(name) == "parquet":
        return Member(name, content, in_place)
    beginning = content.peek(16)
    for mark, encoding in FOREIGN_MARKS.items():
        if beginning.startswith(mark):
            raise DataError(f"{name}: is {encoding}; convert it, as with: iconv -f {encoding} -t UTF-8")
    for packed, suffix in PACKED_MARKS.items():
        if beginning.startswith(packed):
            remedy = f"call it {name}{suffix}" if suffix and not opener else "unpack it"
            raise DataError(f"{name}: holds no text, but packed data; {remedy}")
    if beginning.startswith(MARK):
        content.read(len(MARK))
        in_place = None
    return Member(name, content, in_place)


def without_mark(text: bytes) -> bytes:
    """Returns a text from behind the mark of UTF-8, where it has one."""
    return text.removeprefix(MARK)


def copied(stream: IO[bytes]) -> BinaryIO:
    """Returns a temporary file with all that follows in a stream, which can be read from any place."""
    copy = cast(BinaryIO, TemporaryFile())  # noqa: SIM115
    shutil.copyfileobj(stream, copy)
    copy.seek(0)
    return copy


def longest_record() -> int:
    """Returns how many bytes a line or a record may have: LIT_LONGEST_RECORD, or 64 MiB. Raises DataError where that is
    no number."""
    longest = os.environ.get(LONGEST) or str(USUAL_LONGEST)
    if not longest.isdecimal() or int(longest) < 1:
        raise DataError(f"{LONGEST} is {longest!r} and no number of bytes; correct the environment variable")
    return int(longest)


def too_long(place: str, noun: str) -> DataError:
    """Returns the error of an item, such as a line, with more bytes than are held at once."""
    return DataError(f"{place}: {noun} of more than {longest_record():,} bytes; correct it, or set {LONGEST} to more")


def lines_in(stream: IO[bytes], name: str, first: int = 1) -> Iterator[bytes]:
    """Yields lines with their ends, which are line feeds alone. Raises DataError for one longer than
    ``longest_record``. first: the number of the first line."""
    longest = longest_record()
    for number in count(first):
        line = stream.readline(longest + 1)
        if len(line) > longest:
            raise too_long(f"{name}:{number}", "a line")
        if not line:
            return
        yield line


def text_lines(stream: IO[bytes], name: str, first: int = 1) -> Iterator[str]:
    """Yields lines of text with their ends. Raises DataError, which names the line, for one that is not UTF-8 or too
    long. first: the number of the first line."""
    for number, line in enumerate(lines_in(stream, name, first), first):
        try:
            yield (without_mark(line) if number == 1 else line).decode()
        except UnicodeDecodeError as error:
            place = f"{name}:{number}: byte {error.start} of the line"
            raise DataError(f"{place} is not UTF-8 ({error.reason}); convert the file to UTF-8") from None


def whole(member: Member) -> bytes:
    """Returns all bytes of a member. Raises DataError where they are packed and more than ``longest_record``: how many
    they are is then not seen from outside."""
    if member.path is not None:
        return member.stream.read()
    content = member.stream.read(longest_record() + 1)
    if len(content) > longest_record():
        raise too_long(member.name, "a record")
    return content


def parsed(content: bytes, place: str) -> Any:
    """Parses JSON; numbers that are not finite are ``NoText``. Raises DataError, which names ``place``, where it is not
    UTF-8 or not JSON."""
    try:
        return _decoder().decode(content.decode(json.detect_encoding(content), "surrogatepass"))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place}: byte {error.start} is not UTF-8 ({error.reason}); convert the file to UTF-8"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error})") from None


@cache
def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(parse_constant=NoText, parse_float=_number)


def _number(text: str) -> float | NoText:
    number = float(text)
    return number if math.isfinite(number) else NoText(text)


class Slice(NamedTuple):
    """Consecutive rows of a file. first_row: the number of the first one, from 0. start, stop: their bytes, of parquet
    about. groups: their row groups, of parquet; None: all."""

    first_row: int
    start: int
    stop: int
    groups: tuple[int, ...] | None = None


def slices(path: Path, size: int) -> Iterator[Slice]:
    """Yields the slices of a file of JSON lines or of parquet, each of about a number of bytes, of parquet unpacked."""
    if format_of(path.name) == "parquet":
        yield from _slices_of_parquet(path, size)
        return
    row = first_row = start = position = 0
    with damage(path), path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            row, end = row + block.count(b"\n"), position + block.rfind(b"\n") + 1
            if end > position and end - start >= size:
                yield Slice(first_row, start, end)
                first_row, start = row, end
            position += len(block)
    if position > start:
        yield Slice(first_row, start, position)


def _slices_of_parquet(path: Path, size: int) -> Iterator[Slice]:
    import pyarrow
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(path)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    except (pyarrow.ArrowException, OSError):  # the reader of the file reports the fault
        yield Slice(0, 0, path.stat().st_size)
        return
    scale = path.stat().st_size / max(sum(group.total_byte_size for group in groups), 1)
    row = rows = unpacked = 0
    start, chosen = 0.0, list[int]()
    for number, group in enumerate(groups):
        chosen.append(number)
        unpacked, rows = unpacked + group.total_byte_size, rows + group.num_rows
        if unpacked >= size or number == len(groups) - 1:
            yield Slice(row, int(start), int(start + unpacked * scale), tuple(chosen))
            row, start = row + rows, start + unpacked * scale
            rows, unpacked, chosen = 0, 0, []


def line_starts(path: Path, every: int) -> Iterator[int]:
    """Yields where each line begins whose number from 0 is a multiple of ``every``, from the second such line on."""
    lines = position = 0
    with damage(path), path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while block := file.read(BLOCK):
            following = every - lines % every
            if (count := block.count(b"\n")) >= following:
                ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                starts = position + ends[following - 1 :: every] + 1
                yield from starts[starts < size].tolist()
            lines, position = lines + count, position + len(block)


class _Bytes(RawIOBase):
    """The bytes of a file up to a place."""

    def __init__(self, file: BinaryIO, remaining: int) -> None:
        self.file, self.remaining = file, remaining

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self.file.read(min(len(buffer), self.remaining))
        buffer[: len(content)] = content
        self.remaining -= len(content)
        return len(content)


def sliced(member: Member, chosen: Slice) -> Member:
    """Returns a member of JSON lines that ends where a slice does, and begins there unless it is at the beginning."""
    file = cast(BinaryIO, cast(BufferedReader, member.stream).raw)
    behind = chosen.start or member.stream.tell()
    file.seek(behind)
    return member._replace(stream=BufferedReader(_Bytes(file, chosen.stop - behind), BUFFER), path=None)


def parts(member: Member, column: str, chosen: Slice | None = None) -> Iterator[Entry]:
    """Yields the texts of a member. ``column``: the field of JSON lines or the column of parquet that holds the text.
    chosen: the slice of it that is read; None: all.

    Raises DataError: no such field or column, a line that is not JSON, a value that is not text.
    """
    kind, first = format_of(member.name), 0 if chosen is None else chosen.first_row
    if kind == "lines":
        yield from _lines(member if chosen is None else sliced(member, chosen), column, first)
    elif kind == "parquet":
        groups = None if chosen is None else chosen.groups
        for row, values in enumerate(parquet_rows(member, column, groups, first), first):
            yield _entry(row, values[column], f"{member.name}:{row + 1}", column)
    else:
        yield Entry(-1, member.stream)


def _lines(member: Member, field: str, first: int) -> Iterator[Entry]:
    for row, line in enumerate(lines_in(member.stream, member.name, first + 1), first):
        if line.isspace():
            continue
        place = f"{member.name}:{row + 1}"
        record = parsed(line, place)
        if not isinstance(record, dict):
            raise DataError(f"{place}: not a JSON object but {type(record).__name__}")
        if field not in record:
            raise DataError(f"{place}: no field {field!r}; {nearest(field, record)} (set data.source.column)")
        yield _entry(row, record[field], place, field)


def parquet_rows(
    member: Member, column: str | None = None, groups: Sequence[int] | None = None, first: int = 0
) -> Iterator[dict[str, Any]]:
    """Yields the rows of parquet as plain values by the names of their columns (``plain_values``).

    column: the one that is read; None for all. groups: the row groups that are read; None for all. first: the number of
    their first row in the file. Raises DataError where the column is missing, or the content cannot be read.
    """
    import pyarrow
    from pyarrow import parquet

    row = first
    try:
        table = parquet.ParquetFile(member.path or copied(member.stream))
        if column is not None and column not in table.schema_arrow.names:
            hint = nearest(column, table.schema_arrow.names)
            raise DataError(f"{member.name}: no column {column!r}; {hint} (set data.source.column)")
        columns = None if column is None else [column]
        # A copied process has no thread of Arrow.
        for batch in table.iter_batches(batch_size=ROWS, columns=columns, row_groups=groups, use_threads=False):
            _require_short_rows(batch, member.name, row)
            for values in batch.to_pylist():
                yield plain_values(values)
                row += 1
    except DataError:
        raise
    except pyarrow.ArrowException as error:
        raise DataError(f"{member.name}: damaged parquet ({' '.join(str(error).split())}); fetch it again") from None
    except (ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{member.name}:{row + 1}: holds an unreadable line ({reason}); correct the file") from None


def _require_short_rows(batch: Any, name: str, first: int) -> None:
    """Raises DataError, which names the row, where one has more bytes than a record may have."""
    longest = longest_record()
    if batch.nbytes > longest:
        for row in range(batch.num_rows):
            if batch.slice(row, 1).nbytes > longest:
                raise too_long(f"{name}:{first + row + 1}", "a record")


def plain_values(value: Any) -> Any:
    """Returns a value of parquet or of a data set in which texts replace the types that JSON lacks: bytes as the UTF-8
    that they are, dates, times and decimal numbers as they are written. A value without a text becomes ``NoText``."""
    if isinstance(value, dict):
        return {name: plain_values(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return NoText(json.dumps(float(value)))
    if value is None or isinstance(value, str | int | float | NoText):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return NoText("bytes that are not UTF-8", is_missing=False)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, date | time | timedelta | UUID):
        return str(value)
    return NoText(type(value).__name__, is_missing=False)


def _entry(row: int, value: object, place: str, field: str) -> Entry:
    if not isinstance(value, str):
        noun = value.noun if isinstance(value, NoText) else type(value).__name__
        raise DataError(f"{place}: {field!r} holds {noun}, not text (set data.source.column)")
    try:
        content = value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: {field!r} is not text that UTF-8 can write, at character {error.start}") from None
    return Entry(row, BytesIO(content), content)


def cut(stream: BinaryIO, piece: int, length: int | None = None) -> Iterator[bytes]:
    """Cuts a stream of bytes into consecutive pieces of at most ``piece`` bytes; reads at most ``length`` bytes.

    A piece ends after a line end where it holds one, otherwise before a UTF-8 character, so that each can be decoded.
    """
    rest, remaining = b"", length
    while True:
        size = piece - len(rest) if remaining is None else min(piece - len(rest), remaining)
        chunk = _read(stream, size)
        remaining = None if remaining is None else remaining - len(chunk)
        text = rest + chunk
        if len(text) < piece:  # only at the end: every read before it fills the piece
            if text:
                yield text
            return
        end = _end(text)
        yield text[:end]
        rest = text[end:]


def _read(stream: BinaryIO, size: int) -> bytes:
    """Reads exactly ``size`` bytes, fewer only at the end; a decompressor may return less at a time."""
    chunks: list[bytes] = []
    while size > 0 and (chunk := stream.read(size)):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _end(text: bytes) -> int:
    """Returns the position at which a piece ends."""
    return text.rfind(b"\n") + 1 or _last_character(text)


def unfinished(text: bytes, following: bytes) -> bool:
    """Whether the byte that follows a text continues its last character."""
    return _last_character(text) < len(text) and bool(following) and following[0] & 0xC0 == 0x80


def beginning(text: bytes, size: int) -> bytes:
    """Returns the first whole UTF-8 characters of a text, as many as at most ``size`` bytes hold, and at least one."""
    first = next((place for place in range(1, len(text)) if text[place] & 0xC0 != 0x80), len(text))
    return text[: max(_last_character(text[:size]), first)]


def _last_character(text: bytes) -> int:
    """Returns the position behind the last whole UTF-8 character."""
    for back in range(1, min(len(text), 4) + 1):
        byte = text[-back]
        if byte & 0xC0 != 0x80:  # the first byte of a character; those that continue one are 10xxxxxx
            width = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) - back if width > back else len(text)
    return len(text)
