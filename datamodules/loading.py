"""From lanes to loaders: worker processes, ranks, and going on where training stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from datamodules.documents import Documents, DocumentStream, Limit, Shard
from datamodules.errors import DataError
from datamodules.lanes import Lanes, LaneShape, empty_batch
from datamodules.tokenizers import Tokenizer
from lit_transformers.batch import TextBatch

__all__ = ["EvaluationLoader", "Position", "Reading", "TrainingLoader", "gathered"]

Opener = Callable[[Shard], DocumentStream]


class Position(NamedTuple):
    """Where one rank stands: a cursor for every stream ("" at the beginning), and the stream whose turn is next."""

    cursors: tuple[str, ...]
    turn: int = 0

    def after(self, batch: TextBatch) -> Position:
        cursors = [*self.cursors]
        cursors[batch.stream] = batch.cursor
        return Position(tuple(cursors), (batch.stream + 1) % len(cursors))


class Reading(NamedTuple):
    """What every worker needs to make its batches.

    ``open`` gives the documents of a shard. ``rank``: this process among those that train together.
    """

    open: Opener
    tokenizer: Tokenizer
    shape: LaneShape
    rank: Shard
    workers: int

    @classmethod
    def training(
        cls, documents: Documents, tokenizer: Tokenizer, shape: LaneShape, rank: Shard, workers: int, seed: int
    ) -> Reading:
        return cls(partial(documents.training, seed=seed), tokenizer, shape, rank, workers)

    @classmethod
    def evaluation(
        cls, documents: Documents, tokenizer: Tokenizer, shape: LaneShape, rank: Shard, workers: int, limit: Limit
    ) -> Reading:
        return cls(partial(documents.evaluation, limit=limit), tokenizer, shape, rank, workers)

    @property
    def streams(self) -> int:
        return max(self.workers, 1)

    def lanes(self, stream: int) -> Lanes:
        """The lanes of one of this rank's streams."""
        shard = Shard(self.rank.number * self.streams + stream, self.rank.total * self.streams)
        return Lanes(self.open(shard), self.tokenizer, self.shape, stream)

    def start(self) -> Position:
        return Position(("",) * self.streams)

    def batches(self, position: Position) -> Iterator[TextBatch]:
        """The batches of all streams in turn, from ``position`` on. Raises DataError."""
        here = _WorkerBatches(self, position)
        # Without workers a loader would add nothing but its own cost to every batch.
        items = _loader(here, self.workers) if self.workers else here
        for item in items:
            if isinstance(item, _Failure):
                raise DataError(item.reason)
            yield item


def _loader(batches: _WorkerBatches, workers: int) -> Iterable[TextBatch | _Failure]:
    return DataLoader(batches, batch_size=None, num_workers=workers, collate_fn=_as_it_is)


def _as_it_is(item: Any) -> Any:
    return item


class _Failure(NamedTuple):
    """A DataError on its way out of a worker, where raising it would wrap it into a traceback."""

    reason: str


class _WorkerBatches(IterableDataset[TextBatch | _Failure]):
    """What one worker does. A loader asks its workers in turn, so worker 0 takes the stream whose turn it is."""

    def __init__(self, reading: Reading, position: Position) -> None:
        self.reading, self.position = reading, position

    def __iter__(self) -> Iterator[TextBatch | _Failure]:
        worker = get_worker_info()
        stream = ((worker.id if worker else 0) + self.position.turn) % self.reading.streams
        try:
            lanes = self.reading.lanes(stream)
            if self.position.cursors[stream]:
                lanes.go_to(self.position.cursors[stream])
            yield from lanes
        except DataError as error:
            yield _Failure(str(error))


class TrainingLoader:
    """Endless batches. Every ``iter`` goes on where ``position`` says that training stands."""

    def __init__(self, reading: Callable[[], Reading], position: Callable[[Reading], Position]) -> None:
        self.reading, self.position = reading, position

    def __iter__(self) -> Iterator[TextBatch]:
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

    def __iter__(self) -> Iterator[TextBatch]:
        reading = self.reading()
        batches = reading.batches(reading.start())
        if reading.rank.total == 1 or not torch.distributed.is_initialized():
            return batches
        return self._evened(batches, reading.shape)

    def _evened(self, batches: Iterator[TextBatch], shape: LaneShape) -> Iterator[TextBatch]:
        while True:
            batch = next(batches, None)
            busy = torch.tensor([batch is not None], dtype=torch.int32, device=self.device)
            torch.distributed.all_reduce(busy, torch.distributed.ReduceOp.MAX)
            if not busy.item():
                return
            yield empty_batch(shape) if batch is None else batch


def gathered(position: Position, rank: Shard) -> Sequence[Position]:
    """The positions of all ranks, on every rank."""
    if rank.total == 1 or not torch.distributed.is_initialized():
        return [position]
    everyone: list[Any] = [None] * rank.total
    torch.distributed.all_gather_object(everyone, position)
    return everyone
