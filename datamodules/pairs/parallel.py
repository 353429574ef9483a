"""Parallel files: line n of one is the translation of line n of the other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

from datamodules.core.archives import members
from datamodules.core.documents import SPLITS, Split
from datamodules.core.errors import DataError
from datamodules.core.index import CorpusPart, IndexedCorpus, Text, index_parts
from datamodules.core.reading import (
    COMPRESSIONS,
    Slice,
    damage,
    line_starts,
    locate,
    require_regular,
    sliced,
    text_lines,
)
from datamodules.pairs.source import Languages
from datamodules.pairs.stored_pairs import WHOLE, TextPairsConfig, Texts, pair_text
from datamodules.text.sources import PART, SPLIT_NAMES, Listed, stamps

__all__ = ["Multi30kConfig", "ParallelConfig"]

LINES = 1 << 18
"""How many lines another process reads. A kept part is one of them: raise ``index.VERSION``."""
PLACE = "{}"
"""The place of the language in the name of a file."""


class ParallelConfig(TextPairsConfig, kind="parallel"):
    """Two files per split, one per language, with equal numbers of lines: train.en, train.de; plain or .gz, .bz2, .xz.

    path        the folder, relative to LIT_DATA or to the working folder
    source      the languages, which are the suffixes of the files' names
    target
    train       the files' names before the suffix, such as test_2016_flickr, or with {} in the place of the language,
    validation  such as corpus.{}.txt. None: the one name that begins with the split's (train; val, valid or dev; test);
    test        a split without files has no pairs
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
            raise DataError(f"{folder}: a file; data.source.path is the folder of files such as train.{self.source}")
        candidates = [(split, self._file_pair(folder, split)) for split in SPLITS]
        files = [(split, file_pair) for split, file_pair in candidates if file_pair is not None]
        key = ["parallel", [[split, stamps([*file_pair])] for split, file_pair in files]]
        size = sum(file.path.stat().st_size for _, file_pair in files for file in file_pair)
        parts = (part for split, file_pair in files for part in _parts(split, file_pair))
        return index_parts(key, "", WHOLE, parts, Counter(), size)

    def _file_pair(self, folder: Path, split: Split) -> _FilePair | None:
        """Returns the two files of a split; None where no name is set and no file is there."""
        stem: str | None = getattr(self, split)
        if stem is None and (stem := self._name(folder, split)) is None:
            return None
        template = stem if PLACE in stem else f"{stem}.{PLACE}"
        names = [template.replace(PLACE, language) for language in (self.source, self.target)]
        return _FilePair(*(_file(folder, name) for name in names))

    def _name(self, folder: Path, split: Split) -> str | None:
        """Returns the one name of files of both languages that begins with the split's name. Raises DataError."""
        suffixes = [f".{language}" for language in (self.source, self.target)]
        files = [_plain_name(path.name) for path in sorted(folder.iterdir()) if path.is_file()]
        stems = {name.removesuffix(suffix) for suffix in suffixes for name in files if name.endswith(suffix)}
        matching = sorted(stem for stem in stems if _split_of_stem(stem) == split)
        if len(matching) > 1:
            raise DataError(
                f"{folder}: several files for {split} ({', '.join(matching)}); set data.source.{split} to one of them"
            )
        if not matching and split == "train":
            raise DataError(
                f"{folder}: no files train{suffixes[0]} and train{suffixes[1]}; set data.source.path, "
                "data.source.source, data.source.target or data.source.train to existing files"
            )
        return matching[0] if matching else None


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
        stems = {"train": "train", "validation": "val", "test": test}
        return ParallelConfig(path=self.path, source=self.source, target=self.target, **stems).corpus()


class _FilePair(NamedTuple):
    """The files of the sources and of the targets."""

    source: Listed
    target: Listed


def _plain_name(name: str) -> str:
    """Returns the name of a file without the suffix of its compression."""
    stem, dot, suffix = name.rpartition(".")
    return stem if f"{dot}{suffix}" in COMPRESSIONS else name


def _split_of_stem(stem: str) -> Split | None:
    """Returns the split whose name begins a file's name: train.clean, test_2016_flickr, test2016."""
    word = re.match("[a-z]*", stem.lower())
    return SPLIT_NAMES.get(word.group()) if word else None


def _file(folder: Path, name: str) -> Listed:
    """Returns the file of that name, plain or compressed. Raises DataError where there is none."""
    for suffix in ("", *COMPRESSIONS):
        if (path := folder / f"{name}{suffix}").exists():
            require_regular(path)
            return Listed(path, f"{name}{suffix}")
    raise DataError(
        f"{folder / name}: no such file, nor with {', '.join(COMPRESSIONS)}; correct data.source.path or the names"
    )


def _parts(split: Split, file_pair: _FilePair) -> Iterator[CorpusPart]:
    """Yields the parts of two files, each with enough lines to be worth another process."""
    sizes = [file.path.stat().st_size for file in file_pair]
    if sum(sizes) < PART:
        yield CorpusPart(partial(_texts, split, file_pair, None), sum(sizes), apart=False)
    elif any(_plain_name(file.name) != file.name for file in file_pair):
        yield CorpusPart(partial(_texts, split, file_pair, None), sum(sizes), apart=True)
    else:
        row, first = 0, [0, 0]
        for following in zip(*(line_starts(file.path, LINES) for file in file_pair), strict=False):
            yield _part(split, file_pair, row, first, following)
            row, first = row + LINES, [*following]
        yield _part(split, file_pair, row, first, sizes)


def _part(split: Split, file_pair: _FilePair, row: int, starts: Sequence[int], stops: Sequence[int]) -> CorpusPart:
    """Returns the part of two files from a row on, with the bytes between ``starts`` and ``stops``."""
    slices = [Slice(row, start, stop) for start, stop in zip(starts, stops, strict=True)]
    size = sum(one.stop - one.start for one in slices)
    return CorpusPart(partial(_texts, split, file_pair, slices), size, apart=True)


def _texts(
    split: Split, file_pair: _FilePair, slices: Sequence[Slice] | None, left_out: Counter[str]
) -> Iterator[Text]:
    """Yields the pairs of lines of two files. Raises DataError where one is empty or has more lines than the other."""
    chosen = [None, None] if slices is None else slices
    first = 0 if slices is None else slices[0].first_row
    longest, missing = first, [0, 0]
    lines_of_both = (_lines(file, one) for file, one in zip(file_pair, chosen, strict=True))
    for longest, (source, target) in enumerate(zip_longest(*lines_of_both), first + 1):
        if source is not None and target is not None:
            yield pair_text(file_pair.source.name, split, longest - 1, Texts(source, (target,)), file_pair.source.path)
        else:
            missing[source is not None] += 1
    counts = [longest - number for number in missing]
    for file, count in zip(file_pair, counts, strict=True):
        if not count:
            raise DataError(f"{file.path}: empty, there is no line to read; fetch it again or correct data.source.path")
    if counts[0] != counts[1]:
        raise DataError(
            f"{file_pair.source.path} has {counts[0]:,} lines and {file_pair.target.name} {counts[1]:,}: parallel "
            "files have as many, and line n of one stands for line n of the other; correct them"
        )


def _lines(file: Listed, chosen: Slice | None) -> Iterator[str]:
    """Yields the lines of a file or of a slice of it, which end with line feeds only. Raises DataError for one that is
    not UTF-8."""
    first = 1 if chosen is None else chosen.first_row + 1
    with damage(file.path):
        for member in members(*file):
            stream = member.stream if chosen is None else sliced(member, chosen).stream
            for line in text_lines(stream, str(file.path), first):
                yield line.removesuffix("\n").removesuffix("\r")
