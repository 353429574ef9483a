"""The base of data that read the documents of a source of text, as the symbols of one tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from itertools import islice

import numpy as np

from datamodules.core.data import Data, DataConfig, defined
from datamodules.core.documents import SPLITS, Corpus, Document, Limit, Split
from datamodules.core.index import IndexedCorpus
from datamodules.core.order import EvenlySpaced, kept, sorted_by
from datamodules.core.tokenizers import (
    BytesConfig,
    Symbols,
    Tokenizer,
    TokenizerConfig,
    cached_tokenizer,
    encode_document,
    key_of,
)
from datamodules.core.trained import TrainedSymbols, require_tokenizer
from datamodules.text.sources import SourceConfig, StdlibConfig
from lit_transformers.config import canonical_hash
from lit_transformers.read_once import read_once

__all__ = ["TextData", "TextDataConfig"]

GENERATED = 64
"""The number of documents of a generated source in which symbols that were never trained are looked for."""


class TextDataConfig(DataConfig):
    """A source of text and the tokenizer of its symbols."""

    source: SourceConfig = StdlibConfig()
    tokenizer: TokenizerConfig = BytesConfig()

    @property
    def name(self) -> str:
        return self.source.kind


class TextData(Data):
    """The corpus of a source, and the tokenizer that is loaded, or trained on its documents of training."""

    config: TextDataConfig

    @cached_property
    def corpus(self) -> Corpus:
        source = self.config.source
        return read_once(("corpus", source), source.build)

    def reading_messages(self) -> list[str]:
        return [*self.config.source.reading_messages(), *self.corpus.messages, *self._order_messages()]

    def _order_messages(self) -> list[str]:
        """Returns that the documents of an index are sorted, where something is decided by their order: the splits of a
        file that is cut, and a tokenizer that learns from the first documents."""
        corpus, first = self.corpus, self.config.tokenizer.first_bytes
        if not isinstance(corpus, IndexedCorpus):
            return []
        if first is not None and self.trained is None and first < corpus.documents("train").bytes_within(Limit()):
            way_out = "data.tokenizer learns from the first ones alone; set data.tokenizer.train_bytes=null"
        elif self.config.source.cuts_in_order:
            way_out = "splits are cut in their order; shuffle the documents of the file, or make a file for each split"
        else:
            return []
        order = kept([corpus.fingerprint, "index"], partial(_sorted_by, corpus))
        return [] if order is None else [f"documents are sorted {order}, and {way_out}"]

    @cached_property
    def tokenizer(self) -> Tokenizer:
        if self.trained is not None:
            return require_tokenizer(self.trained.tokenizer)
        return cached_tokenizer(self.config.tokenizer, self.corpus.documents("train"), self.corpus.fingerprint)

    @cached_property
    def tokenizer_hash(self) -> str:
        """A hash of the tokenizer, for identities of data."""
        return canonical_hash(key_of(self.tokenizer))

    def definitions(self) -> dict[str, str]:
        return {"symbol": defined(self.tokenizer.vocabulary.unit, self.tokenizer_hash)}

    def trained_symbols(self) -> TrainedSymbols:
        return TrainedSymbols(self.tokenizer.to_dict())

    def conflict(self) -> str | None:
        if not self.config.source.generated or self.tokenizer.unknown is None:
            return None
        for document in islice(self.corpus.documents("train"), GENERATED):
            if (encode_document(self.tokenizer, document) == self.tokenizer.unknown).any():
                return (
                    f"data.source: {self.config.source.kind} is drawn from symbols that the network was not trained "
                    "on; restore the fields that decide them, or train anew"
                )
        return None

    def texts(self, split: Split) -> Iterator[Document]:
        """Yields the texts of a split as they are turned into symbols."""
        raise NotImplementedError

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        for document in self.texts(split):
            yield self.tokenizer, encode_document(self.tokenizer, document)


def _sorted_by(corpus: IndexedCorpus) -> str | None:
    """Returns how the documents of all splits are sorted; None where nothing shows that they are."""
    ends = np.cumsum([corpus.count(split) for split in SPLITS])
    sample = EvenlySpaced()
    for place in np.unique(np.linspace(0, ends[-1] - 1, sample.most).astype(np.int64)).tolist():
        number = int(np.searchsorted(ends, place, side="right"))
        ordinal = place - int(ends[number - 1]) if number else place
        sample.add(corpus.documents(SPLITS[number])[ordinal].text)
    return sorted_by(sample.texts)
