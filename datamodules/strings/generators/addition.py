"""Sums of two numbers, digit by digit."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from datamodules.strings.generators.generator import GeneratorConfig, String, spoken

__all__ = ["AdditionConfig"]


class AdditionConfig(GeneratorConfig, kind="addition"):
    """0a+b0 and the sum, then 0 (arXiv:1807.03819, section 3.2). The length is that of a+b, the plus included.

    a has as many digits as b or one more; no number begins with zeros, except for 0 itself. order: whether numbers are
    written from their last digit on, as in the paper's published code, or from their first.
    """

    base: Annotated[int, Field(ge=2)] = 10
    order: Literal["last_first", "first_first"] = "last_first"

    @property
    def symbols(self) -> int:
        return self.base + 2

    def row(self, length: int) -> int:
        return length + 1 + (length - 1) // 2 + (length - 1) % 2 + 2

    def refusal(self, length: int) -> str | None:
        return None if length >= 3 else "a+b takes 3 symbols"

    def make(self, length: int, random: np.random.Generator) -> String:
        digits = length - 1
        a, b = (self._number(size, random) for size in (digits - digits // 2, digits // 2))
        plus = [self.base + 1]
        return spoken([*self._digits(a), *plus, *self._digits(b)], [*self._digits(a + b), 0])

    def _number(self, size: int, random: np.random.Generator) -> int:
        """Returns a random number of ``size`` digits: Python's integers have no maximum."""
        least = 0 if size == 1 else 1
        number = int(random.integers(least, self.base))
        for digit in random.integers(0, self.base, size - 1).tolist():
            number = number * self.base + int(digit)
        return number

    def _digits(self, number: int) -> list[int]:
        """Returns the digits of a number as symbols: digit d is symbol d + 1."""
        digits: list[int] = []
        while number or not digits:
            number, digit = divmod(number, self.base)
            digits.append(digit + 1)
        return digits if self.order == "last_first" else digits[::-1]
