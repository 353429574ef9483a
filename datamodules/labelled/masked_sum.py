"""Masked summation (Guo et al. 2019, arXiv:1902.09113, section 5.1): the sum of the marked positions of a row."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np

from datamodules.core.data import KnownValues
from datamodules.core.examples import Example, SyntheticConfig
from lit_transformers.batch import LabelledDescription, NumberLabels, Vocabulary
from lit_transformers.config import Positive

__all__ = ["MaskedSumConfig"]


class MaskedSumConfig(SyntheticConfig, kind="masked_sum"):
    """Each of ``length`` positions holds a number in [0, 1) and a mask; the label is the sum of the ``ones`` numbers
    whose mask is 1, measured by the mean squared error; it is ones (1 - levels^-2) / 12 for always guessing ones / 2.

    The paper's positions hold vectors of real numbers. Networks here read symbols, so a position holds one number, the
    middle of one of ``levels`` equal parts of [0, 1): symbols below ``levels`` are ignored, the others are added.
    The sizes are our own.
    """

    train: Positive = 10_000
    validation: Positive = 10_000
    test: Positive = 10_000
    length: Positive = 200
    ones: Positive = 10
    levels: Positive = 32

    def conflicts(self) -> Iterator[str]:
        if self.ones > self.length:
            yield f"{self.length} positions cannot hold {self.ones} ones; lower ones or raise length"

    @property
    def description(self) -> LabelledDescription:
        size = 2 * self.levels
        vocabulary = Vocabulary(size=size + 1, boundary=size, unit="word", byte_lengths=None)
        return LabelledDescription(vocabulary=vocabulary, length=self.length + 1, labels=NumberLabels())

    def known_values(self) -> KnownValues:
        """Returns the mean squared errors of two predictors: the mean, and the sum of the marked numbers."""
        return KnownValues("mse", {"no summand": self.ones * (1 - self.levels**-2) / 12, "all summands": 0.0})

    def make(self, chance: Random) -> Example:
        levels = np.array(chance.choices(range(self.levels), k=self.length), np.int64)
        ones = sorted(range(self.length), key=lambda _: chance.random())[: self.ones]
        symbols = levels.copy()
        symbols[ones] += self.levels
        return Example(symbols, float(((levels[ones] + 0.5) / self.levels).sum()))
