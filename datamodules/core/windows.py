"""The order in which ordinals are read, and windows of them that are cut into batches of about equal lengths."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import Shard
from datamodules.core.errors import DataError
from datamodules.core.permutations import shuffled

__all__ = ["Endless", "Once", "Order", "Visit", "Visits", "Windows", "cut"]

Item = TypeVar("Item")
Read = TypeVar("Read")
Visited = TypeVar("Visited", covariant=True)
Share = TypeVar("Share")
Made = TypeVar("Made")


class Order(Protocol[Visited, Share]):
    """The items that a reader of windows reads, in order: their ordinals, or other values that name them."""

    def slice(self, start: int, stop: int) -> Sequence[Visited]:
        """Returns the items from place ``start`` to ``stop``, fewer at an end."""

    def arrange(self, batches: list[Share], start: int) -> list[Share]:
        """Returns the batches of the window that begins at ``start`` in the order in which they are read."""


class Endless:
    """The ordinals of training: every pass has its own order, and a place is counted over all passes."""

    def __init__(self, count: int, seed: int) -> None:
        if not count:
            raise DataError("data.source: there is no example to train on; use other data")
        self.count, self.seed = count, seed

    def epoch(self, place: int) -> tuple[int, int]:
        """Returns the pass that a place is in, and its place in that pass."""
        return divmod(place, self.count)

    def slice(self, start: int, stop: int) -> list[int]:
        """Returns the ordinals from place ``start`` to ``stop``, counted over all passes."""
        ordinals: list[int] = []
        while start < stop:
            epoch, place = self.epoch(start)
            read = shuffled(self.count, self.seed, epoch)[place : place + stop - start].tolist()
            ordinals += read
            start += len(read)
        return ordinals

    def arrange(self, batches: list[list[Item]], start: int) -> list[list[Item]]:
        """Returns the batches of a window, which are sorted by length, in random order."""
        chance = Random(f"{self.seed} {start} 0")
        return sorted(batches, key=lambda _: chance.random())


class Once:
    """The ordinals of an evaluation: one pass over all, or over a part that is the same for every run.

    limit: the most of them. documents: that of each, ascending, where several belong to one; ``limit`` then counts
    documents, of each of which all are read.
    """

    def __init__(self, count: int, limit: int | None, documents: npt.NDArray[np.int64] | None = None) -> None:
        self.ordinals: Sequence[int] = range(count)
        if limit is None:
            return
        if documents is None:
            self.ordinals = sorted(shuffled(count, 0, 0)[:limit].tolist())
        else:
            chosen = np.sort(shuffled(int(documents[-1]) + 1, 0, 0)[:limit])
            begins, ends = (np.searchsorted(documents, chosen, side) for side in ("left", "right"))
            self.ordinals = [ordinal for parts in zip(begins, ends, strict=True) for ordinal in range(*parts)]

    def slice(self, start: int, stop: int) -> list[int]:
        """Returns the ordinals from place ``start`` to ``stop``, fewer at the end."""
        return [*self.ordinals[start:stop]]

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


def cut(
    visits: Sequence[Read],
    read: Callable[[Read], Item],
    size: int,
    share: Shard,
    length: Callable[[Item], int] | None = None,
) -> list[list[Item]]:
    """Cuts a window into batches of ``size`` items over all ranks, and returns the share of one rank of each.

    length: of an item, by which those of a window are sorted first, so that a rank has to read all of them. Without it,
    a rank reads its share alone.
    """
    starts = range(0, len(visits), size)
    if length is None:
        return [[read(visit) for visit in share.of(visits[start : start + size])] for start in starts]
    ordered = sorted(map(read, visits), key=length)
    return [share.of(ordered[start : start + size]) for start in starts]


class Windows(Generic[Read, Share, Made]):
    """One rank's share of batches: windows of ``size`` visits over all ranks are cut into batches. A window is a chunk.

    group: reads a window, and returns the rank's share of each of its batches. batch: makes a batch of it, with its
    cursor.
    """

    def __init__(
        self,
        order: Order[Read, Share],
        size: int,
        group: Callable[[list[Read]], list[Share]],
        batch: Callable[[Share, str], Made],
    ) -> None:
        self.order, self.size, self.group, self.batch = order, size, group, batch
        self.start = self.place = 0

    def chunk(self) -> Iterator[Made]:
        """Returns the batches of the next window, from the one that comes next on; none at the end."""
        start, place = self.start, self.place
        batches = self.order.arrange(self.group([*self.order.slice(start, start + self.size)]), start)
        self.skip()
        return (
            self.batch(share, json.dumps([start, number] if number < len(batches) else [start + self.size, 0]))
            for number, share in enumerate(batches[place:], place + 1)
        )

    def skip(self) -> None:
        """Passes over the rest of a window."""
        self.start, self.place = self.start + self.size, 0

    def go_to(self, cursor: str) -> None:
        """Makes the next batch the one that came next when ``cursor`` was taken."""
        self.start, self.place = json.loads(cursor)
