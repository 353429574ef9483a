"""Lanes: documents laid end to end in the rows of batches, where each row continues the same row of the last batch.

A lane that has room takes the next document of all, so who reads some of the lanes has to know how long the documents
of the others are. That makes batches the same on any number of ranks and workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from datamodules.core.documents import Document, DocumentStream, Shard
from datamodules.core.errors import DataError
from datamodules.core.loading import CHUNK
from datamodules.core.tokenizers import Tokenizer, encode_document
from lit_transformers.batch import IGNORED, TextBatch
from lit_transformers.config import Plain

__all__ = ["LaneShape", "Lanes"]


ALONE = Shard()
EMPTY = np.empty(0, np.int32)


class KnownLengths(Protocol):
    """Lengths of documents by their ordinals, plus 1; 0 where one is not known, which is then entered."""

    def __getitem__(self, ordinal: int) -> int: ...

    def __setitem__(self, ordinal: int, length: int) -> None: ...


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
    """A document in a lane. at: the stream's state before it. document: None once it is encoded, and in a lane of
    another rank. symbols: the boundary, then its ``length`` symbols; empty before that."""

    at: Plain
    ordinal: int
    document: Document | None
    length: int = 0
    symbols: npt.NDArray[np.int32] = field(default_factory=lambda: EMPTY)


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
    """

    def __init__(
        self,
        stream: DocumentStream,
        tokenizer: Tokenizer,
        shape: LaneShape,
        share: Shard = ALONE,
        lengths: KnownLengths | None = None,
    ) -> None:
        self.stream, self.tokenizer, self.shape, self.share, self.lengths = stream, tokenizer, shape, share, lengths
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
        return json.dumps([self.stream.state(), lanes], separators=(",", ":"))

    def go_to(self, cursor: str) -> None:
        """Makes the next batch the one that came next when ``cursor`` was taken."""
        state, lanes = json.loads(cursor)
        for lane, (starts, offset, scored, fresh, *unbroken) in zip(self.lanes, lanes, strict=True):
            lane.clear(fresh=True)
            for start in starts:
                self.stream.go_to(start)
                self._pull(lane)
            lane.go_to(offset, scored, bool(fresh), *unbroken)  # cursors of older checkpoints have four fields
        self.stream.go_to(state)

    def _pull(self, lane: _Lane) -> bool:
        """Adds the stream's next document to the lane; returns False at the stream's end."""
        at = self.stream.state()
        taken = self.stream.take()
        if taken is None:
            return False
        item = _LaneDocument(at, *taken)
        item.length = self._length(item)
        if not lane.is_own:
            item.document, item.symbols = None, EMPTY
        if item.length:
            lane.add(item)
        return True

    def _length(self, item: _LaneDocument) -> int:
        """Returns the number of symbols of a document, which is encoded where nobody knows it."""
        known = 0 if self.lengths is None else int(self.lengths[item.ordinal])
        if known:
            return known - 1
        length = len(self._symbols(item)) - 1
        if self.lengths is not None:
            self.lengths[item.ordinal] = length + 1
        return length

    def _symbols(self, item: _LaneDocument) -> npt.NDArray[np.int32]:
        """Returns the boundary and the symbols of a document, which is encoded once. Raises DataError where they are
        not as many as others have entered."""
        if item.document is not None:
            encoded = encode_document(self.tokenizer, item.document)
            if item.length not in (0, len(encoded)):
                reason = f"has {len(encoded)} symbols, and the cache says {item.length}"
                raise DataError(f"{item.document.name}: {reason}; remove the folder lengths of LIT_CACHE")
            item.symbols = np.empty(len(encoded) + 1, np.int32)
            item.symbols[0] = self.tokenizer.vocabulary.boundary
            item.symbols[1:] = encoded
            item.document = None
        return item.symbols

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
