"""From batches in order to loaders: worker processes, and resuming where training stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from datamodules.core.documents import Shard
from datamodules.core.errors import DataError

__all__ = ["CHUNK", "Batches", "EvaluationLoader", "Reading", "TrainingLoader", "in_order"]

CHUNK = 4
"""Batches of a chunk where the order of the data does not say, and those that a worker sends together."""
ALIGNMENT = 16
"""In a message from a worker, each tensor begins at a multiple of this number of bytes."""


class Batches(Protocol):
    """A rank's share of the batches of all ranks, in order. They come in chunks, which workers make in turn: one reads
    a chunk whole, and passes over those of others."""

    def chunk(self) -> Iterator[Any]:
        """Returns the batches of the next chunk, which are all taken before any other call; none at the end."""

    def skip(self) -> None:
        """Passes over the next chunk."""

    def go_to(self, cursor: str) -> None:
        """Makes the next chunk begin with the batch that came next when ``cursor`` was taken."""


def in_order(batches: Batches) -> Iterator[Any]:
    """Yields the batches of all chunks."""
    while True:
        batch = None
        for batch in batches.chunk():
            yield batch
        if batch is None:
            return


class Reading(NamedTuple):
    """Everything that workers need to make their batches.

    ``open`` returns a rank's share of the batches. ``rank``: the number of this process among those that train
    together. A cursor is the position of all ranks, "" at the beginning; it depends neither on ranks nor on workers.
    """

    open: Callable[[Shard], Batches]
    rank: Shard
    workers: int

    def batches(self, cursor: str = "") -> Iterator[Any]:
        """Yields this rank's share of all batches from ``cursor`` on. Raises DataError."""
        # Without workers a loader would only add its own cost to every batch.
        return self._from_workers(cursor) if self.workers else in_order(self.opened(cursor))

    def opened(self, cursor: str) -> Batches:
        """Returns the batches from ``cursor`` on."""
        batches = self.open(self.rank)
        if cursor:
            batches.go_to(cursor)
        return batches

    def _from_workers(self, cursor: str) -> Iterator[Any]:
        """Yields the batches that workers make. Each worker has its own loader, because a shared loader would take a
        batch of each in turn."""
        loaders = [_loader(_WorkerChunks(self, cursor, number)) for number in range(self.workers)]
        for loader in cycle(loaders):
            for message in loader:
                yield from message.batches()
                if message.failure is not None:
                    raise DataError(message.failure)
                if message.ends_chunk:
                    break
            else:
                return


def _loader(chunks: _WorkerChunks) -> Iterator[Any]:
    """Starts a worker. Its seed, which nothing uses, is not drawn from the random numbers of training."""
    return iter(
        DataLoader(
            chunks,
            batch_size=None,
            num_workers=1,
            collate_fn=_identity,
            prefetch_factor=1,
            generator=torch.Generator(),
        )
    )


def _identity(item: Any) -> Any:
    return item


class _Tensor(NamedTuple):
    """A tensor among the bytes of others, from the byte ``start`` on."""

    start: int
    dtype: torch.dtype
    shape: torch.Size

    def read(self, content: Tensor) -> Tensor:
        """Returns the tensor, a view of the bytes."""
        size = self.shape.numel() * self.dtype.itemsize
        return content[self.start : self.start + size].view(self.dtype).view(self.shape)


class _SentBatches(NamedTuple):
    """Batches that a worker sends together. To send one tensor takes both processes a millisecond, so there is one.

    content: the bytes of all tensors. outlines: the batches, with a ``_Tensor`` in place of each tensor. ends_chunk:
    whether these are the last of a chunk. failure: a DataError, which would come as a traceback if it was raised there.
    """

    content: Tensor
    outlines: list[Any]
    ends_chunk: bool
    failure: str | None = None

    @classmethod
    def of(cls, batches: list[Any], ends_chunk: bool, failure: str | None = None) -> _SentBatches:
        size, tensors = 0, list[tuple[int, Tensor]]()

        def outline(tensor: Tensor) -> _Tensor:
            nonlocal size
            start, size = size, size + -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
            tensors.append((start, tensor))
            return _Tensor(start, tensor.dtype, tensor.shape)

        outlines = [_with_tensors(batch, Tensor, outline) for batch in batches]
        content = torch.empty(size, dtype=torch.uint8)
        for start, tensor in tensors:
            content[start : start + tensor.nbytes] = tensor.contiguous().flatten().view(torch.uint8)
        return cls(content, outlines, ends_chunk, failure)

    def batches(self) -> Iterator[Any]:
        """Yields the batches as they were."""
        for outline in self.outlines:
            yield _with_tensors(outline, _Tensor, lambda tensor: tensor.read(self.content))


class _WorkerChunks(IterableDataset[_SentBatches]):
    """The batches of the chunks that one of a reading's workers makes, of each chunk at most CHUNK together."""

    def __init__(self, reading: Reading, cursor: str, number: int) -> None:
        self.reading, self.cursor, self.number = reading, cursor, number

    def __iter__(self) -> Iterator[_SentBatches]:
        together: list[Any] = []
        try:
            batches = self.reading.opened(self.cursor)
            passed_over = self.number
            while True:
                for _ in range(passed_over):
                    batches.skip()
                for batch in batches.chunk():
                    if len(together) == CHUNK:
                        yield _SentBatches.of(together, ends_chunk=False)
                        together = []
                    together.append(batch)
                if not together:
                    return
                yield _SentBatches.of(together, ends_chunk=True)
                together, passed_over = [], self.reading.workers - 1
        except DataError as error:
            yield _SentBatches.of(together, ends_chunk=True, failure=str(error))


def _with_tensors(batch: Any, kind: type[Any], change: Callable[[Any], Any]) -> Any:
    """Returns a batch with its parts of a kind changed, also those in mappings."""

    def changed(part: Any) -> Any:
        if isinstance(part, Mapping):
            return {name: changed(column) for name, column in part.items()}
        return change(part) if isinstance(part, kind) else part

    return batch._replace(**{name: changed(part) for name, part in batch._asdict().items()})


def pinned(batch: Any) -> Any:
    """Returns a batch in pinned memory, from which a GPU copies while the host continues."""
    return _with_tensors(batch, Tensor, Tensor.pin_memory)


class TrainingLoader:
    """A loader of endless batches. Every ``iter`` continues at the training's ``cursor``. pins: whether batches are put
    into pinned memory."""

    def __init__(self, reading: Callable[[], Reading], cursor: Callable[[], str], pins: bool = False) -> None:
        self.reading, self.cursor, self.pins = reading, cursor, pins

    def __iter__(self) -> Iterator[Any]:
        batches = self.reading().batches(self.cursor())
        return map(pinned, batches) if self.pins else batches

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: the data module keeps the position. Lightning requires it of loaders that can resume."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads nothing, see ``state_dict``."""


class EvaluationLoader:
    """A loader of one pass. All ranks get equally many batches, of padding where a batch has no row for them. pins: as
    in ``TrainingLoader``."""

    def __init__(self, reading: Callable[[], Reading], pins: bool = False) -> None:
        self.reading, self.pins = reading, pins

    def __iter__(self) -> Iterator[Any]:
        batches = self.reading().batches()
        return map(pinned, batches) if self.pins else batches
