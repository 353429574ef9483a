"""Pairs from any data set of the Hugging Face hub, read once as a stream and stored as text and symbols."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from datamodules.core.documents import SPLITS, Split
from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.core.reading import plain_values
from datamodules.pairs.source import Languages
from datamodules.pairs.stored_pairs import WHOLE, TextPairsConfig, Texts, pair_text
from datamodules.text.hub import commit, streamed, unreachable
from datamodules.text.nested_records import column_conflicts, texts_at
from datamodules.text.sources import split_by_hash
from lit_transformers.config import Fraction, Positive

__all__ = ["HubPairsConfig", "Layout"]


SIDES = "data.source.source, data.source.target"
TOP = re.compile(r"([^].()[{}|*@`']+)(?:[.[]|$)")
"""The column that a path leads into, where it begins with one."""


class Layout(NamedTuple):
    """Where a data set has its pairs: its configuration, and the columns, or fields of columns (translation.en)."""

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
"""Layouts by the last part of a data set's name: wmt/wmt14 and wmt14 are the same."""


class HubPairsConfig(TextPairsConfig, kind="hub"):
    """A data set by its name on the hub, or a local folder that ``datasets.load_dataset`` can read.

    The layouts of wmt14, iwslt2017, multi30k, cnn_dailymail, arxiv-summarization and pubmed-summarization are known:
    for these a name is enough. The whole data set is read when it is first used, and stored as text and symbols on
    disk. Data sets that the hub has only as a script cannot be read; where the hub has converted one, the revision is
    refs/convert/parquet.

    subset      the configuration of the data set, such as de-en
    revision    branch, tag or commit; the fingerprint carries the commit it stands for
    source      the columns; translation.de is the field "de" of the column "translation", questions[*].text a list of
    target      texts in nested ones (JMESPath). A list of texts is joined by spaces as a source; as a target, each of
                its texts is a reference
    train       the hub's names of the splits; where validation or test is None, its pairs are a share ``held_out`` of
    validation  the train split, chosen by a hash of the source
    test
    pairs       the first pairs of each split, at most this number; None: all
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
            if getattr(self, side) is None and self._known_layout is None:
                yield f"the columns of {self.name} are not known; set {side}, such as {side}=translation.en"
        yield from column_conflicts(source=self.source or "_", target=self.target or "_")
        if self.held_out >= 0.5 and None in (self.validation, self.test):
            yield f"held_out {self.held_out} of both validation and test leaves nothing to train on"

    @property
    def _known_layout(self) -> Layout | None:
        return LAYOUTS.get(self.name.rpartition("/")[2])

    @property
    def layout(self) -> Layout:
        """The location of the pairs: the fields of this config, where None those of the known layout."""
        subset, source, target = self._known_layout or Layout(None, "", "")
        return Layout(self.subset or subset, self.source or source, self.target or target)

    @property
    def languages(self) -> Languages | None:
        """The names of the fields, where the columns are of translations; otherwise None."""
        source, target = (column.rpartition("translation.") for column in self.layout[1:])
        return (source[2], target[2]) if source[1] and target[1] else None

    def corpus(self) -> IndexedCorpus:
        commit_hash = commit(self.name, self.revision)
        return index_corpus([self.to_dict(), self.layout, commit_hash], f"hub-{commit_hash}-", WHOLE, self._texts())

    def _texts(self) -> Iterator[Text]:
        hub_names: dict[Split, str | None] = {"train": self.train, "validation": self.validation, "test": self.test}
        for split in SPLITS:
            if (hub_split := hub_names[split]) is not None:
                for row, record in enumerate(islice(self._rows(hub_split), self.pairs)):
                    texts = self._read(record, f"hub data set {self.name}: {hub_split}:{row + 1}")
                    pair_split = self._train_part(texts.source) if split == "train" else split
                    yield pair_text(f"{self.name}:{hub_split}", pair_split, row, texts, Path(self.name))

    def _train_part(self, source: str) -> Split:
        """Returns the split of a pair of the hub's train split."""
        validation, test = (self.held_out if hub_name is None else 0.0 for hub_name in (self.validation, self.test))
        return split_by_hash(source, validation, test)

    def _rows(self, hub_split: str) -> Iterator[dict[str, Any]]:
        _, *sides = self.layout
        columns = [match[1] for side in sides if (match := TOP.match(side))]
        dataset = streamed(self.name, self.layout.subset, hub_split, self.revision, columns)
        try:
            yield from dataset
        except (OSError, EOFError) as error:
            raise unreachable(self.name, error) from None

    def _read(self, record: dict[str, Any], place: str) -> Texts:
        values = plain_values(record)
        source, target = (texts_at(values, column, place, SIDES) for column in self.layout[1:])
        return Texts(" ".join(source), tuple(target))
