"""Examples with a label each: what is read or made of them, and the base of those that are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.documents import SPLITS, Split
from lit_transformers.batch import DataDescription
from lit_transformers.config import Config, NonNegative, Plain, Positive, canonical_hash

__all__ = ["Example", "Examples", "ExamplesConfig", "Synthetic", "SyntheticConfig"]

FINGERPRINTED = 4
"""Examples of each split that a fingerprint is taken of, so that a change of what makes them shows."""


class Example(NamedTuple):
    """symbols: without the boundary that a row begins with. label: a class from 0, or a number where there are none.

    marked: places among the symbols that are singled out, or None where nothing is.
    """

    symbols: npt.NDArray[np.int64]
    label: float
    marked: tuple[int, ...] | None = None


class Examples(ABC):
    """The labelled examples of all splits, each one call away. Cheap to pickle. Raises DataError from every method.

    ``fingerprint`` stands for everything that decides an example.
    """

    fingerprint: str

    @abstractmethod
    def count(self, split: Split) -> int:
        """How many there are."""

    @abstractmethod
    def example(self, split: Split, ordinal: int) -> Example:
        """One of them: the same whenever it is asked for."""

    @abstractmethod
    def name(self, split: Split, ordinal: int) -> str:
        """What it is called."""


class ExamplesConfig(Config):
    """Base of every config of labelled examples; the table EXAMPLES lists the kinds."""

    def build(self) -> Examples:
        """Opens the examples. Raises DataError."""
        raise NotImplementedError

    @property
    def description(self) -> DataDescription:
        """Vocabulary, longest row with its boundary, and classes (0 where labels are numbers)."""
        raise NotImplementedError

    def protocol(self) -> dict[str, Plain]:
        """What of it a reported number depends on."""
        raise NotImplementedError


class SyntheticConfig(ExamplesConfig):
    """Base of examples that are made when they are asked for: from ``seed``, their split and their ordinal alone.

    train, validation, test: how many each split has. Splits share no seed, but nothing keeps a very short example of
    one from occurring in another.
    """

    train: Positive = 96_000
    validation: Positive = 2_000
    test: Positive = 2_000
    seed: NonNegative = 0

    def make(self, chance: Random) -> Example:
        """An example that ``chance`` alone decides."""
        raise NotImplementedError

    def build(self) -> Synthetic:
        return Synthetic(self)

    def protocol(self) -> dict[str, Plain]:
        return {"validation": self.validation, "test": self.test}


class Synthetic(Examples):
    """Nothing is kept: Python promises that ``Random.random`` gives the same numbers in every version."""

    def __init__(self, config: SyntheticConfig) -> None:
        self.config = config
        first = [self.example(split, ordinal) for split in SPLITS for ordinal in range(FINGERPRINTED)]
        seen = [[example.symbols.tolist(), example.label, example.marked] for example in first]
        self.fingerprint = f"{config.kind}-{canonical_hash([config.to_dict(), seen], 32)}"

    def count(self, split: Split) -> int:
        counts: dict[Split, int] = {
            "train": self.config.train,
            "validation": self.config.validation,
            "test": self.config.test,
        }
        return counts[split]

    def example(self, split: Split, ordinal: int) -> Example:
        return self.config.make(Random(f"{self.config.seed} {split} {ordinal}"))

    def name(self, split: Split, ordinal: int) -> str:
        return f"{split}:{ordinal}"
