"""ListOps, long: nested lists of digits (Tay et al. 2021, arXiv:2011.04006, section 2.2.1, after arXiv:1804.06028)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Annotated

import numpy as np
from pydantic import Field

from datamodules.core.errors import DataError
from datamodules.core.examples import Example, SyntheticConfig
from lit_transformers.batch import ClassLabels, LabelledDescription, Vocabulary
from lit_transformers.config import Positive

__all__ = ["OPERATORS", "SYMBOLS", "ListOpsConfig"]

OPERATORS = ("MIN", "MAX", "MED", "SM")
DIGITS, CLOSE = 10, 14
SYMBOLS = (*map(str, range(DIGITS)), *(f"[{operator}" for operator in OPERATORS), "]")
"""The text of each symbol, by its number."""
NESTED = 0.25
"""The probability that an argument is a list, where it may be one."""
TRIES = 1_000_000

AtLeastTwo = Annotated[int, Field(ge=2)]


class ListOpsConfig(SyntheticConfig, kind="listops"):
    """[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ] is 5: one of ten classes.

    depth: number of levels, digits counted as one; arguments: the maximum of a list, which has at least two;
    shortest, longest: symbols of an example. The defaults are those of the paper's published generator, which keeps
    examples longer than 500 symbols and shorter than 2,000. It writes a parenthesis around every argument, which
    its reader drops again; here there are none. SM is the sum modulo 10; MED of an even number of digits is the
    mean of the middle two, cut to a whole number, as there. The classes are not balanced: always guessing the most
    frequent one is far from 10 %.
    """

    depth: AtLeastTwo = 10
    arguments: AtLeastTwo = 10
    shortest: Positive = 501
    longest: Positive = 1_999

    def conflicts(self) -> Iterator[str]:
        if self.longest < max(4, self.shortest):
            yield f"longest {self.longest} leaves no length: it must reach shortest ({self.shortest}) and 4, one list"
        largest = 1
        for _ in range(self.depth - 1):
            largest = min(2 + self.arguments * largest, self.shortest)
        if largest < self.shortest:
            yield (
                f"no list of depth {self.depth} and {self.arguments} arguments has {self.shortest} symbols; "
                "raise depth or arguments, or lower shortest"
            )

    @property
    def description(self) -> LabelledDescription:
        vocabulary = Vocabulary(size=len(SYMBOLS) + 1, boundary=len(SYMBOLS), unit="word", byte_lengths=None)
        return LabelledDescription(vocabulary=vocabulary, length=self.longest + 1, labels=ClassLabels(count=DIGITS))

    def make(self, chance: Random) -> Example:
        """Draws trees until one has an admitted length. Raises DataError where almost none has."""
        for _ in range(TRIES):
            symbols: list[int] = []
            label = self.grow(chance, symbols, 1)
            if label is not None and len(symbols) >= self.shortest:
                return Example(np.array(symbols, np.int64), label)
        raise DataError(
            f"data.source: of {TRIES:,} lists none has {self.shortest} to {self.longest} symbols; "
            "widen data.source.shortest and data.source.longest, or change data.source.depth or data.source.arguments"
        )

    def grow(self, chance: Random, symbols: list[int], level: int) -> int | None:
        """Appends the symbols of a list; returns its value, or None as soon as the example becomes too long."""
        operator = int(chance.random() * len(OPERATORS))
        symbols.append(DIGITS + operator)
        values: list[int] = []
        for _ in range(2 + int(chance.random() * (self.arguments - 1))):
            value: int | None
            if level + 1 < self.depth and chance.random() < NESTED:
                value = self.grow(chance, symbols, level + 1)
            else:
                value = int(chance.random() * DIGITS)
                symbols.append(value)
            if value is None or len(symbols) >= self.longest:
                return None
            values.append(value)
        symbols.append(CLOSE)
        return apply(OPERATORS[operator], values)


def apply(operator: str, values: Sequence[int]) -> int:
    """Returns the digit that an operator computes from digits."""
    match operator:
        case "MIN":
            return min(values)
        case "MAX":
            return max(values)
        case "MED":
            ordered, half = sorted(values), len(values) // 2
            return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2
        case _:
            return sum(values) % DIGITS
