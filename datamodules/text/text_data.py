"""The base of data that read the documents of a source of text, as the symbols of one tokenizer."""

from __future__ import annotations

from functools import cached_property

from datamodules.core.data import Data, DataConfig, defined
from datamodules.core.documents import Corpus
from datamodules.core.index import IndexedCorpus
from datamodules.core.tokenizers import BytesConfig, Tokenizer, TokenizerConfig, cached_tokenizer, key_of
from datamodules.text.sources import SourceConfig, StdlibConfig
from lit_transformers.config import canonical_hash

__all__ = ["TextData", "TextDataConfig"]


class TextDataConfig(DataConfig):
    """What is read, and the tokenizer of its symbols."""

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
        return cached_tokenizer(self.config.tokenizer, self.corpus.documents("train"), self.corpus.fingerprint)

    @cached_property
    def tokenizer_hash(self) -> str:
        """A hash of the tokenizer, for identities of data."""
        return canonical_hash(key_of(self.tokenizer))

    def definitions(self) -> dict[str, str]:
        return {"symbol": defined(self.tokenizer.vocabulary.unit, self.tokenizer_hash)}
