"""Two needles in noise: a class that only a mechanism can tell which brings far positions together. A task of ours."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from datamodules.examples import Example, SyntheticConfig
from lit_transformers.batch import DataDescription, Vocabulary
from lit_transformers.config import Fraction, Positive

__all__ = ["NeedleConfig"]

AtLeastTwo = Annotated[int, Field(ge=2)]


class NeedleConfig(SyntheticConfig, kind="needle"):
    """Among ``length`` symbols, two are needles, at least ``distance`` apart; the class is the sum of what they say
    modulo ``classes``.

    No sum over positions of what each knows of its neighbourhood decides that class: the needles must meet in one
    position. Places are uniform.
    bias: how often a needle says 0 whatever it would have said. At 0 either needle alone says nothing of the class, and
    a learner gets no hint of where to look; at 0.5, with two classes, always guessing the likelier one is right in 5 of
    8 examples, one needle suffices for 6 of 8, and the number of needles that say 1, read by a linear layer, for 7.5.
    noise: how many symbols the rest is drawn from; no needle is among them.
    marked: what a pattern with marked global tokens sees from everywhere: the boundary that a row begins with, or the
    needles.
    """

    length: AtLeastTwo = 512
    distance: Positive = 256
    classes: AtLeastTwo = 2
    bias: Fraction = 0.5
    noise: Positive = 16
    marked: Literal["first", "needles"] = "first"

    def conflicts(self) -> Iterator[str]:
        if self.distance >= self.length:
            yield f"{self.length} symbols hold no two that are {self.distance} apart; lower distance or raise length"

    @property
    def description(self) -> DataDescription:
        size = self.noise + self.classes
        return DataDescription(Vocabulary(size + 1, size, "word", None), self.length + 1, self.classes)

    def make(self, chance: Random) -> Example:
        symbols = np.array(chance.choices(range(self.noise), k=self.length), np.int64)
        first, second = pair_apart(chance, self.length, self.distance)
        said = [self._value(chance) for _ in range(2)]
        symbols[[first, second]] = [self.noise + value for value in said]
        marked = (first, second) if self.marked == "needles" else None
        return Example(symbols, sum(said) % self.classes, marked)

    def _value(self, chance: Random) -> int:
        """What a needle says."""
        return 0 if chance.random() < self.bias else int(chance.random() * self.classes)


def pair_apart(chance: Random, length: int, distance: int) -> tuple[int, int]:
    """Two places of a row in order, at least so far apart; every such pair is as likely as any other."""
    while True:
        first, second = (int(chance.random() * (length - distance)) for _ in range(2))
        if first <= second:
            return first, second + distance
