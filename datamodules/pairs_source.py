"""What pairs are: a source and what is to be said of it. A config of pairs stands in the table PAIRS."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.documents import Split
from datamodules.tokenizers import Symbols, TokenizerConfig
from lit_transformers.batch import Vocabulary
from lit_transformers.config import Config, Plain

__all__ = ["Languages", "Lengths", "Longest", "Pair", "Pairs", "PairsConfig", "PairsRead", "Vocabularies"]

Languages = tuple[str, str]


class Pair(NamedTuple):
    """source, target: symbols without boundaries. asked: the length that results are told apart by, or 0."""

    source: Symbols
    target: Symbols
    asked: int = 0


class Longest(NamedTuple):
    """Symbols of the longest source and of the longest target, each with the boundary that ends it."""

    source: int
    target: int


class Lengths(NamedTuple):
    """Symbols of every pair of a split, without boundaries."""

    source: npt.NDArray[np.int64]
    target: npt.NDArray[np.int64]


class Vocabularies(NamedTuple):
    """Of the sources and of the targets, the same object where they share one; and what writes symbols of a target."""

    source: Vocabulary
    target: Vocabulary
    written: Callable[[Sequence[int]], str]


class PairsRead(NamedTuple):
    """How pairs are to be read.

    tokenizer, source_tokenizer  None: the source's own choice; one for both sides where ``source_tokenizer`` is None
    lengths, examples            of strings: what an evaluation asks for
    """

    tokenizer: TokenizerConfig | None
    source_tokenizer: TokenizerConfig | None
    lengths: tuple[int, ...]
    examples: int | None


class Pairs(ABC):
    """The pairs of all splits, each one call away. Cheap to pickle. Raises DataError from every method.

    fingerprint: stands for everything that decides a pair's text. vocabularies: what its symbols mean.
    """

    fingerprint: str
    vocabularies: Vocabularies

    @abstractmethod
    def count(self, split: Split) -> int:
        """How many there are."""

    @abstractmethod
    def pair(self, split: Split, ordinal: int) -> Pair:
        """One of them: the same whenever it is asked for."""

    @abstractmethod
    def references(self, split: Split, ordinal: int) -> tuple[str, ...]:
        """Texts of which each is a right target."""

    @abstractmethod
    def name(self, split: Split, ordinal: int) -> str:
        """What it is called."""

    @abstractmethod
    def lengths(self, split: Split) -> Lengths | None:
        """How long they are; None where they are made on demand, none longer than the config says."""

    @abstractmethod
    def tokenizers(self) -> dict[str, Plain]:
        """What a checkpoint keeps, so that ``PairsConfig.vocabularies`` gives the same."""

    @abstractmethod
    def told(self, split: Split) -> list[str]:
        """What is worth saying once of how a split was read: what was left out, what is unknown."""


class PairsConfig(Config):
    """Base of every config of pairs; the table PAIRS lists the kinds.

    ``strings``: whether the pairs are symbols of their own, not texts. ``summaries``: whether targets are known to be
    summaries of their sources; of files that anyone brings it is not known.
    """

    strings: ClassVar[bool]
    summaries: ClassVar[bool] = False

    @property
    def languages(self) -> Languages | None:
        """What sources and targets are written in; None where it is not known, or no language."""
        raise NotImplementedError

    @property
    def longest(self) -> Longest:
        """How long pairs may be where nothing else is said."""
        raise NotImplementedError

    def refusal(self, length: int) -> str | None:
        """Why an evaluation cannot ask for that length; None where it can."""
        raise NotImplementedError

    def reach(self, length: int) -> Longest:
        """How long pairs are that an evaluation asks for with that length."""
        raise NotImplementedError

    def open(self, how: PairsRead) -> Pairs:
        """Opens the pairs; what is expensive is done once and cached. Raises DataError."""
        raise NotImplementedError

    def vocabularies(self, kept: Mapping[str, Plain]) -> Vocabularies:
        """From what a checkpoint kept (``Pairs.tokenizers``). Raises DataError."""
        raise NotImplementedError
