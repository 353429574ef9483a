"""Generators of strings: a question and the answer that follows from it, each from random numbers of its own.

Symbol 0 stands before the question, between question and answer, and after the answer where a string marks its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from datamodules.core.documents import SPLITS, Split
from lit_transformers.batch import IGNORED
from lit_transformers.config import Config, Positive, PositiveFloat, table

__all__ = [
    "GENERATORS",
    "AdditionConfig",
    "CopyConfig",
    "DuplicationConfig",
    "GeneratorConfig",
    "RecallConfig",
    "ReverseConfig",
    "String",
    "random_of",
]

Integers = npt.NDArray[np.int64]
Alphabet = Annotated[int, Field(ge=2)]


class String(NamedTuple):
    """Inputs and targets of equal length: a target is the symbol to predict after its input, or IGNORED."""

    inputs: Integers
    targets: Integers


class GeneratorConfig(Config):
    """Base of every generator's config; the table GENERATORS lists the kinds.

    ``length`` in the methods is the requested length: that of the question, unless a kind defines it otherwise.
    """

    @property
    def symbols(self) -> int:
        """Number of symbols, 0 included."""
        raise NotImplementedError

    def row(self, length: int) -> int:
        """Returns the number of inputs of the longest string of that length."""
        raise NotImplementedError

    def refusal(self, length: int) -> str | None:
        """Returns the reason why no string has that length; None where there are some."""
        raise NotImplementedError

    def make(self, length: int, random: np.random.Generator) -> String:
        """Makes one string of that length."""
        raise NotImplementedError

    def lengths_to(self, longest: int) -> list[int]:
        """Returns the lengths up to ``longest`` that strings can have."""
        return [length for length in range(1, longest + 1) if self.refusal(length) is None]


def random_of(seed: int, split: Split, length: int, ordinal: int) -> np.random.Generator:
    """Returns the random generator of one string, which no other string shares."""
    return np.random.default_rng([seed, SPLITS.index(split), length, ordinal])


def spoken(question: Sequence[int] | Integers, answer: Sequence[int] | Integers) -> String:
    """Returns the string "0 question 0 answer", in which only the answer is to be predicted."""
    symbols = np.concatenate([[0], question, [0], answer]).astype(np.int64)
    targets = symbols[1:].copy()
    targets[: len(question) + 1] = IGNORED
    return String(symbols[:-1], targets)


class WordConfig(GeneratorConfig):
    """Base of tasks on one word w of random symbols, 1 to ``alphabet``; the length is that of w."""

    alphabet: Alphabet = 10

    @property
    def symbols(self) -> int:
        return self.alphabet + 1

    def row(self, length: int) -> int:
        return 1 + length + len(self.answer(np.zeros(length, np.int64)))

    def refusal(self, length: int) -> str | None:
        return None

    def make(self, length: int, random: np.random.Generator) -> String:
        word = random.integers(1, self.alphabet + 1, length)
        return spoken(word, self.answer(word))

    def answer(self, word: Integers) -> Sequence[int] | Integers:
        """Returns the answer to a word."""
        raise NotImplementedError


class DuplicationConfig(WordConfig, kind="duplication"):
    """0w0w (Reformer, Kitaev et al. 2020, arXiv:2001.04451, section 5): the second w is to be predicted.

    In the paper w has 511 symbols out of 127. No symbol ends the string.
    """

    alphabet: Alphabet = 127

    def answer(self, word: Integers) -> Integers:
        return word


class CopyConfig(WordConfig, kind="copy"):
    """0w0w0: the second w and its end are to be predicted (arXiv:1807.03819, section 3.2).

    The paper's model is an encoder with a decoder; here one model reads the question and continues with the answer. The
    paper's symbols are decimal: an ``alphabet`` of 10.
    """

    def answer(self, word: Integers) -> Sequence[int]:
        return [*word, 0]


class ReverseConfig(WordConfig, kind="reverse"):
    """0w0, then w in reverse order, then 0 (arXiv:1807.03819, section 3.2)."""

    def answer(self, word: Integers) -> Sequence[int]:
        return [*word[::-1], 0]


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
        """Returns a random number of so many digits: Python's integers have no maximum."""
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


GENERATORS = table(GeneratorConfig, DuplicationConfig, CopyConfig, ReverseConfig, AdditionConfig, RecallConfig)
