"""Nested brackets of several kinds: which one closes next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from datamodules.strings.generators.generator import Alphabet, GeneratorConfig, String
from lit_transformers.batch import IGNORED
from lit_transformers.config import Positive

__all__ = ["BracketsConfig"]


class BracketsConfig(GeneratorConfig, kind="brackets"):
    """Dyck languages of bounded depth (Hewitt et al. 2020, arXiv:2010.07515, section 3): balanced strings of brackets.

    Where a bracket closes, its kind is to be predicted: that of the innermost open one. Whether one opens or closes is
    not predicted. All nestings of a length are equally frequent, and so are the kinds of each pair. 0 stands before the
    brackets. The length is their number; an odd one has one bracket fewer, and a second 0 before them.

    alphabet  number of kinds: symbol k opens, symbol k + alphabet closes
    depth     the largest number of open brackets
    """

    alphabet: Alphabet = 8
    depth: Positive = 8

    @property
    def symbols(self) -> int:
        return 1 + 2 * self.alphabet

    def row(self, length: int) -> int:
        return length

    def refusal(self, length: int) -> str | None:
        return None if length >= 2 else "a pair of brackets takes 2 symbols"

    def chance(self, lengths: Sequence[int]) -> float:
        return 1 / self.alphabet

    def make(self, length: int, random: np.random.Generator) -> String:
        inputs, targets = np.zeros(length + 1, np.int64), np.full(length, IGNORED, np.int64)
        draws, kinds = random.random(length).tolist(), random.integers(1, self.alphabet + 1, length).tolist()
        shares = opening_probabilities(length, self.depth)
        open_kinds: list[int] = []
        for place in range(length % 2, length):
            if draws[place] < shares[length - place][len(open_kinds)]:
                open_kinds.append(kinds[place])
                inputs[place + 1] = kinds[place]
            else:
                inputs[place + 1] = targets[place] = self.alphabet + open_kinds.pop()
        return String(inputs[:-1], targets)


@cache
def opening_probabilities(length: int, depth: int) -> list[list[float]]:
    """Returns the share of balanced endings that begin by opening a bracket, by the number of places left, from 0 to
    ``length``, and of open brackets, from 0 to ``depth``; 0 where no ending is balanced."""
    endings, shares = [1, *[0] * depth], [[0.0] * (depth + 1)]
    for _ in range(length):
        opening, closing = [*endings[1:], 0], [0, *endings[:-1]]
        endings = [sum(ways) for ways in zip(opening, closing, strict=True)]
        shares.append([ways / total if total else 0.0 for ways, total in zip(opening, endings, strict=True)])
    return shares
