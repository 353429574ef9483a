"""The interface of pairs: a source and the target to predict from it. The table PAIRS lists the configs of pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import Split
from datamodules.core.tokenizers import Symbols, TokenizerConfig
from datamodules.core.trained import TrainedSymbols
from lit_transformers.batch import Detokenizer, Vocabulary
from lit_transformers.config import Config, Plain

__all__ = ["Languages", "Lengths", "Longest", "Pair", "Pairs", "PairsConfig", "PairsRead", "Vocabularies"]

Languages = tuple[str, str]


class Pair(NamedTuple):
    """source, target: symbols without boundaries. requested_length: that by which results are grouped, or 0."""

    source: Symbols
    target: Symbols
    requested_length: int = 0


class Longest(NamedTuple):
    """Numbers of symbols of the longest source and of the longest target, each with the boundary that ends it."""

    source: int
    target: int


class Lengths(NamedTuple):
    """Numbers of symbols of every pair of a split, without boundaries."""

    source: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]


class Vocabularies(NamedTuple):
    """The vocabularies of sources and targets, one object where they share it. detokenize: turns target symbols to
    text."""

    source: Vocabulary
    target: Vocabulary
    detokenize: Detokenizer


class PairsRead(NamedTuple):
    """How pairs are to be read.

    tokenizer, source_tokenizer  None: the source's default; one for both sides where ``source_tokenizer`` is None
    lengths, examples            of strings: the lengths that an evaluation measures, and the number of its examples
    trained                      the symbols of a trained network, in place of those that texts would be given; or None
    """

    tokenizer: TokenizerConfig | None
    source_tokenizer: TokenizerConfig | None
    lengths: tuple[int, ...]
    examples: int | None
    trained: TrainedSymbols | None = None


class Pairs(ABC):
    """The pairs of all splits, read one at a time. Cheap to pickle. Raises DataError from every method.

    fingerprint: identifies everything that decides a pair's text. vocabularies: those of its symbols.
    """

    fingerprint: str
    vocabularies: Vocabularies

    @abstractmethod
    def count(self, split: Split) -> int:
        """Returns the number of pairs of a split."""

    @abstractmethod
    def pair(self, split: Split, ordinal: int) -> Pair:
        """Returns the pair with that ordinal, the same in every call."""

    @abstractmethod
    def references(self, split: Split, ordinal: int) -> tuple[str, ...]:
        """Returns the texts that are each a correct target."""

    @abstractmethod
    def name(self, split: Split, ordinal: int) -> str:
        """Returns the name of the pair with that ordinal."""

    @abstractmethod
    def lengths(self, split: Split) -> Lengths | None:
        """Returns the lengths of all pairs; None where pairs are generated, none longer than the config allows."""

    @abstractmethod
    def tokenizers(self) -> dict[str, Plain]:
        """Returns plain data for a checkpoint, from which ``PairsConfig.vocabularies`` makes the same vocabularies."""

    def trained_symbols(self) -> TrainedSymbols:
        """Hook: returns the meanings of symbols. By default those in ``tokenizers``."""
        return TrainedSymbols.of(self.tokenizers())

    @abstractmethod
    def reading_messages(self, split: Split) -> list[str]:
        """Returns messages to print once on how a split was read: the pairs left out, the share of unknown symbols."""


class PairsConfig(Config):
    """Base of every config of pairs; the table PAIRS lists the kinds.

    ``strings``: whether the pairs are generated symbols, not texts. ``summaries``: whether targets are known to be
    summaries of their sources; for a user's own files this is not known.
    """

    strings: ClassVar[bool]
    summaries: ClassVar[bool] = False

    @property
    def languages(self) -> Languages | None:
        """The languages of sources and targets; None where they are not known or there are none."""
        raise NotImplementedError

    @property
    def longest(self) -> Longest:
        """The maximum lengths of pairs where the config of the data sets none."""
        raise NotImplementedError

    def refusal(self, length: int) -> str | None:
        """Returns the reason why an evaluation cannot measure that length; None where it can."""
        raise NotImplementedError

    def reach(self, length: int) -> Longest:
        """Returns the maximum lengths of pairs in an evaluation of that length."""
        raise NotImplementedError

    def open(self, how: PairsRead) -> Pairs:
        """Opens the pairs; expensive steps are done once and cached. Raises DataError."""
        raise NotImplementedError

    def vocabularies(self, metadata: Mapping[str, Plain]) -> Vocabularies:
        """Returns them from ``Data.checkpoint_metadata``, which holds ``Pairs.tokenizers``. Raises DataError."""
        raise NotImplementedError
