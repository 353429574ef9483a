"""The base of all generators: a string is a question and its answer, made from random numbers of that string alone.

Symbol 0 stands before the question, between question and answer, and after the answer where a string marks its end; it
also fills places that hold nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from datamodules.core.documents import SPLITS, Split
from lit_transformers.batch import IGNORED
from lit_transformers.config import Config, Plain

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

    @property
    def measured(self) -> GeneratorConfig:
        """Hook: the generator of the strings of an evaluation; that of training unless a paper measures otherwise."""
        return self

    def row(self, length: int) -> int:
        """Returns the number of inputs of the longest string of that length."""
        raise NotImplementedError

    def refusal(self, length: int) -> str | None:
        """Returns the reason why no string has that length; None where there are some."""
        raise NotImplementedError

    def make(self, length: int, random: np.random.Generator) -> String:
        """Makes one string of that length."""
        raise NotImplementedError

    def chance(self, lengths: Sequence[int]) -> float | None:
        """Hook: returns the expected accuracy of the best single symbol as the answer to everything, over equally many
        strings of each length; None where it is not known exactly."""
        return None

    def meanings(self) -> dict[str, Plain]:
        """Hook: returns the facts that decide the meanings of symbols. By default the kind and the number of
        symbols."""
        return {"kind": self.kind, "symbols": self.symbols}

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
