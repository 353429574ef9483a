"""Lanes: documents laid end to end in the rows of batches, where each row continues the same row of the last batch.

A lane that has room takes the next document of all, so who reads some of the lanes has to know how long the documents
of the others are. That makes batches the same on any number of ranks and workers. Their processes share the work of
encoding: one that lacks a document that another process encodes meanwhile encodes documents that come later.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from datamodules.core.documents import Document, DocumentStream, Shard
from datamodules.core.encoding import symbol_type
from datamodules.core.errors import DataError
from datamodules.core.loading import CHUNK
from datamodules.core.shared_symbols import SharedSymbols
from datamodules.core.tokenizers import Symbols, Tokenizer, encode_document
from lit_transformers.batch import IGNORED, TextBatch
from lit_transformers.config import Plain

__all__ = ["LaneShape", "Lanes"]


ALONE = Shard()
EMPTY: Symbols = np.empty(0, np.int32)
TOGETHER, TOGETHER_BYTES = 256, 1 << 16
"""The most documents that are claimed, encoded and written together, and the bytes of symbols from which on no further
document joins."""
AHEAD = 4096
"""The most documents that are taken from the stream before a lane needs them."""


class LaneShape(NamedTuple):
    """rows: number of lanes over all ranks. A row has ``segment_length`` positions and the lane's next row starts
    ``stride`` later.

    joined: whether a row continues with the next document (policy "stream") or ends with its document ("reset").
    """

    rows: int
    segment_length: int
    stride: int
    joined: bool


@dataclass(slots=True)
class _LaneDocument:
    """A document in a lane. at: the stream's state before it. read: reads its text; None once ``symbols`` are there,
    and in a lane of another rank. symbols: the boundary, then its ``length`` symbols; empty before that."""

    at: Plain
    ordinal: int
    read: Callable[[], Document] | None
    length: int = 0
    symbols: Symbols = field(default_factory=lambda: EMPTY)


class _Lane:
    """documents: those from the row's start on. offset: number of positions of the first document before the row.

    ahead: number of positions from the row's start to the end of ``documents``. scored: how many of these have targets
    that earlier rows scored. fresh: whether the next row starts from an empty state. is_own: whether this rank reads
    it. unbroken: number of positions right before the row that hold no padding, since a row was fresh.
    """

    def __init__(self) -> None:
        self.is_own = False
        self.documents: list[_LaneDocument] = []
        self.offset = self.ahead = self.scored = self.unbroken = 0
        self.fresh = True

    def add(self, document: _LaneDocument) -> None:
        self.documents.append(document)
        self.ahead += document.length

    def go_to(self, offset: int, scored: int, fresh: bool, unbroken: int = 0) -> None:
        self.ahead -= offset
        self.offset, self.scored, self.fresh, self.unbroken = offset, scored, fresh, unbroken

    def clear(self, fresh: bool) -> None:
        self.documents.clear()
        self.offset = self.ahead = self.scored = self.unbroken = 0
        self.fresh = fresh

    def advance(self, shape: LaneShape, filled: int) -> None:
        """Moves past a row that held ``filled`` positions."""
        sliding = shape.stride < shape.segment_length
        if filled < shape.segment_length or (not shape.joined and self.ahead == filled):
            self.clear(fresh=not shape.joined or sliding)
            return
        self.offset += shape.stride
        self.ahead -= shape.stride
        self.scored = shape.segment_length - shape.stride
        self.fresh, self.unbroken = sliding, 0 if sliding else self.unbroken + filled
        while self.documents and self.offset >= self.documents[0].length:
            self.offset -= self.documents.pop(0).length


class _Upcoming:
    """The documents of a stream, of which later ones can be seen before they are taken."""

    def __init__(self, stream: DocumentStream) -> None:
        self.stream = stream
        self.waiting: deque[_LaneDocument] = deque()
        self.seen = 0

    def state(self) -> Plain:
        """Returns the position of the next document."""
        return self.waiting[0].at if self.waiting else self.stream.state()

    def go_to(self, state: Plain) -> None:
        """Makes the next document the one that came next when ``state`` was taken."""
        self.waiting.clear()
        self.seen = 0
        self.stream.go_to(state)

    def take(self) -> _LaneDocument | None:
        """Returns the next document, or None at the end."""
        self.seen = max(self.seen - 1, 0)
        return self.waiting.popleft() if self.waiting else self._next()

    def later(self) -> Iterator[_LaneDocument]:
        """Yields documents that come later, each once and not more than AHEAD before the next one."""
        while self.seen < AHEAD:
            if self.seen == len(self.waiting):
                if (document := self._next()) is None:
                    return
                self.waiting.append(document)
            self.seen += 1
            yield self.waiting[self.seen - 1]

    def _next(self) -> _LaneDocument | None:
        at = self.stream.state()
        taken = self.stream.take_unread()
        return None if taken is None else _LaneDocument(at, *taken)


class _Arrays(NamedTuple):
    """The arrays of a batch, which are written row by row."""

    inputs: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    document: npt.NDArray[np.int64]

    @classmethod
    def padding(cls, rows: int, length: int) -> _Arrays:
        size = (rows, length)
        return cls(np.zeros(size, np.int64), np.full(size, IGNORED, np.int64), np.zeros(size, np.int64))

    def batch(self, filled: list[int], fresh: list[bool], unbroken: int, cursor: str) -> TextBatch:
        """Makes the batch. filled: the number of real positions of each row, which come first."""
        inputs, targets, document = map(torch.from_numpy, self)
        length = inputs.size(1)
        padding_mask, padded = torch.arange(length) < torch.tensor(filled)[:, None], any(n < length for n in filled)
        return TextBatch(inputs, targets, padding_mask, document, torch.tensor(fresh), cursor, padded, unbroken)


class Lanes:
    """One rank's share of the lanes. A document d_1..d_n has inputs boundary, d_1..d_(n-1) and targets d_1..d_n.

    The batches end when the stream has ended and no lane has anything left; lanes that end earlier are padding.

    store: the symbols of documents, each after its boundary, which other processes read and write too; None: every
    document is encoded here.
    """

    def __init__(
        self,
        stream: DocumentStream,
        tokenizer: Tokenizer,
        shape: LaneShape,
        share: Shard = ALONE,
        store: SharedSymbols | None = None,
    ) -> None:
        self.stream, self.tokenizer, self.shape, self.share, self.store = stream, tokenizer, shape, share, store
        self.upcoming, self.type = _Upcoming(stream), symbol_type(tokenizer.vocabulary)
        self.lanes = [_Lane() for _ in range(shape.rows)]
        self.own = share.of(self.lanes)
        for lane in self.own:
            lane.is_own = True

    def chunk(self) -> Iterator[TextBatch]:
        """Returns the next ``CHUNK`` batches, fewer at the end."""
        for _ in range(CHUNK):
            filled = self._filled()
            if not any(filled):
                return
            yield self._batch(filled)

    def skip(self) -> None:
        """Passes over as many batches."""
        for _ in range(CHUNK):
            self._advance(self._filled())

    def _filled(self) -> list[int]:
        """Reads documents for the next row of each lane; returns the number of positions of each."""
        return [self._fill(lane) for lane in self.lanes]

    def _advance(self, filled: list[int]) -> None:
        for lane, count in zip(self.lanes, filled, strict=True):
            lane.advance(self.shape, count)

    def _batch(self, filled: list[int]) -> TextBatch:
        """Makes the batch of this rank's lanes, and moves all lanes past it."""
        arrays = _Arrays.padding(len(self.own), self.shape.segment_length)
        counts = self.share.of(filled)
        fresh = [lane.fresh and count > 0 for lane, count in zip(self.own, counts, strict=True)]
        unbroken = min((lane.unbroken for lane, count in zip(self.own, counts, strict=True) if count), default=0)
        for row, (lane, count) in enumerate(zip(self.own, counts, strict=True)):
            if count:
                self._write(lane, count, arrays.inputs[row], arrays.targets[row], arrays.document[row])
        self._advance(filled)
        return arrays.batch(counts, fresh, unbroken, self.cursor())

    def cursor(self) -> str:
        """Returns the state of all lanes as JSON text, because a tree would be walked on every transfer to a device."""
        lanes = [
            [[document.at for document in lane.documents], lane.offset, lane.scored, int(lane.fresh), lane.unbroken]
            for lane in self.lanes
        ]
        return json.dumps([self.upcoming.state(), lanes], separators=(",", ":"))

    def go_to(self, cursor: str) -> None:
        """Makes the next batch the one that came next when ``cursor`` was taken."""
        state, lanes = json.loads(cursor)
        for lane, (starts, offset, scored, fresh, *unbroken) in zip(self.lanes, lanes, strict=True):
            lane.clear(fresh=True)
            for start in starts:
                self.upcoming.go_to(start)
                self._pull(lane)
            lane.go_to(offset, scored, bool(fresh), *unbroken)  # cursors of older checkpoints have four fields
        self.upcoming.go_to(state)

    def _pull(self, lane: _Lane) -> bool:
        """Adds the stream's next document to the lane; returns False at the stream's end."""
        item = self.upcoming.take()
        if item is None:
            return False
        item.length = self._length(item)
        if not lane.is_own:
            item.read, item.symbols = None, EMPTY
        if item.length:
            lane.add(item)
        return True

    def _length(self, item: _LaneDocument) -> int:
        """Returns the number of symbols of a document, which is encoded where nobody knows it."""
        if self.store is not None:
            while (known := self.store.length(item.ordinal)) is None and self.store.divides_work:
                if not self._encode_together(item, self.store) and not self.store.wait(item.ordinal):
                    break
            if known is not None:
                return known - 1
        return len(self._symbols(item)) - 1

    def _encode_together(self, item: _LaneDocument, store: SharedSymbols) -> bool:
        """Encodes into the store a document and those that come later, but for those that it has or that another
        process has claimed. Returns False where that leaves none."""
        encoded: dict[int, Symbols] = {}
        size = 0
        try:
            for other in chain([item], self.upcoming.later()):
                ordinal = other.ordinal
                if ordinal in encoded or store.length(ordinal) is not None or not store.claim(ordinal):
                    continue
                if store.length(ordinal) is None:  # not entered just before the claim
                    encoded[ordinal] = self._encoded(other)
                    size += encoded[ordinal].nbytes
                if len(encoded) == TOGETHER or size >= TOGETHER_BYTES:
                    break
        except DataError:
            if item.ordinal not in encoded:  # a document that comes later fails when it is needed
                raise
        finally:
            store.add([*encoded.items()])
            store.release()
        return bool(encoded)

    def _symbols(self, item: _LaneDocument) -> Symbols:
        """Returns the boundary and the symbols of a document. Raises DataError where they are not as many as others
        have entered."""
        if item.read is None:
            return item.symbols
        symbols = None if self.store is None else self.store.symbols(item.ordinal)
        if symbols is None:
            symbols = self._encoded(item)
            if item.length not in (0, len(symbols) - 1):
                folder = "" if self.store is None else self.store.folder
                reason = f"has {len(symbols) - 1} symbols, and the cache says {item.length}"
                raise DataError(f"{item.read().name}: {reason}; remove the folder {folder}")
            if self.store is not None:
                self.store.add([(item.ordinal, symbols)])
        item.symbols, item.read = symbols, None
        return symbols

    def _encoded(self, item: _LaneDocument) -> Symbols:
        """Returns the boundary and the symbols of a document, which is encoded now."""
        assert item.read is not None
        encoded = encode_document(self.tokenizer, item.read())
        symbols = np.empty(len(encoded) + 1, self.type)
        symbols[0] = self.tokenizer.vocabulary.boundary
        symbols[1:] = encoded
        return symbols

    def _fill(self, lane: _Lane) -> int:
        """Reads documents for the lane's next row; returns its number of positions, 0 where none is left to score."""
        length = self.shape.segment_length
        while (not lane.documents or (self.shape.joined and lane.ahead < length)) and self._pull(lane):
            pass
        return min(lane.ahead, length) if lane.ahead > lane.scored else 0

    def _write(
        self,
        lane: _Lane,
        filled: int,
        inputs: npt.NDArray[np.int64],
        targets: npt.NDArray[np.int64],
        document: npt.NDArray[np.int64],
    ) -> None:
        """Writes the lane's next row into the arrays of the batch."""
        start, position = lane.offset, 0
        for item in lane.documents:
            end = min(position + item.length - start, filled)
            stop = start + end - position
            symbols = self._symbols(item)
            inputs[position:end] = symbols[start:stop]
            targets[position:end] = symbols[start + 1 : stop + 1]
            document[position:end] = item.ordinal
            start, position = 0, end
            if position == filled:
                break
        if lane.scored:
            targets[: lane.scored] = IGNORED
