"""Values of keys that no string tells: they have to be learned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from datamodules.strings.generators.generator import Alphabet, GeneratorConfig, Integers, String
from lit_transformers.batch import IGNORED
from lit_transformers.config import Plain, Seed

__all__ = ["MemorisationConfig"]


class MemorisationConfig(GeneratorConfig, kind="memorisation"):
    """Memorisation (MAD, Poli et al. 2024, arXiv:2403.17844).

    A string is a sequence of random keys, each followed by 0, at which the value of the key is to be predicted. Every
    key has another value, in one dictionary for all strings, of training and evaluation. The length is that of the
    string; where it is odd nothing follows the last key.

    facts       number of keys, and of values
    dictionary  the seed of the dictionary, which no seed of strings changes
    """

    facts: Alphabet = 127
    dictionary: Seed = 0

    @property
    def symbols(self) -> int:
        return 1 + 2 * self.facts

    def row(self, length: int) -> int:
        return length

    def refusal(self, length: int) -> str | None:
        return None if length >= 2 else "a key and the place for its value take 2 symbols"

    def chance(self, lengths: Sequence[int]) -> float:
        return 1 / self.facts

    def meanings(self) -> dict[str, Plain]:
        return super().meanings() | {"dictionary": self.dictionary}

    def make(self, length: int, random: np.random.Generator) -> String:
        keys = random.integers(self.facts, size=(length + 1) // 2)
        inputs, targets = np.zeros(length, np.int64), np.full(length, IGNORED, np.int64)
        inputs[::2] = 1 + keys
        targets[1::2] = values_of(self.facts, self.dictionary)[keys[: length // 2]]
        return String(inputs, targets)


@cache
def values_of(facts: int, seed: int) -> Integers:
    """Returns the symbols of the values of all keys, in the order of the keys."""
    return 1 + facts + np.random.default_rng(seed).permutation(facts)
