"""Opens files by their names: text, JSON lines, parquet; plain, compressed or inside a tar."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, NamedTuple, cast

from datamodules.core.errors import DataError
from lit_transformers.config import existing, named_by, nearest

__all__ = [
    "COMPRESSIONS",
    "OPEN_FILES",
    "Entry",
    "Format",
    "Member",
    "beginning",
    "cut",
    "damage",
    "format_of",
    "locate",
    "members",
    "parts",
]

COMPRESSIONS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
TAR_SUFFIXES = (".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".tbz2", ".txz")
TEXT_SUFFIXES = {".txt", ".text", ".py", ".md", ".rst", ".xml", ".raw", ".tokens"}
LINES_SUFFIXES = {".jsonl", ".ndjson"}

OPEN_FILES = 32
"""How many corpora, or splits of one, each cache of a process holds open. What was used least recently is closed, as a
process may open few files and a mapped one counts."""

Format = Literal["text", "lines", "parquet", "tar"]


class Member(NamedTuple):
    """One file, or one file of a tar: ``path`` is set where the bytes can be read again in place."""

    name: str
    stream: BinaryIO
    path: Path | None


class Entry(NamedTuple):
    """One text of a member: ``row`` counts within JSON lines and parquet and is -1 where the file is one text."""

    row: int
    stream: BinaryIO


def locate(path: str, field: str = "data.source.path", variables: Sequence[str] = ("LIT_DATA",)) -> Path:
    """Returns a path below the folder that LIT_DATA names, or as it is. Raises DataError where neither exists.

    field: the field of the config that names it. variables: environment variables in place of LIT_DATA.
    """
    place = existing(path, *variables)
    if place is None:
        bases = "; ".join(map(named_by, variables))
        raise DataError(f"{path}: no such file or folder ({bases}); correct {field} or {' or '.join(variables)}")
    return place


def format_of(name: str) -> Format | None:
    """Returns the format that a file's name implies, whatever its compression; None where it implies none."""
    path = PurePosixPath(name.lower())
    if path.name.endswith(TAR_SUFFIXES):
        return "tar"
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
    except (EOFError, OSError, lzma.LZMAError, zlib.error, tarfile.TarError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path}: cannot be read, damaged or not what its name says ({reason}); fetch it again"
        ) from None


def members(path: Path, name: str, wanted: Callable[[str], object] = format_of) -> Iterator[Member]:
    """Yields the file itself, or the files of a tar whose names ``wanted`` accepts, one after another."""
    if format_of(path.name) == "tar":
        yield from _tar_members(path, name, wanted)
        return
    opener = COMPRESSIONS.get(path.suffix.lower())
    with damage(path), opener(path) if opener else path.open("rb") as stream:
        yield Member(name, cast(BinaryIO, stream), None if opener else path)


def _tar_members(path: Path, name: str, select: Callable[[str], object]) -> Iterator[Member]:
    with damage(path), tarfile.open(path, "r|*") as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.isfile() and select(entry.name) else None
            if content is not None:
                opener = COMPRESSIONS.get(PurePosixPath(entry.name.lower()).suffix)
                unpacked = opener(content) if opener else content
                yield Member(f"{name}/{PurePosixPath(entry.name)}", cast(BinaryIO, unpacked), None)


def parts(member: Member, column: str) -> Iterator[Entry]:
    """Yields the texts of a member. ``column``: the field of JSON lines or the column of parquet that holds the text.

    Raises DataError: no such field or column, a line that is not JSON, a value that is not text.
    """
    kind = format_of(member.name)
    if kind == "lines":
        yield from _lines(member, column)
    elif kind == "parquet":
        yield from _parquet(member, column)
    else:
        yield Entry(-1, member.stream)


def _lines(member: Member, field: str) -> Iterator[Entry]:
    for row, line in enumerate(member.stream):
        if not line.strip():
            continue
        place = f"{member.name}:{row + 1}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: not a line of JSON ({error})") from None
        if not isinstance(record, dict):
            raise DataError(f"{place}: not a JSON object but {type(record).__name__}")
        if field not in record:
            raise DataError(f"{place}: no field {field!r}; {nearest(field, record)} (set data.source.column)")
        yield Entry(row, _text(record[field], place, field))


def _parquet(member: Member, column: str) -> Iterator[Entry]:
    import pyarrow
    from pyarrow import parquet

    try:
        source = member.path or BytesIO(member.stream.read())
        table = parquet.ParquetFile(source)
        if column not in table.schema_arrow.names:
            hint = nearest(column, table.schema_arrow.names)
            raise DataError(f"{member.name}: no column {column!r}; {hint} (set data.source.column)")
        row = 0
        for batch in table.iter_batches(batch_size=1024, columns=[column]):
            for value in batch.column(0).to_pylist():
                yield Entry(row, _text(value, f"{member.name}:{row + 1}", column))
                row += 1
    except pyarrow.ArrowException as error:
        raise DataError(f"{member.name}: damaged parquet ({' '.join(str(error).split())}); fetch it again") from None


def _text(value: object, place: str, field: str) -> BinaryIO:
    if not isinstance(value, str):
        raise DataError(f"{place}: {field!r} holds {type(value).__name__}, not text (set data.source.column)")
    try:
        return BytesIO(value.encode())
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: {field!r} is not text that UTF-8 can write, at character {error.start}") from None


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
