"""From streams of batches to loaders: worker processes, ranks, and resuming where training stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from datamodules.core.documents import Shard
from datamodules.core.errors import DataError

__all__ = ["Batch", "Batches", "EvaluationLoader", "Position", "Reading", "TrainingLoader", "gathered"]


class Batch(Protocol):
    """The fields by which every batch tells its origin: its stream, and the stream's cursor after the batch."""

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
    """The position of one rank: a cursor for every stream ("" at the beginning), and the stream whose turn is next."""

    cursors: tuple[str, ...]
    turn: int = 0

    def after(self, batch: Batch) -> Position:
        cursors = [*self.cursors]
        cursors[batch.stream] = batch.cursor
        return Position(tuple(cursors), (batch.stream + 1) % len(cursors))


class Reading(NamedTuple):
    """Everything that workers need to make their batches.

    ``open`` returns the batches of a shard, for the stream of that number. ``empty`` returns a batch of padding, for a
    rank that has finished while others have not. ``rank``: the number of this process among those that train together.
    """

    open: Callable[[Shard, int], Batches]
    empty: Callable[[], Any]
    rank: Shard
    workers: int

    @property
    def streams(self) -> int:
        return max(self.workers, 1)

    def stream(self, number: int) -> Batches:
        """Opens one of this rank's streams."""
        return self.open(Shard(self.rank.number * self.streams + number, self.rank.total * self.streams), number)

    def start(self) -> Position:
        return Position(("",) * self.streams)

    def batches(self, position: Position) -> Iterator[Any]:
        """Yields the batches of all streams in turn, from ``position`` on. Raises DataError."""
        worker_batches = _WorkerBatches(self, position)
        # Without workers a loader would only add its own cost to every batch.
        items = _loader(worker_batches, self.workers) if self.workers else worker_batches
        for item in items:
            if isinstance(item, _Failure):
                raise DataError(item.reason)
            yield item


def _loader(batches: _WorkerBatches, workers: int) -> Iterable[Any]:
    return DataLoader(batches, batch_size=None, num_workers=workers, collate_fn=_identity)


def _identity(item: Any) -> Any:
    return item


class _Failure(NamedTuple):
    """A DataError that a worker passes on as an item, because raising it there would wrap it into a traceback."""

    reason: str


class _WorkerBatches(IterableDataset[Any]):
    """The batches of one worker.

    A loader takes batches from its workers in turn, so worker 0 has the stream whose turn it is.
    """

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
    """A loader of endless batches. Every ``iter`` continues at the training's ``position``."""

    def __init__(self, reading: Callable[[], Reading], position: Callable[[Reading], Position]) -> None:
        self.reading, self.position = reading, position

    def __iter__(self) -> Iterator[Any]:
        reading = self.reading()
        return reading.batches(self.position(reading))

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the data module keeps the position. Lightning requires it of loaders that can resume."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads nothing, see ``state_dict``."""


class EvaluationLoader:
    """A loader of one pass. All ranks get equally many batches: one that has finished gets padding until all have."""

    def __init__(self, reading: Callable[[], Reading], device: torch.device) -> None:
        self.reading, self.device = reading, device

    def __iter__(self) -> Iterator[Any]:
        reading = self.reading()
        batches = reading.batches(reading.start())
        if reading.rank.total == 1 or not torch.distributed.is_initialized():
            return batches
        return self._padded(batches, reading.empty)

    def _padded(self, batches: Iterator[Any], empty: Callable[[], Any]) -> Iterator[Any]:
        """Yields the batches, then empty ones until every rank has finished."""
        while True:
            batch = next(batches, None)
            has_batch = torch.tensor([batch is not None], dtype=torch.int32, device=self.device)
            torch.distributed.all_reduce(has_batch, torch.distributed.ReduceOp.MAX)
            if not has_batch.item():
                return
            yield empty() if batch is None else batch


def gathered(position: Position, rank: Shard) -> Sequence[Position]:
    """Returns the positions of all ranks, on every rank."""
    if rank.total == 1 or not torch.distributed.is_initialized():
        return [position]
    positions: list[Any] = [None] * rank.total
    torch.distributed.all_gather_object(positions, position)
    return positions
