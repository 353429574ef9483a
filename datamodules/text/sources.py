"""Sources of text. A source's config stands in the table SOURCES and builds a corpus.

Every source cuts documents larger than ``piece`` bytes into consecutive pieces, each a document of its own, so that
memory use stays constant and one huge file can fill many lanes.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sysconfig
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from datamodules.core.documents import Corpus, Split
from datamodules.core.errors import DataError
from datamodules.core.index import Text, index_corpus
from datamodules.core.reading import Member, damage, format_of, locate, members, parts
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
SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
NO_SPLIT = "its name and folders name no split (train, validation or test); set data.source.splits=hash, or rename it"


class SourceConfig(Config):
    """Base of every source's config. ``piece``: the maximum number of bytes of a document. ``parallel``: whether a
    document is two lines, a text and its translation, and each line one sentence."""

    parallel: ClassVar[bool] = False

    piece: Piece = 262_144

    def build(self) -> Corpus:
        """Opens the corpus; what is expensive is done once and cached. Raises DataError."""
        raise NotImplementedError

    def known_losses(self) -> Mapping[str, float]:
        """Hook: returns mean losses of a document in bits per byte that are known beforehand, by what a model knows:
        from that of who knows nothing but the symbols to the least possible one. Empty where none are known."""
        return {}

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
    """Returns a number from 0 to 1 that a name determines, uniform over names."""
    key = name.encode() if isinstance(name, str) else name
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") / 2**64


def split_by_hash(name: str | bytes, validation: float, test: float) -> Split:
    """Returns the split of a document from its name alone, so that other documents may come or go."""
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
    """A file, or all files of a folder whose names imply a format.

    path    relative to LIT_DATA or to the working folder
    column  the field of JSON lines, or the column of parquet, that holds the text
    splits  hash: by a hash of each document's name. folders: by the folder or file names (train, validation, test).
            order: the first bytes of every file are for training, the next for validation, the last for test, as
            enwik8 is used
    """

    path: str
    column: str = "text"
    splits: Literal["hash", "folders", "order"] = "hash"
    validation: Fraction = 0.05
    test: Fraction = 0.05

    def conflicts(self) -> Iterator[str]:
        yield from nothing_left(self.validation, self.test)

    def build(self) -> Corpus:
        files = files_of(self.path)
        return index_corpus([self.to_dict(), stamps(files)], "", self.piece, self._texts(files))

    def _texts(self, files: list[Listed]) -> Iterator[Text]:
        for path, name in files:
            for member in members(path, name):
                if self.splits == "order":
                    yield from self._in_order(path, member)
                    continue
                with damage(path):
                    for part in parts(member, self.column):
                        origin = f"{member.name}:{part.row}" if part.row >= 0 else member.name
                        split = named_split(member.name) if self.splits == "folders" else self._hashed(origin)
                        text_path = member.path if part.row < 0 else None
                        yield Text(member.name, split, part.stream, path, text_path, part.row)

    def _hashed(self, name: str) -> Split:
        return split_by_hash(name, self.validation, self.test)

    def _in_order(self, path: Path, member: Member) -> Iterator[Text]:
        if format_of(member.name) in ("lines", "parquet") or format_of(path.name) == "tar":
            reason = "data.source.splits=order cuts plain text by bytes"
            raise DataError(f"{member.name}: {reason}; set data.source.splits=hash")
        size = path.stat().st_size if member.path else _unpacked_size(path, member.name)
        test, validation = int(size * self.test), int(size * self.validation)
        sizes: list[tuple[Split, int]] = [("train", size - test - validation), ("validation", validation)]
        offset = 0
        for split, length in [*sizes, ("test", test)]:
            yield Text(member.name, split, member.stream, path, member.path, offset=offset, length=length)
            offset += length


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
        files = [file for file in files_of(self.path) if format_of(file.path.name) == "text"]
        return index_corpus([self.to_dict(), stamps(files)], "", self.piece, self._texts(files))

    def minimal_pairs(self, number: int) -> Mapping[str, tuple[bytes, bytes]]:
        return english_pairs(number)

    def _texts(self, files: list[Listed]) -> Iterator[Text]:
        for path, name in files:
            for member in members(path, name):
                with damage(path):
                    for title, text in articles(member.stream):
                        yield Text(f"{name}: {title}", named_split(name), text, path)


class Listed(NamedTuple):
    """A file and its name in its folder."""

    path: Path
    name: str


def files_of(path: str, wanted: Callable[[str], object] = format_of) -> list[Listed]:
    """Returns a file, or the files of a folder whose names ``wanted`` accepts. Raises DataError where all are empty."""
    location = locate(path)
    if location.is_file():
        files = [Listed(location, location.name)]
    else:
        files = [Listed(file, name) for file, name in walk(location) if wanted(name)]
    if not any(file.path.stat().st_size for file in files):
        raise DataError(f"{location}: empty, there is no text to read; correct data.source.path")
    return files


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
    """Returns the split that a file's name or folders name, the last one. Raises DataError where they name none."""
    for word in reversed(re.split(r"[/._\-]", name.lower())):
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
