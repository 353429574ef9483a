"""Yields a file as it is, or the files that unpacking an archive would leave, one after another."""

from __future__ import annotations

import posixpath
import stat
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from tempfile import NamedTemporaryFile
from typing import IO, Literal, NamedTuple
from zipfile import ZipFile, ZipInfo

from datamodules.core.errors import DataError
from datamodules.core.reading import Member, damage, format_of, is_hidden, member_of, require_regular

__all__ = ["HIDDEN", "members"]

HIDDEN = "hidden files left out"
REPLACED = "files left out that the archive holds again further on"
BROKEN_LINKS = "links omitted whose targets the archive does not hold"
NESTED = "archives within an archive left out"
DEVICES = "pipes and devices left out"
LONGEST_LINK = 4096
"""How many bytes of a link in a zip are read."""


class Stored(NamedTuple):
    """An entry of an archive. target: the path of a link, relative to its own folder if the link is symbolic."""

    name: str
    kind: Literal["file", "hard link", "symbolic link", "device"]
    target: str = ""


def members(
    path: Path, name: str, wanted: Callable[[str], object] = format_of, left_out: Counter[str] | None = None
) -> Iterator[Member]:
    """Yields the file itself, or the files of an archive whose names ``wanted`` accepts, one after another.

    A link in an archive stands for the file that it leads to. If several entries have one name, the last one counts.
    left_out: counts of the entries left out, by reason. Raises DataError for a path that is no regular file, and for a
    file that is damaged or not UTF-8.
    """
    require_regular(path)
    left_out = Counter() if left_out is None else left_out
    if format_of(path.name) != "archive":
        with damage(path), path.open("rb", buffering=0) as stream:
            yield member_of(name, stream, path)
    elif path.suffix.lower() == ".zip":
        yield from _zip_members(path, name, wanted, left_out)
    else:
        yield from _tar_members(path, name, wanted, left_out)


def _tar_members(path: Path, name: str, wanted: Callable[[str], object], left_out: Counter[str]) -> Iterator[Member]:
    with damage(path):
        with tarfile.open(path, "r|*") as archive:
            stored = [_in_tar(entry) for entry in archive if not entry.isdir()]
        names = _names(stored, wanted, left_out)
        with tarfile.open(path, "r|*") as archive:
            for number, entry in enumerate(entry for entry in archive if not entry.isdir()):
                content = archive.extractfile(entry) if number in names else None
                if content is not None:
                    yield from _named(content, name, names[number])


def _in_tar(entry: tarfile.TarInfo) -> Stored:
    if entry.isfile():
        return Stored(entry.name, "file")
    if entry.islnk() or entry.issym():
        return Stored(entry.name, "hard link" if entry.islnk() else "symbolic link", entry.linkname)
    return Stored(entry.name, "device")


def _zip_members(path: Path, name: str, wanted: Callable[[str], object], left_out: Counter[str]) -> Iterator[Member]:
    with damage(path), _not_supported(path), ZipFile(path) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        names = _names([_in_zip(archive, entry) for entry in entries], wanted, left_out)
        for number, entry in enumerate(entries):
            if number in names:
                with archive.open(entry) as content:
                    yield from _named(content, name, names[number])


@contextmanager
def _not_supported(path: Path) -> Iterator[None]:
    """Turns the errors of a zip that requires a password, or a feature that the library lacks, into a DataError."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}); pack it anew, without a password") from None


def _in_zip(archive: ZipFile, entry: ZipInfo) -> Stored:
    if stat.S_ISLNK(entry.external_attr >> 16):
        with archive.open(entry) as link:
            return Stored(entry.filename, "symbolic link", link.read(LONGEST_LINK).decode(errors="surrogateescape"))
    return Stored(entry.filename, "file")


def _names(stored: Sequence[Stored], wanted: Callable[[str], object], left_out: Counter[str]) -> dict[int, list[str]]:
    """Returns the names under which the content of each file is read, by its number in the archive; counts the rest."""
    numbers = defaultdict[str, list[int]](list)
    for number, entry in enumerate(stored):
        numbers[_place(entry.name)].append(number)
    last = {place: every[-1] for place, every in numbers.items()}

    def content_of(number: int, passed: tuple[int, ...] = ()) -> int | None:
        """Returns the number of the file whose content is there once all is unpacked."""
        entry = stored[number]
        if entry.kind in ("file", "device") or number in passed:
            return number if entry.kind == "file" else None
        if entry.kind == "hard link":  # it stays the file that was there when it was unpacked
            target = max((other for other in numbers.get(_place(entry.target), ()) if other < number), default=None)
        elif entry.target.startswith("/"):
            return None
        else:
            target = last.get(_place(posixpath.join(posixpath.dirname(entry.name), entry.target)))
        return None if target is None else content_of(target, (*passed, number))

    names = defaultdict[int, list[str]](list)
    for number, entry in enumerate(stored):
        if not wanted(entry.name):
            continue
        content = content_of(number)
        if is_hidden(entry.name):
            left_out[HIDDEN] += 1
        elif number != last[_place(entry.name)]:
            left_out[REPLACED] += 1
        elif format_of(entry.name) == "archive":
            left_out[NESTED] += 1
        elif content is None:
            left_out[DEVICES if entry.kind == "device" else BROKEN_LINKS] += 1
        else:
            names[content].append(entry.name)
    return dict(names)


def _place(name: str) -> str:
    """Returns where a name of an archive is unpacked."""
    return posixpath.normpath(name).lstrip("/")


def _named(content: IO[bytes], archive: str, names: Iterable[str]) -> Iterator[Member]:
    """Yields a file of an archive once under each of its names."""
    first, *others = names
    if not others:
        yield member_of(f"{archive}/{PurePosixPath(first)}", content)
        return
    with NamedTemporaryFile() as copy:
        copyfileobj(content, copy)
        copy.flush()
        for name in (first, *others):
            with Path(copy.name).open("rb") as again:
                yield member_of(f"{archive}/{PurePosixPath(name)}", again)
