"""Sources of text. A source's config stands in the table SOURCES and builds a corpus.

Every source cuts documents larger than ``piece`` bytes into consecutive pieces, each a separate document, so that
memory use stays constant and one huge file can fill many lanes.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, ClassVar, Literal, NamedTuple, cast

from pydantic import Field

from datamodules.core.archives import HIDDEN, members
from datamodules.core.documents import Corpus, Split
from datamodules.core.errors import DataError
from datamodules.core.index import CorpusPart, Text, index_corpus, index_parts, normal
from datamodules.core.reading import (
    COMPRESSIONS,
    Entry,
    Member,
    Slice,
    damage,
    format_of,
    is_hidden,
    lines_in,
    locate,
    parts,
    require_regular,
    slices,
    unfinished,
)
from datamodules.text.articles import articles
from datamodules.text.english_pairs import english_pairs
from lit_transformers.config import Config, Fraction

__all__ = [
    "NOT_SOURCE",
    "SPLIT_NAMES",
    "BooksConfig",
    "FilesConfig",
    "Listed",
    "SourceConfig",
    "StdlibConfig",
    "WikitextConfig",
    "files_of",
    "generated_texts",
    "is_library",
    "named_split",
    "nothing_left",
    "split_by_hash",
    "stamps",
    "walk",
]

Piece = Annotated[int, Field(ge=64)]
"""A number of bytes; a piece must hold some characters of UTF-8."""

NOT_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
FOLDER_LINKS = "links to folders left out"
SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
OF_RECORDS = ("lines", "parquet")
"""Formats of which a file holds many texts."""
PART = 1 << 26
"""About how many bytes, unpacked, another process reads. A kept part is one of this size: raise ``index.VERSION``."""
UNPACKED = 4
"""About how many times its size a compressed file has when it is unpacked."""
NO_SPLIT = "its name and folders name no split (train, validation or test); set data.source.splits=hash, or rename it"


class FirstLag(NamedTuple):
    """Letters of an alphabet of ``symbols`` repeat the one at a ``distance`` before them with a ``probability``.
    further: the next distance at which they repeat one."""

    distance: int
    further: int
    probability: float
    symbols: int


class SourceConfig(Config):
    """Base of every source's config. ``piece``: the maximum number of bytes of a document. ``parallel``: whether a
    document is two lines, a text and its translation, and each line one sentence. ``generated``: whether documents are
    drawn from an alphabet or words of the source's own, which its fields decide."""

    parallel: ClassVar[bool] = False
    generated: ClassVar[bool] = False

    piece: Piece = 262_144

    def build(self) -> Corpus:
        """Opens the corpus; expensive steps are done once and cached. Raises DataError."""
        raise NotImplementedError

    def reading_messages(self) -> list[str]:
        """Hook: returns sentences on how the source is read that its config does not say. Raises DataError."""
        return []

    @property
    def cuts_in_order(self) -> bool:
        """Hook: whether the splits are parts of files in their order. By default they are not."""
        return False

    def known_losses(self) -> Mapping[str, float]:
        """Hook: returns mean losses of a document in bits per byte that are known beforehand, by the knowledge of a
        model: from the loss of a model that knows nothing but the symbols to the least possible one. Empty where none
        are known."""
        return {}

    def first_lag(self) -> FirstLag | None:
        """Hook: returns how often symbols repeat those at the shortest distance at which they do so on purpose; None
        where they do at no more than one."""
        return None

    def known_masked_losses(self) -> Mapping[str, float]:
        """Hook: returns mean losses in bits of a word that is hidden, and known to be, in the same manner."""
        return {}

    def phrases(self) -> Mapping[str, Sequence[str]]:
        """Hook: returns phrases that are known beforehand, by type, as of named entities. Empty where none are."""
        return {}

    def minimal_pairs(self, number: int) -> Mapping[str, tuple[bytes, bytes]]:
        """Hook: returns a pair of documents for each rule that documents of the source obey: one that obeys it, and one
        that breaks it and differs in nothing else (arXiv:1912.00582). Every ``number`` has others. None by default."""
        return {}


def hashed(name: str | bytes) -> float:
    """Returns a number from 0 to 1 that a name or a text determines, however its lines end, uniform over names."""
    key = normal(name.encode(errors="surrogatepass") if isinstance(name, str) else name)
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") / 2**64


def split_by_hash(name: str | bytes, validation: float, test: float) -> Split:
    """Returns the split of a document from its name alone, or of a text from its content, so that others may come or
    go."""
    fraction = hashed(name)
    return "test" if fraction < test else "validation" if fraction < test + validation else "train"


def generated_texts(
    noun: str, count: int, generate: Callable[[int], bytes], validation: float, test: float
) -> Iterator[Text]:
    """Yields documents that are generated from their numbers, named ``<noun> <number>`` and split by these names."""
    for number in range(count):
        name = f"{noun} {number}"
        yield Text(name, split_by_hash(name, validation, test), BytesIO(generate(number)), Path(name))


def nothing_left(validation: float, test: float) -> Iterator[str]:
    """Yields the conflict of a source whose fractions for validation and test leave nothing for training."""
    if validation + test >= 1:
        yield f"validation {validation} and test {test} leave nothing to train on"


class StdlibConfig(SourceConfig, kind="stdlib"):
    """The source of the running Python's standard library: every .py file, without tests and installed packages.

    Files that are generated for one machine (``_sysconfigdata``) are left out. Documents are split by a hash of
    their names. The fingerprint carries the version of Python.
    training: the share of the documents that are neither for validation nor for the test that is trained on. With less
    than all, training reads the same text several times, which an n-gram model gains less from than a network does.
    """

    validation: Fraction = 0.05
    test: Fraction = 0.05
    training: Annotated[float, Field(gt=0, le=1)] = 1.0

    def build(self) -> Corpus:
        folder = Path(sysconfig.get_paths()["stdlib"])
        held_out = self.validation + self.test
        last = held_out + (1 - held_out) * self.training
        files = [
            Listed(path, name) for path, name in walk(folder, NOT_SOURCE) if is_library(name) and hashed(name) <= last
        ]
        texts = (
            Text(name, split_by_hash(name, self.validation, self.test), member.stream, path, path)
            for path, name in files
            for member in members(path, name)
        )
        key = [self.to_dict(), platform.python_version(), stamps(files)]
        return index_corpus(key, f"python-{platform.python_version()}-", self.piece, texts)


def is_library(name: str) -> bool:
    """Whether a file is source code that people wrote: a .py file that was not generated for one machine."""
    path = Path(name)
    return path.suffix == ".py" and not path.name.startswith("_sysconfigdata")


class FilesConfig(SourceConfig, kind="files"):
    """A file, or all files of a folder or an archive whose names imply a format. Hidden files are left out.

    path    relative to LIT_DATA or to the working folder
    column  the field of JSON lines, or the column of parquet, that holds the text
    splits  hash: by a hash of each document's name, and of the contents of records, so that equal ones share a split;
            where path is one file of text, which would be in one split as a whole, it is cut in order. folders: by the
            folder or file names (train, validation, test). order: the first bytes of every file are for training, the
            next for validation, the last for test, as enwik8 is used
    """

    path: str
    column: str = "text"
    splits: Literal["hash", "folders", "order"] = "hash"
    validation: Fraction = 0.05
    test: Fraction = 0.05

    def conflicts(self) -> Iterator[str]:
        yield from nothing_left(self.validation, self.test)

    def build(self) -> Corpus:
        left_out = Counter[str]()
        files = files_of(self.path, left_out=left_out)
        size = sum(file.path.stat().st_size for file in files)
        return index_parts([self.to_dict(), stamps(files)], "", self.piece, self._parts(files), left_out, size)

    def reading_messages(self) -> list[str]:
        if self.splits == "order" or not self.cuts_in_order:
            return []
        training = 1 - self.validation - self.test
        return [
            f"{self.path} is one file of text and cut in order: the first {training:.3g} of it for training, the next "
            f"{self.validation:.3g} for validation, the last {self.test:.3g} for the test"
        ]

    @property
    def cuts_in_order(self) -> bool:
        """Whether splits are made by place in a file: where that is set, or a hash would give one file to one split."""
        if self.splits != "hash":
            return self.splits == "order"
        location = locate(self.path)
        return location.is_file() and format_of(location.name) not in (*OF_RECORDS, "archive")

    def _parts(self, files: list[Listed]) -> Iterator[CorpusPart]:
        """Yields the parts of the corpus: files or slices of them, as many together as are worth a process."""
        together: list[_Sliced] = []
        for one in self._sliced(files):
            if together and (one.apart != together[0].apart or sum(each.unpacked for each in together) >= PART):
                yield self._part(together)
                together = []
            together.append(one)
        if together:
            yield self._part(together)

    def _sliced(self, files: list[Listed]) -> Iterator[_Sliced]:
        for file in files:
            name, size = file.path.name, file.path.stat().st_size
            is_packed = PurePosixPath(name.lower()).suffix in COMPRESSIONS or format_of(name) == "archive"
            if is_packed or format_of(name) not in OF_RECORDS:
                yield _Sliced(file, None, size, UNPACKED * size if is_packed else size, apart=is_packed)
                continue
            for chosen in slices(file.path, PART):
                length = chosen.stop - chosen.start
                yield _Sliced(file, chosen, length, length, apart=True)

    def _part(self, together: list[_Sliced]) -> CorpusPart:
        return CorpusPart(partial(self._texts, together), sum(one.size for one in together), together[0].apart)

    def _texts(self, together: Iterable[_Sliced], left_out: Counter[str]) -> Iterator[Text]:
        in_order = self.cuts_in_order
        for (path, name), chosen, *_ in together:
            for member in members(path, name, left_out=left_out):
                if in_order:
                    yield from self._in_order(path, member)
                    continue
                with damage(path):
                    for part in parts(member, self.column, chosen):
                        text_path = member.path if part.row < 0 else None
                        yield Text(member.name, self._split(member, part), part.stream, path, text_path, part.row)

    def _split(self, member: Member, part: Entry) -> Split:
        if self.splits == "folders":
            return named_split(member.name)
        name = member.name if part.content is None else part.content
        return split_by_hash(name, self.validation, self.test)

    def _in_order(self, path: Path, member: Member) -> Iterator[Text]:
        if format_of(member.name) in OF_RECORDS or format_of(path.name) == "archive":
            reason = "data.source.splits=order cuts plain text by bytes"
            raise DataError(f"{member.name}: {reason}; set data.source.splits=hash")
        size = path.stat().st_size if member.path else _unpacked_size(path, member.name)
        test, validation = int(size * self.test), int(size * self.validation)
        sizes: list[tuple[Split, int]] = [("train", size - test - validation), ("validation", validation)]
        end = offset = 0
        for split, length in [*sizes, ("test", test)]:
            end += length
            part = _Part(member.stream, max(end - offset, 0))
            yield Text(member.name, split, cast(BinaryIO, part), path, member.path, offset=offset)
            offset += part.taken


class _Sliced(NamedTuple):
    """A file, or a slice of it. size: its bytes in the file. unpacked: about how many they are when it is unpacked.
    apart: as in ``index.CorpusPart``."""

    file: Listed
    chosen: Slice | None
    size: int
    unpacked: int
    apart: bool


class _Part:
    """The next ``length`` bytes of a stream, up to the end of the character that the last one belongs to."""

    def __init__(self, stream: BinaryIO, length: int) -> None:
        self.stream, self.length = cast(BufferedReader, stream), length
        self.taken, self.end = 0, b""

    def read(self, size: int) -> bytes:
        if self.taken == self.length and unfinished(self.end, self.stream.peek(1)[:1]):
            self.length += 1
        content = self.stream.read(min(size, self.length - self.taken))
        self.taken += len(content)
        self.end = (self.end + content)[-4:]
        return content


class BooksConfig(SourceConfig, kind="books"):
    """Whole books in a folder or a tar with train/, validation/ and test/, as in PG-19 (arXiv:1911.05507)."""

    path: str = "gutenberg-books"

    def build(self) -> Corpus:
        return FilesConfig(path=self.path, piece=self.piece, splits="folders").build()

    def minimal_pairs(self, number: int) -> Mapping[str, tuple[bytes, bytes]]:
        return english_pairs(number)


class WikitextConfig(SourceConfig, kind="wikitext"):
    """WikiText (arXiv:1609.07843): files such as wiki.train.tokens and wiki.valid.tokens; an article is a document."""

    path: str = "wikitext-2"

    def build(self) -> Corpus:
        left_out = Counter[str]()
        files = [file for file in files_of(self.path, left_out=left_out) if format_of(file.path.name) == "text"]
        return index_corpus([self.to_dict(), stamps(files)], "", self.piece, self._texts(files), left_out)

    def minimal_pairs(self, number: int) -> Mapping[str, tuple[bytes, bytes]]:
        return english_pairs(number)

    def _texts(self, files: list[Listed]) -> Iterator[Text]:
        for path, name in files:
            for member in members(path, name):
                with damage(path):
                    for title, text in articles(lines_in(member.stream, name)):
                        yield Text(f"{name}: {title}", named_split(name), text, path)


class Listed(NamedTuple):
    """A file and its name in its folder."""

    path: Path
    name: str


def files_of(
    path: str, wanted: Callable[[str], object] = format_of, left_out: Counter[str] | None = None
) -> list[Listed]:
    """Returns a file, or the files of a folder whose names ``wanted`` accepts, without hidden ones, which ``left_out``
    counts. Raises DataError where all are empty, or one is no regular file."""
    location, left_out = locate(path), Counter() if left_out is None else left_out
    if location.is_file():
        files = [Listed(location, location.name)]
    else:
        every = [Listed(file, name) for file, name in walk(location) if wanted(name)]
        files = [file for file in every if not is_hidden(file.name)]
        left_out.update({HIDDEN: len(every) - len(files)} if len(files) < len(every) else {})
        left_out.update({FOLDER_LINKS: count} if (count := _links_to_folders(location)) else {})
    for file in files:
        require_regular(file.path)
    if not any(file.path.stat().st_size for file in files):
        counts = "".join(f", {count:,} {reason}" for reason, count in left_out.items())
        raise DataError(f"{location}: empty, there is no text to read{counts}; correct data.source.path")
    return files


def _links_to_folders(folder: Path) -> int:
    """Returns how many links below a folder lead to folders, which are not followed; hidden ones do not count."""
    names = (Path(path, name) for path, folders, _ in os.walk(folder) for name in folders)
    return sum(place.is_symlink() and not is_hidden(place.relative_to(folder).as_posix()) for place in names)


def walk(folder: Path, without: Collection[str] = ()) -> list[tuple[Path, str]]:
    """Returns the files below a folder with their names in it, in order; folders named in ``without`` are skipped."""
    paths = []
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in without]
        paths += [Path(path, name) for name in files]
    return sorted((file, file.relative_to(folder).as_posix()) for file in paths)


def stamps(files: list[Listed]) -> list[list[str | int]]:
    """Returns data that changes when a file does, by which a cached index is known to be current."""
    stats = [(file, file.path.stat()) for file in files]
    return [[str(file.path.resolve()), file.name, stat.st_size, stat.st_mtime_ns] for file, stat in stats]


def named_split(name: str) -> Split:
    """Returns the split that a file's name or folders name, the last one; where no whole word does, one next to digits,
    as in wnut17train. Raises DataError where they name none."""
    for between in (r"[/._\-]", r"[/._\-\d]"):
        for word in reversed(re.split(between, name.lower())):
            if word in SPLIT_NAMES:
                return SPLIT_NAMES[word]
    raise DataError(f"{name}: {NO_SPLIT}")


def _unpacked_size(path: Path, name: str) -> int:
    """Returns the number of bytes of a compressed file's content."""
    size = 0
    with damage(path):
        for member in members(path, name):
            while chunk := member.stream.read(1 << 20):
                size += len(chunk)
    return size
