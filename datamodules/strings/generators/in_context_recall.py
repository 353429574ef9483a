"""Recall of values that a string itself has assigned to keys, also among noise, and of keys of several symbols."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from datamodules.strings.generators.generator import Alphabet, GeneratorConfig, Integers, String
from lit_transformers.batch import IGNORED
from lit_transformers.config import Fraction, NonNegative, Plain, Positive

__all__ = ["InContextRecallConfig"]


class InContextRecallConfig(GeneratorConfig, kind="in_context_recall"):
    """In-context, noisy and fuzzy recall (MAD, Poli et al. 2024, arXiv:2403.17844).

    A string is a sequence of keys, each followed by its value, which the string draws when the key comes first. Where a
    key comes again its value is to be predicted, symbol by symbol after the correct ones. The last pair always asks for
    a key that the string has. The length is the number of inputs; zeros at the beginning fill the rest.

    keys, values              number of symbols that keys consist of, and values; the sets are disjoint
    key_length, value_length  the longest key and the longest value, in symbols, of which none comes twice within a key
                              or value; any length up to them is equally frequent. Above 1 the recall is fuzzy
    shortest_key              the shortest key; strings of an evaluation have the longest keys alone, as in the paper
    noise                     the probability that symbols of a third set take the place of a pair
    noise_symbols             number of these symbols

    The paper's published code also trains on symbols that nobody can predict; here the loss is that of values alone.
    """

    keys: Alphabet = 8
    values: Alphabet = 8
    key_length: Positive = 1
    value_length: Positive = 1
    shortest_key: Positive = 1
    noise: Fraction = 0.0
    noise_symbols: NonNegative = 0

    def conflicts(self) -> Iterator[str]:
        for name, symbols in (("key", self.keys), ("value", self.values)):
            longest: int = self.get(f"{name}_length")
            if longest > symbols:
                yield f"{name}_length {longest} takes as many different symbols, and {name}s has {symbols}"
        if self.shortest_key > self.key_length:
            yield f"shortest_key {self.shortest_key} is longer than key_length, {self.key_length}"
        if (self.noise > 0) != (self.noise_symbols > 0):
            yield f"noise {self.noise:g} does not go with {self.noise_symbols} noise_symbols; set both or neither"

    @property
    def symbols(self) -> int:
        return 1 + self.keys + self.values + self.noise_symbols

    @property
    def measured(self) -> InContextRecallConfig:
        return self.override({"shortest_key": self.key_length})

    @property
    def _longest_pair(self) -> int:
        return self.key_length + self.value_length

    def row(self, length: int) -> int:
        return length

    def refusal(self, length: int) -> str | None:
        least = 2 * self._longest_pair - 1
        return None if length >= least else f"a pair and the question for it take {least} inputs"

    def chance(self, lengths: Sequence[int]) -> float:
        return 1 / self.values

    def meanings(self) -> dict[str, Plain]:
        return super().meanings() | {"keys": self.keys, "values": self.values}

    def make(self, length: int, random: np.random.Generator) -> String:
        longest, total = self._longest_pair, length + 1
        most = total // (self.shortest_key + 1)
        keys = pieces(random, most, self.keys, self.shortest_key, self.key_length, 1)
        values = pieces(random, most, self.values, 1, self.value_length, 1 + self.keys)
        is_noise = random.random(most) < self.noise
        is_noise[random.integers(total // longest - 1)] = False  # so that there is a key to ask for
        dictionary: dict[tuple[int, ...], tuple[int, ...]] = {}
        symbols: list[int] = []
        targets: list[int] = []

        def add(key: tuple[int, ...], value: tuple[int, ...], is_scored: bool) -> None:
            symbols.extend(key + value)
            targets.extend([IGNORED] * len(key))
            targets.extend(value if is_scored else [IGNORED] * len(value))

        for key, value, noisy in zip(keys, values, is_noise.tolist(), strict=True):
            if len(symbols) + 2 * longest > total:
                break
            if noisy:
                first = 1 + self.keys + self.values
                noise = random.integers(first, first + self.noise_symbols, len(key) + len(value))
                add(tuple(noise.tolist()), (), is_scored=False)
            else:
                add(key, dictionary.get(key, value), key in dictionary)
                dictionary.setdefault(key, value)
        last = [*dictionary][random.integers(len(dictionary))]
        add(last, dictionary[last], is_scored=True)
        empty = total - len(symbols)
        return String(
            np.array([0] * empty + symbols[:-1], np.int64), np.array(([IGNORED] * empty + targets)[1:], np.int64)
        )


def pieces(
    random: np.random.Generator, count: int, alphabet: int, shortest: int, longest: int, first: int
) -> list[tuple[int, ...]]:
    """Returns sequences of different symbols, of lengths from ``shortest`` to ``longest`` that are equally frequent.

    first: the first of the ``alphabet`` symbols.
    """
    symbols: Integers = first + random.random((count, alphabet)).argsort(axis=1)[:, :longest]
    sizes = random.integers(shortest, longest + 1, count)
    return [tuple(row[:size]) for row, size in zip(symbols.tolist(), sizes.tolist(), strict=True)]
