"""Parallel files: line n of one is the translation of line n of the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from datamodules.documents import SPLITS, Split
from datamodules.errors import DataError
from datamodules.index import IndexedCorpus, Text, index_corpus
from datamodules.pairs_source import Languages
from datamodules.pairs_store import WHOLE, TextPairsConfig, Texts, pair_text
from datamodules.reading import COMPRESSIONS, damage, members
from datamodules.sources import SPLIT_NAMES, Listed, locate, stamps

__all__ = ["Multi30kConfig", "ParallelConfig"]

PLACE = "{}"
"""Where the language stands in the name of a file."""


class ParallelConfig(TextPairsConfig, kind="parallel"):
    """Two files a split, one a language, with as many lines: train.en and train.de; plain or .gz, .bz2, .xz.

    path        the folder, relative to LIT_DATA or to the working folder
    source      the languages, as the files' names end
    target
    train       what the files of a split are called before that, such as test_2016_flickr; {} where the language stands
    validation  elsewhere: corpus.{}.txt. None: the one name that begins with the split's (train; val, valid or dev;
    test        test); a split that no file names has no pairs
    """

    path: str
    source: str = "en"
    target: str = "de"
    train: str | None = None
    validation: str | None = None
    test: str | None = None

    def conflicts(self) -> Iterator[str]:
        if self.source == self.target:
            yield f"source and target are both {self.source!r}: pairs are of two languages"

    @property
    def languages(self) -> Languages | None:
        return self.source, self.target

    def corpus(self) -> IndexedCorpus:
        folder = locate(self.path)
        if not folder.is_dir():
            raise DataError(f"{folder}: a file; source.path is the folder of files such as train.{self.source}")
        found = [(split, self._both(folder, split)) for split in SPLITS]
        files = [(split, both) for split, both in found if both is not None]
        key = ["parallel", [[split, stamps([*both])] for split, both in files]]
        return index_corpus(key, "", WHOLE, (text for split, both in files for text in _texts(split, both)))

    def _both(self, folder: Path, split: Split) -> _Both | None:
        """The two files of a split; None where none is named and none found."""
        named: str | None = getattr(self, split)
        if named is None and (named := self._name(folder, split)) is None:
            return None
        template = named if PLACE in named else f"{named}.{PLACE}"
        names = [template.replace(PLACE, language) for language in (self.source, self.target)]
        return _Both(*(_file(folder, name) for name in names))

    def _name(self, folder: Path, split: Split) -> str | None:
        """The one name of files of both languages that begins as the split is called."""
        ends = [f".{language}" for language in (self.source, self.target)]
        files = [_plain_name(path.name) for path in sorted(folder.iterdir()) if path.is_file()]
        stems = {name.removesuffix(end) for end in ends for name in files if name.endswith(end)}
        own = sorted(stem for stem in stems if _begins(stem) == split)
        if len(own) > 1:
            raise DataError(
                f"{folder}: several files for {split} ({', '.join(own)}); set source.{split} to one of them"
            )
        if not own and split == "train":
            raise DataError(
                f"{folder}: no files train{ends[0]} and train{ends[1]}; set source.path, source.source, source.target "
                "or source.train to what is there"
            )
        return own[0] if own else None


class Multi30kConfig(TextPairsConfig, kind="multi30k"):
    """Captions of images in en, de, fr and cs (Multi30k, Elliott et al. 2016, arXiv:1605.00459).

    path    a folder with train.en.gz, val.en.gz, test_2016_flickr.en.gz and the like
    source  the languages
    target
    test    the test set; the published numbers are of test2016, test2017 and coco2017
    """

    path: str = "multi30k"
    source: Literal["en", "de", "fr", "cs"] = "en"
    target: Literal["en", "de", "fr", "cs"] = "de"
    test: Literal["test2016", "test2017", "coco2017", "test2018"] = "test2016"

    def conflicts(self) -> Iterator[str]:
        if self.source == self.target:
            yield f"source and target are both {self.source!r}: pairs are of two languages"

    @property
    def languages(self) -> Languages | None:
        return self.source, self.target

    def corpus(self) -> IndexedCorpus:
        year = self.test[-4:]
        test = f"test_{year}_{'mscoco' if self.test.startswith('coco') else 'flickr'}"
        named = {"train": "train", "validation": "val", "test": test}
        return ParallelConfig(path=self.path, source=self.source, target=self.target, **named).corpus()


class _Both(NamedTuple):
    source: Listed
    target: Listed


def _plain_name(name: str) -> str:
    """The name of a file without its compression's suffix."""
    stem, dot, suffix = name.rpartition(".")
    return stem if f"{dot}{suffix}" in COMPRESSIONS else name


def _begins(stem: str) -> Split | None:
    """The split whose name a file's begins with: train.clean, test_2016_flickr, test2016."""
    word = re.match("[a-z]*", stem.lower())
    return SPLIT_NAMES.get(word.group()) if word else None


def _file(folder: Path, name: str) -> Listed:
    for suffix in ("", *COMPRESSIONS):
        if (path := folder / f"{name}{suffix}").is_file():
            return Listed(path, f"{name}{suffix}")
    raise DataError(
        f"{folder / name}: no such file, nor with {', '.join(COMPRESSIONS)}; correct source.path or the names"
    )


def _texts(split: Split, both: _Both) -> Iterator[Text]:
    counts = [0, 0]
    for row, lines in enumerate(zip_longest(*(_lines(file) for file in both))):
        for side, line in enumerate(lines):
            counts[side] += line is not None
        source, target = lines
        if source is not None and target is not None:
            yield pair_text(both.source.name, split, row, Texts(source, (target,)), both.source.path)
    for file, count in zip(both, counts, strict=True):
        if not count:
            raise DataError(f"{file.path}: empty, there is no line to read; fetch it again or correct source.path")
    if counts[0] != counts[1]:
        raise DataError(
            f"{both.source.path} has {counts[0]:,} lines and {both.target.name} {counts[1]:,}: parallel files have as "
            "many, and line n of one stands for line n of the other; correct them"
        )


def _lines(file: Listed) -> Iterator[str]:
    """The lines of a file, which a line feed alone ends. Raises DataError for one that is not UTF-8."""
    with damage(file.path):
        for member in members(*file):
            for number, line in enumerate(member.stream, 1):
                yield _line(line, file.path, number)


def _line(line: bytes, path: Path, number: int) -> str:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: byte {error.start} of the line is not UTF-8 ({error.reason}); convert the file to UTF-8"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
