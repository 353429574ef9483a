"""Pairs of texts as documents of two sentences: the source of translation language modelling (arXiv:1901.07291)."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import ClassVar

from datamodules.core.documents import SPLITS, Corpus
from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.pairs.parallel import Multi30kConfig
from datamodules.pairs.source import PairsConfig
from datamodules.pairs.stored_pairs import TextPairsConfig, texts_of
from datamodules.text.sources import SourceConfig

__all__ = ["TranslationsConfig"]

VERSION = 1
"""Part of the key: changes when the same pairs give other documents."""


class TranslationsConfig(SourceConfig, kind="translations"):
    """A document is a pair of texts, each of which is one sentence: the first line its source, the second its target,
    or the first of several. They become rows by packing translations.

    pairs  the pairs; the table PAIRS lists the kinds, of which those of texts serve
    """

    parallel: ClassVar[bool] = True

    pairs: PairsConfig = Multi30kConfig()

    def conflicts(self) -> Iterator[str]:
        if not isinstance(self.pairs, TextPairsConfig):
            yield f"pairs of kind {self.pairs.kind} are no texts; set pairs to parallel or multi30k"

    def build(self) -> Corpus:
        assert isinstance(self.pairs, TextPairsConfig)
        corpus = self.pairs.corpus()
        return index_corpus([VERSION, corpus.fingerprint], "translations-", self.piece, _documents(corpus))


def _documents(corpus: IndexedCorpus) -> Iterator[Text]:
    """Yields each pair as two lines."""
    for split in SPLITS:
        if not corpus.count(split):
            continue
        for document in corpus.documents(split):
            texts = texts_of(document)
            lines = (" ".join(text.split()) for text in (texts.source, texts.targets[0]))
            yield Text(document.name, split, BytesIO("\n".join(lines).encode()), Path(document.name))
