"""The order of a pass over examples: stored where they are few, and computed place by place where they are many."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol, final, overload

import numpy as np
import numpy.typing as npt

__all__ = ["ComputedPermutation", "Permutation", "shuffled"]

Ordinals = npt.NDArray[np.int64]
MANY = 1 << 24
"""More examples than these have an order that is computed. A stored one takes eight bytes for each."""
ROUNDS = 8
TOGETHER = 4096
"""The number of places that are computed together when places are read one after another."""


class Permutation(Protocol):
    """Ordinals from 0 in random order, each once, by their places."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, place: int) -> Any: ...

    @overload
    def __getitem__(self, place: slice) -> Ordinals: ...


@lru_cache(maxsize=2)
def shuffled(count: int, seed: int, epoch: int) -> Permutation:
    """Returns the order of a pass over ``count`` examples."""
    if count > MANY:
        return ComputedPermutation(count, seed, epoch)
    order: Ordinals = np.random.default_rng([seed, epoch]).permutation(count)
    return order


@final
class ComputedPermutation:
    """A permutation in constant memory: a Feistel network (Luby and Rackoff, 1988, doi:10.1137/0217022) with a key of
    seed and epoch permutes the smallest power of two that is not below ``count``. Where its result is not below
    ``count``, it is permuted again until it is (cycle walking, Black and Rogaway, 2002, doi:10.1007/3-540-45760-7_9),
    on average less than twice."""

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        self.count = count
        bits = max((count - 1).bit_length(), 2)
        self.widths = (bits // 2, bits - bits // 2)
        self.keys = np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS, np.uint64)
        self.computed: tuple[int, Ordinals] = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        return self.count

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> Ordinals: ...

    def __getitem__(self, place: int | slice) -> int | Ordinals:
        if isinstance(place, slice):
            return self._at(np.arange(*place.indices(self.count), dtype=np.uint64))
        if not 0 <= place < self.count:
            raise IndexError(place)
        block, within = divmod(place, TOGETHER)
        computed, ordinals = self.computed
        if block != computed:
            ordinals = self[block * TOGETHER : (block + 1) * TOGETHER]
            self.computed = (block, ordinals)
        return int(ordinals[within])

    def _at(self, places: npt.NDArray[np.uint64]) -> Ordinals:
        """Returns the ordinals at places."""
        ordinals = self._permuted(places)
        outside = np.flatnonzero(ordinals >= self.count)
        while len(outside):
            ordinals[outside] = self._permuted(ordinals[outside])
            outside = outside[ordinals[outside] >= self.count]
        return ordinals.astype(np.int64)

    def _permuted(self, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Permutes the numbers below the power of two. In each round one half is changed by a hash of the other."""
        high_width, low_width = self.widths
        high, low = numbers >> np.uint64(low_width), numbers & _ones(low_width)
        for key in self.keys:
            high, low = low, high ^ (_mixed(low ^ key) & _ones(high_width))
            high_width, low_width = low_width, high_width
        return high << np.uint64(low_width) | low


def _ones(width: int) -> np.uint64:
    return np.uint64((1 << width) - 1)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns a hash of each number: the last steps of SplitMix64 (Steele, Lea and Flood, 2014,
    doi:10.1145/2660193.2660195)."""
    numbers = (numbers ^ numbers >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ numbers >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ numbers >> np.uint64(31)
