"""The order in which ordinals are read, and windows of them that are cut into batches of about equal lengths."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from random import Random
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import Shard
from datamodules.core.errors import DataError

__all__ = ["Endless", "Once", "Order", "Visit", "Visits", "Windows", "shuffled"]

Item = TypeVar("Item")
Read = TypeVar("Read")
Visited = TypeVar("Visited", covariant=True)
Made = TypeVar("Made")


class Order(Protocol[Visited]):
    """What a reader of windows reads, in order: ordinals, or what else names an item."""

    def slice(self, start: int, stop: int) -> Sequence[Visited]:
        """Returns what stands from place ``start`` to ``stop``, fewer at an end."""

    def arrange(self, batches: list[list[Item]], start: int) -> list[list[Item]]:
        """Returns the batches of the window that begins at ``start`` in the order in which they are read."""


class Endless:
    """The ordinals of a shard in training: every pass has an order of its own, and the passes, one after another, are
    dealt to the shards in turn. So the next rows of all ranks together are those that one process would read next."""

    def __init__(self, count: int, seed: int, shard: Shard) -> None:
        if count < shard.total:
            raise DataError(
                f"source: {count} examples cannot feed {shard.total} readers (ranks x workers); use fewer or more data"
            )
        self.count, self.seed, self.shard = count, seed, shard

    def epoch(self, place: int) -> tuple[int, int]:
        """Returns the pass that a place of the shard is in, and its place among all of that pass."""
        return divmod(self.shard.number + place * self.shard.total, self.count)

    def slice(self, start: int, stop: int) -> list[int]:
        """Returns the ordinals from place ``start`` to ``stop``, counted over all passes."""
        places = (self.epoch(place) for place in range(start, stop))
        return [int(shuffled(self.count, self.seed, epoch)[place]) for epoch, place in places]

    def arrange(self, batches: list[list[Item]], start: int) -> list[list[Item]]:
        """Returns the batches of a window, which are sorted by length, in random order."""
        chance = Random(f"{self.seed} {start} {self.shard.number}")
        return sorted(batches, key=lambda _: chance.random())


class Once:
    """The ordinals of a shard in evaluation: one pass over all, or over a part that is the same for every run."""

    def __init__(self, count: int, limit: int | None, shard: Shard) -> None:
        ordinals = range(count) if limit is None else sorted(shuffled(count, 0, 0)[:limit].tolist())
        self.ordinals = [*ordinals[shard.number :: shard.total]]

    def slice(self, start: int, stop: int) -> list[int]:
        """Returns the ordinals from place ``start`` to ``stop``, fewer at the end."""
        return self.ordinals[start:stop]

    def arrange(self, batches: list[list[Item]], start: int) -> list[list[Item]]:
        """Returns the batches as they are, because their order decides nothing."""
        return batches


class Visit(NamedTuple):
    """An ordinal that is read, and the pass over all of them in which it is, from 0."""

    ordinal: int
    epoch: int


class Visits:
    """The ordinals of an order, each with its epoch: for items that are not the same in every pass."""

    def __init__(self, order: Endless | Once) -> None:
        self.order = order

    def slice(self, start: int, stop: int) -> list[Visit]:
        """Returns the visits from place ``start`` to ``stop``, counted over all passes; an evaluation has one."""
        ordinals = self.order.slice(start, stop)
        if not isinstance(self.order, Endless):
            return [Visit(ordinal, 0) for ordinal in ordinals]
        return [Visit(ordinal, self.order.epoch(place)[0]) for place, ordinal in enumerate(ordinals, start)]

    def arrange(self, batches: list[list[Item]], start: int) -> list[list[Item]]:
        """Returns the batches of a window as the order arranges them."""
        return self.order.arrange(batches, start)


@lru_cache(maxsize=2)
def shuffled(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Returns the order of a pass over ``count`` examples."""
    return np.random.default_rng([seed, epoch]).permutation(count)


class Windows(Iterator[Made], Generic[Read, Item, Made]):
    """The batches of one worker: windows of ``size`` ordinals, each read at once and cut into batches.

    group: reads the items of a window's ordinals, as lists of a batch each. batch: makes a batch of a list, with its
    stream and cursor.
    """

    def __init__(
        self,
        order: Order[Read],
        size: int,
        group: Callable[[list[Read]], list[list[Item]]],
        batch: Callable[[list[Item], int, str], Made],
        number: int,
    ) -> None:
        self.order, self.size, self.group, self.batch, self.number = order, size, group, batch, number
        self.start = self.place = 0
        self.batches: list[list[Item]] = []

    def __next__(self) -> Made:
        if not self.batches:
            self._read_window()
        elif self.place == len(self.batches):
            self.start += self.size
            self._read_window()
        if not self.batches:
            raise StopIteration
        items = self.batches[self.place]
        self.place += 1
        return self.batch(items, self.number, json.dumps([self.start, self.place]))

    def go_to(self, cursor: str) -> None:
        """Makes the next batch the one that came next when ``cursor`` was taken."""
        self.start, place = json.loads(cursor)
        self._read_window()
        self.place = place

    def _read_window(self) -> None:
        """Reads the window that begins at ``start``."""
        batches = self.group([*self.order.slice(self.start, self.start + self.size)])
        self.batches, self.place = self.order.arrange(batches, self.start), 0
