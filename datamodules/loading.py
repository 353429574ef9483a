"""From streams of batches to loaders: worker processes, ranks, and going on where training stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from datamodules.documents import Shard
from datamodules.errors import DataError

__all__ = ["Batch", "Batches", "EvaluationLoader", "Position", "Reading", "TrainingLoader", "gathered"]


class Batch(Protocol):
    """What every batch says of where it came from: its stream, and where that stream stands after it."""

    @property
    def stream(self) -> int: ...
    @property
    def cursor(self) -> Any: ...


class Batches(Protocol):
    """The batches of one worker, in order."""

    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    def go_to(self, cursor: str) -> None:
        """Makes the next batch the one that came next when ``cursor`` was taken."""


class Position(NamedTuple):
    """Where one rank stands: a cursor for every stream ("" at the beginning), and the stream whose turn is next."""

    cursors: tuple[str, ...]
    turn: int = 0

    def after(self, batch: Batch) -> Position:
        cursors = [*self.cursors]
        cursors[batch.stream] = batch.cursor
        return Position(tuple(cursors), (batch.stream + 1) % len(cursors))


class Reading(NamedTuple):
    """What every worker needs to make its batches.

    ``open`` gives the batches of a shard, for the stream of that number. ``empty`` gives one that holds nothing, for a
    rank that is through while others are not. ``rank``: this process among those that train together.
    """

    open: Callable[[Shard, int], Batches]
    empty: Callable[[], Any]
    rank: Shard
    workers: int

    @property
    def streams(self) -> int:
        return max(self.workers, 1)

    def stream(self, number: int) -> Batches:
        """One of this rank's streams."""
        return self.open(Shard(self.rank.number * self.streams + number, self.rank.total * self.streams), number)

    def start(self) -> Position:
        return Position(("",) * self.streams)

    def batches(self, position: Position) -> Iterator[Any]:
        """The batches of all streams in turn, from ``position`` on. Raises DataError."""
        here = _WorkerBatches(self, position)
        # Without workers a loader would add nothing but its own cost to every batch.
        items = _loader(here, self.workers) if self.workers else here
        for item in items:
            if isinstance(item, _Failure):
                raise DataError(item.reason)
            yield item


def _loader(batches: _WorkerBatches, workers: int) -> Iterable[Any]:
    return DataLoader(batches, batch_size=None, num_workers=workers, collate_fn=_as_it_is)


def _as_it_is(item: Any) -> Any:
    return item


class _Failure(NamedTuple):
    """A DataError on its way out of a worker, where raising it would wrap it into a traceback."""

    reason: str


class _WorkerBatches(IterableDataset[Any]):
    """What one worker does. A loader asks its workers in turn, so worker 0 takes the stream whose turn it is."""

    def __init__(self, reading: Reading, position: Position) -> None:
        self.reading, self.position = reading, position

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        stream = ((worker.id if worker else 0) + self.position.turn) % self.reading.streams
        try:
            batches = self.reading.stream(stream)
            if self.position.cursors[stream]:
                batches.go_to(self.position.cursors[stream])
            yield from batches
        except DataError as error:
            yield _Failure(str(error))


class TrainingLoader:
    """Endless batches. Every ``iter`` goes on where ``position`` says that training stands."""

    def __init__(self, reading: Callable[[], Reading], position: Callable[[Reading], Position]) -> None:
        self.reading, self.position = reading, position

    def __iter__(self) -> Iterator[Any]:
        reading = self.reading()
        return reading.batches(self.position(reading))

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the data module keeps the position. Lightning asks to know that this loader can resume."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load, see ``state_dict``."""


class EvaluationLoader:
    """One pass. All ranks see the same number of batches: one that is through shows padding until all are."""

    def __init__(self, reading: Callable[[], Reading], device: torch.device) -> None:
        self.reading, self.device = reading, device

    def __iter__(self) -> Iterator[Any]:
        reading = self.reading()
        batches = reading.batches(reading.start())
        if reading.rank.total == 1 or not torch.distributed.is_initialized():
            return batches
        return self._evened(batches, reading.empty)

    def _evened(self, batches: Iterator[Any], empty: Callable[[], Any]) -> Iterator[Any]:
        while True:
            batch = next(batches, None)
            busy = torch.tensor([batch is not None], dtype=torch.int32, device=self.device)
            torch.distributed.all_reduce(busy, torch.distributed.ReduceOp.MAX)
            if not busy.item():
                return
            yield empty() if batch is None else batch


def gathered(position: Position, rank: Shard) -> Sequence[Position]:
    """The positions of all ranks, on every rank."""
    if rank.total == 1 or not torch.distributed.is_initialized():
        return [position]
    everyone: list[Any] = [None] * rank.total
    torch.distributed.all_gather_object(everyone, position)
    return everyone
