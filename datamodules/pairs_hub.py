"""Pairs from any data set of the Hugging Face hub: read once as a stream, kept as text and symbols."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from datamodules.documents import SPLITS, Split
from datamodules.errors import DataError
from datamodules.hub import commit, streamed, unreachable
from datamodules.index import IndexedCorpus, Text, index_corpus
from datamodules.pairs_source import Languages
from datamodules.pairs_store import WHOLE, TextPairsConfig, Texts, pair_text
from datamodules.sources import split_by_hash
from lit_transformers.config import Fraction, Plain, Positive, nearest

__all__ = ["HubPairsConfig", "Layout"]


class Layout(NamedTuple):
    """Where a data set keeps its pairs: its configuration, and the columns, or fields of columns (translation.en)."""

    subset: str | None
    source: str
    target: str


LAYOUTS: Mapping[str, Layout] = {
    "wmt14": Layout("de-en", "translation.en", "translation.de"),
    "iwslt2017": Layout("iwslt2017-en-de", "translation.en", "translation.de"),
    "multi30k": Layout(None, "en", "de"),
    "cnn_dailymail": Layout("3.0.0", "article", "highlights"),
    "arxiv-summarization": Layout("document", "article", "abstract"),
    "pubmed-summarization": Layout("document", "article", "abstract"),
}
"""By the last part of a name: wmt/wmt14 and wmt14 are one."""


class HubPairsConfig(TextPairsConfig, kind="hub"):
    """A data set by its name on the hub, or a local folder that ``datasets.load_dataset`` can read.

    The layouts of wmt14, iwslt2017, multi30k, cnn_dailymail, arxiv-summarization and pubmed-summarization are known:
    of these a name is enough. The whole is read when it is first used, and kept as text and symbols on disk. What the
    hub keeps as a script is not read; where the hub has converted it, its revision is refs/convert/parquet.

    subset      the configuration of the data set, such as de-en
    revision    branch, tag or commit; the fingerprint carries the commit it stands for
    source      the columns; translation.de is the field "de" of the column "translation". A list of texts is joined by
    target      spaces as a source, and each a right target
    train       the hub's names of the splits; where validation or test is None, its pairs are taken out of the train
    validation  split, a share ``held_out`` of them by a hash of the source
    test
    pairs       of each split at most so many, the first ones; None: all
    """

    name: str = "wmt14"
    subset: str | None = None
    revision: str | None = None
    source: str | None = None
    target: str | None = None
    train: str = "train"
    validation: str | None = "validation"
    test: str | None = "test"
    held_out: Fraction = 0.05
    pairs: Positive | None = None

    def conflicts(self) -> Iterator[str]:
        for side in ("source", "target"):
            if getattr(self, side) is None and self._known is None:
                yield f"the columns of {self.name} are not known; set {side}, such as {side}=translation.en"
        if self.held_out >= 0.5 and None in (self.validation, self.test):
            yield f"held_out {self.held_out} of both validation and test leaves nothing to train on"

    @property
    def _known(self) -> Layout | None:
        return LAYOUTS.get(self.name.rpartition("/")[2])

    @property
    def layout(self) -> Layout:
        """Where the pairs are: what is said here, else what is known of the data set."""
        subset, source, target = self._known or Layout(None, "", "")
        return Layout(self.subset or subset, self.source or source, self.target or target)

    @property
    def languages(self) -> Languages | None:
        """Of a column of translations, the fields are the languages' names."""
        source, target = (column.rpartition("translation.") for column in self.layout[1:])
        return (source[2], target[2]) if source[1] and target[1] else None

    def corpus(self) -> IndexedCorpus:
        at = commit(self.name, self.revision)
        return index_corpus([self.to_dict(), self.layout, at], f"hub-{at}-", WHOLE, self._texts())

    def _texts(self) -> Iterator[Text]:
        own: dict[Split, str | None] = {"train": self.train, "validation": self.validation, "test": self.test}
        for split in SPLITS:
            if (named := own[split]) is not None:
                for row, record in enumerate(islice(self._rows(named), self.pairs)):
                    texts = self._read(record, f"hub data set {self.name}: {named}:{row + 1}")
                    place = self._held_out(texts.source) if split == "train" else split
                    yield pair_text(f"{self.name}:{named}", place, row, texts, Path(self.name))

    def _held_out(self, source: str) -> Split:
        validation, test = (self.held_out if own is None else 0.0 for own in (self.validation, self.test))
        return split_by_hash(source, validation, test)

    def _rows(self, named: str) -> Iterator[dict[str, Any]]:
        _, *sides = self.layout
        columns = [side.partition(".")[0] for side in sides]
        opened = streamed(self.name, self.layout.subset, named, self.revision, columns)
        try:
            yield from opened
        except (OSError, EOFError) as error:
            raise unreachable(self.name, error) from None

    def _read(self, record: dict[str, Any], place: str) -> Texts:
        source, target = (_said(record, column, place) for column in self.layout[1:])
        return Texts(" ".join(source), tuple(target))


def _said(record: dict[str, Any], column: str, place: str) -> list[str]:
    value: Plain = record
    for name in column.split("."):
        if not isinstance(value, dict) or name not in value:
            known = nearest(name, value) if isinstance(value, dict) else f"it is {json.dumps(value)[:40]}"
            raise DataError(f"{place}: no {column!r}; {known} (set source.source, source.target)")
        value = value[name]
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{place}: {column!r} holds {type(value).__name__}, not text; set source.source, source.target")
    return texts
