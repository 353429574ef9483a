"""Two needles in noise: a class that only a mechanism which combines far positions can find. A task of our own."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from datamodules.core.data import KnownValues
from datamodules.core.examples import Example, SyntheticConfig
from lit_transformers.batch import ClassLabels, LabelledDescription, Vocabulary
from lit_transformers.config import Fraction, Plain, Positive

__all__ = ["NeedleConfig"]

AtLeastTwo = Annotated[int, Field(ge=2)]


class NeedleConfig(SyntheticConfig, kind="needle"):
    """Among ``length`` symbols, two are needles, at least ``distance`` apart; the class is the sum of their values
    modulo ``classes``.

    No sum over positions of functions of their neighbourhoods decides that class: both needles must be combined in one
    position. The needles' positions are uniform.
    bias: how often a needle's value is 0 instead of uniform. At a bias of 0, either needle alone holds no information
    on the class, and nothing shows a learner where to look; at 0.5 with two classes, always guessing the likelier class
    is right in 5 of 8 examples, one needle suffices for 6 of 8, and the number of needles with value 1, read by a
    linear layer, for 7.5.
    noise: number of symbols that the other positions are drawn from; no needle is among them.
    marked: the tokens that a pattern with marked global tokens sees from every position: the boundary at the start of
    a row, or the needles.
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
    def description(self) -> LabelledDescription:
        size = self.noise + self.classes
        vocabulary = Vocabulary(size=size + 1, boundary=size, unit="word", byte_lengths=None)
        return LabelledDescription(
            vocabulary=vocabulary, length=self.length + 1, labels=ClassLabels(count=self.classes)
        )

    def known_values(self) -> KnownValues:
        """Returns the accuracies of who always guesses the likeliest class, and of who combines both needles."""
        uniform = (1 - self.bias) / self.classes
        values = [uniform + self.bias * (value == 0) for value in range(self.classes)]
        likeliest = max(
            sum(values[value] * values[(label - value) % self.classes] for value in range(self.classes))
            for label in range(self.classes)
        )
        return KnownValues("accuracy", {"the likeliest class": likeliest, "both needles": 1.0})

    def meanings(self) -> dict[str, Plain]:
        return super().meanings() | {"noise": self.noise}

    def make(self, chance: Random) -> Example:
        symbols = np.array(chance.choices(range(self.noise), k=self.length), np.int64)
        first, second = pair_apart(chance, self.length, self.distance)
        values = [self._value(chance) for _ in range(2)]
        symbols[[first, second]] = [self.noise + value for value in values]
        marked = (first, second) if self.marked == "needles" else None
        return Example(symbols, sum(values) % self.classes, marked)

    def _value(self, chance: Random) -> int:
        """Draws the value of a needle."""
        return 0 if chance.random() < self.bias else int(chance.random() * self.classes)


def pair_apart(chance: Random, length: int, distance: int) -> tuple[int, int]:
    """Draws two positions of a row in order, at least ``distance`` apart; all such pairs are equally likely."""
    while True:
        first, second = (int(chance.random() * (length - distance)) for _ in range(2))
        if first <= second:
            return first, second + distance
