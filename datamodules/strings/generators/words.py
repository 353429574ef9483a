"""Strings that repeat one word: copying, duplication, reversing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from datamodules.strings.generators.generator import Alphabet, GeneratorConfig, Integers, String, spoken
from lit_transformers.config import Plain

__all__ = ["CopyConfig", "DuplicationConfig", "ReverseConfig"]


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

    def chance(self, lengths: Sequence[int]) -> float:
        letters = sum(lengths)
        ends = sum(len(self.answer(np.zeros(length, np.int64))) for length in lengths) - letters
        return max(letters / self.alphabet, ends) / (letters + ends)

    def meanings(self) -> dict[str, Plain]:
        return {"kind": "word", "symbols": self.symbols}

    def answer(self, word: Integers) -> Sequence[int] | Integers:
        """Returns the answer to a word: its symbols in some order, with or without a 0 at the end."""
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
