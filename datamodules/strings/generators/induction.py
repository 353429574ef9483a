"""Recall of the symbol that followed the one earlier occurrence of another symbol."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datamodules.strings.generators.generator import Alphabet, GeneratorConfig, String
from lit_transformers.batch import IGNORED

__all__ = ["InductionConfig"]


class InductionConfig(GeneratorConfig, kind="induction"):
    """Induction: when a symbol occurs for the second time, predict the symbol that followed its first occurrence.

    Induction heads do this (Olsson et al. 2022, arXiv:2209.11895). A string is ``length`` independent symbols;
    wherever one comes for the second time, the symbol after its first occurrence is to be predicted, and nothing is
    where it comes for the first or a later time.
    """

    alphabet: Alphabet = 32

    @property
    def symbols(self) -> int:
        return self.alphabet + 1

    def row(self, length: int) -> int:
        return length

    def refusal(self, length: int) -> str | None:
        least = self.alphabet + 1
        return None if length >= least else f"some symbol comes twice for certain among {least} and more"

    def chance(self, lengths: Sequence[int]) -> float:
        return 1 / self.alphabet

    def make(self, length: int, random: np.random.Generator) -> String:
        inputs = random.integers(1, self.alphabet + 1, length)
        targets = np.full(length, IGNORED, np.int64)
        places: dict[int, list[int]] = {}
        for place, symbol in enumerate(inputs.tolist()):
            places.setdefault(symbol, []).append(place)
        for first, *later in places.values():
            if later:
                targets[later[0]] = inputs[first + 1]
        return String(inputs, targets)
