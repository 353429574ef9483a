"""Associative recall with many queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from datamodules.strings.generators.generator import GeneratorConfig, String
from lit_transformers.batch import IGNORED
from lit_transformers.config import Positive, PositiveFloat

__all__ = ["RecallConfig"]


class RecallConfig(GeneratorConfig, kind="recall"):
    """Associative recall with many queries (Zoology, Arora et al. 2023, arXiv:2312.04927, section 3 and appendix E).

    The string begins with ``pairs`` keys, each followed by its value; then every key occurs once more, somewhere, and
    its value is to be predicted there. The length is that of the whole string. The first half of ``alphabet`` are keys,
    the second half values. power: the probability of a query at some distance is proportional to distance^(power - 1).
    filled: whether the places between queries hold random symbols, as in the paper's published code, or 0.
    """

    alphabet: Annotated[int, Field(ge=4)] = 64
    pairs: Positive = 4
    power: PositiveFloat = 0.01
    filled: bool = True

    def conflicts(self) -> Iterator[str]:
        if self.pairs > self.alphabet // 2:
            yield f"{self.pairs} pairs need as many keys, and half of an alphabet of {self.alphabet} are keys"

    @property
    def symbols(self) -> int:
        return self.alphabet + 1

    def row(self, length: int) -> int:
        return length

    def refusal(self, length: int) -> str | None:
        return (
            None
            if length >= 4 * self.pairs
            else f"{self.pairs} pairs and as many queries take {4 * self.pairs} symbols"
        )

    def chance(self, lengths: Sequence[int]) -> float:
        return 1 / (self.alphabet - self.alphabet // 2)

    def make(self, length: int, random: np.random.Generator) -> String:
        half = self.alphabet // 2
        keys = random.choice(np.arange(1, half + 1), self.pairs, replace=False)
        values = random.integers(half + 1, self.alphabet + 1, self.pairs)
        inputs = random.integers(1, self.alphabet + 1, length) if self.filled else np.zeros(length, np.int64)
        context = 2 * self.pairs
        inputs[:context:2], inputs[1:context:2] = keys, values
        slots = np.arange(1, (length - context) // 2 + 1)
        weights = slots ** (self.power - 1.0)
        queries = context + 2 * (random.choice(slots, self.pairs, replace=False, p=weights / weights.sum()) - 1)
        targets = np.full(length, IGNORED, np.int64)
        inputs[queries], targets[queries] = keys, values
        return String(inputs, targets)
