"""The base of data that read the documents of a source of text, as the symbols of one tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import islice

from datamodules.core.data import Data, DataConfig, defined
from datamodules.core.documents import Corpus, Document, Split
from datamodules.core.index import IndexedCorpus
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
        return self.config.source.build()

    def reading_messages(self) -> list[str]:
        counts = self.corpus.messages if isinstance(self.corpus, IndexedCorpus) else []
        return [*self.config.source.reading_messages(), *counts]

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
