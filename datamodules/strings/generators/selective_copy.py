"""Copying of the symbols that stand among empty places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datamodules.strings.generators.generator import Alphabet, GeneratorConfig, String
from lit_transformers.batch import IGNORED
from lit_transformers.config import Positive

__all__ = ["SelectiveCopyConfig"]


class SelectiveCopyConfig(GeneratorConfig, kind="selective_copy"):
    """Selective copying (MAD, Poli et al. 2024, arXiv:2403.17844).

    A string holds ``copied`` random symbols at random places, and 0 at all others. A separate symbol follows, and
    then as many zeros as there are symbols to copy, at which these are to be predicted in their order: no earlier
    answer is read. The length is that of the whole string. In the paper's published code the last symbol to copy always
    stands right before the question; here its place is random as well.
    """

    alphabet: Alphabet = 14
    copied: Positive = 16

    @property
    def symbols(self) -> int:
        return self.alphabet + 2

    def row(self, length: int) -> int:
        return length

    def refusal(self, length: int) -> str | None:
        least = 2 * self.copied + 1
        return None if length >= least else f"{self.copied} symbols, the question and the answer take {least} places"

    def chance(self, lengths: Sequence[int]) -> float:
        return 1 / self.alphabet

    def make(self, length: int, random: np.random.Generator) -> String:
        question = length - self.copied - 1
        word = random.integers(1, self.alphabet + 1, self.copied)
        inputs, targets = np.zeros(length, np.int64), np.full(length, IGNORED, np.int64)
        inputs[np.sort(random.permutation(question)[: self.copied])] = word
        inputs[question], targets[question + 1 :] = self.alphabet + 1, word
        return String(inputs, targets)
