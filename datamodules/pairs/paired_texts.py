"""The base of data that read both texts of pairs with one tokenizer, for tasks such as retrieval and prompts."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from functools import cached_property

from datamodules.core.data import Data
from datamodules.core.documents import Split
from datamodules.core.tokenizers import Symbols, Tokenizer, tokenizer_from_dict
from datamodules.core.trained import TrainedSymbols
from datamodules.pairs.source import Pairs, PairsRead
from lit_transformers.config import Plain

__all__ = ["PairedTextData"]


class PairedTextData(Data, ABC):
    """Data of pairs of texts. Its config has a ``source`` from the table PAIRS, a ``tokenizer``, and an ``evaluation``
    with ``examples``."""

    @cached_property
    def pairs(self) -> Pairs:
        """The pairs of all splits, tokenized by the tokenizer of trained weights or else of the config."""
        tokenizer, examples = self.config.get("tokenizer"), self.config.get("evaluation.examples")
        opened: Pairs = self.config.get("source").open(PairsRead(tokenizer, None, (), examples, self.trained))
        return opened

    @property
    def content(self) -> str:
        return self.pairs.fingerprint

    def metadata(self) -> dict[str, Plain]:
        return {}

    def trained_symbols(self) -> TrainedSymbols:
        return self.pairs.trained_symbols()

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        plain = self.trained_symbols().tokenizer
        if plain is not None:
            tokenizer = tokenizer_from_dict(plain)
            for ordinal in range(self.pairs.count(split)):
                pair = self.pairs.pair(split, ordinal)
                yield from ((tokenizer, pair.source), (tokenizer, pair.target))

    def example_name(self, ordinal: int) -> str:
        return self.pairs.name(self.measured_split, ordinal)

    def prepare_data(self) -> None:
        """Fills the cache in one process, for all processes, and prints once how the source was read."""
        self.print_reading()

    def reading_messages(self) -> list[str]:
        return self.pairs.reading_messages(self.measured_split)
