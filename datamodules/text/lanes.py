"""Lanes: documents laid end to end in the rows of batches, where each row continues the same row of the last batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from datamodules.core.documents import DocumentStream
from datamodules.core.tokenizers import Tokenizer, encode_document
from lit_transformers.batch import IGNORED, TextBatch
from lit_transformers.config import Plain

__all__ = ["LaneShape", "Lanes", "empty_batch"]


class LaneShape(NamedTuple):
    """rows: number of lanes. A row has ``segment_length`` positions and the lane's next row starts ``stride`` later.

    joined: whether a row continues with the next document (policy "stream") or ends with its document ("reset").
    """

    rows: int
    segment_length: int
    stride: int
    joined: bool


class _LaneDocument(NamedTuple):
    """A document in a lane. at: the stream's state before it. symbols: the boundary, then its ``length`` symbols."""

    at: Plain
    ordinal: int
    symbols: npt.NDArray[np.int32]
    length: int


class _Lane:
    """documents: those from the row's start on. offset: number of positions of the first document before the row.

    ahead: number of positions from the row's start to the end of ``documents``. scored: how many of these have targets
    that earlier rows scored. fresh: whether the next row starts from an empty state.
    """

    def __init__(self) -> None:
        self.documents: list[_LaneDocument] = []
        self.offset = self.ahead = self.scored = 0
        self.fresh = True

    def add(self, document: _LaneDocument) -> None:
        self.documents.append(document)
        self.ahead += document.length

    def go_to(self, offset: int, scored: int, fresh: bool) -> None:
        self.ahead -= offset
        self.offset, self.scored, self.fresh = offset, scored, fresh

    def clear(self, fresh: bool) -> None:
        self.documents.clear()
        self.offset = self.ahead = self.scored = 0
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
        self.fresh = sliding
        while self.documents and self.offset >= self.documents[0].length:
            self.offset -= self.documents.pop(0).length


class _Arrays(NamedTuple):
    """The arrays of a batch, which are written row by row."""

    inputs: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    document: npt.NDArray[np.int64]

    @classmethod
    def padding(cls, shape: LaneShape) -> _Arrays:
        size = (shape.rows, shape.segment_length)
        return cls(np.zeros(size, np.int64), np.full(size, IGNORED, np.int64), np.zeros(size, np.int64))

    def batch(self, filled: list[int], fresh: list[bool], stream: int, cursor: str) -> TextBatch:
        """Makes the batch. filled: the number of real positions of each row, which come first."""
        inputs, targets, document = map(torch.from_numpy, self)
        padding_mask = torch.arange(inputs.size(1)) < torch.tensor(filled)[:, None]
        return TextBatch(inputs, targets, padding_mask, document, torch.tensor(fresh), stream, cursor)


def empty_batch(shape: LaneShape) -> TextBatch:
    """Returns a batch of padding, for a rank that has no document left while others have."""
    return _Arrays.padding(shape).batch([0] * shape.rows, [False] * shape.rows, 0, "")


class Lanes(Iterator[TextBatch]):
    """The batches of one worker. A document d_1..d_n has inputs boundary, d_1..d_(n-1) and targets d_1..d_n.

    The batches end when the stream has ended and no lane has anything left; lanes that end earlier are padding.
    """

    def __init__(self, stream: DocumentStream, tokenizer: Tokenizer, shape: LaneShape, number: int = 0) -> None:
        self.stream, self.tokenizer, self.shape, self.number = stream, tokenizer, shape, number
        self.lanes = [_Lane() for _ in range(shape.rows)]

    def __next__(self) -> TextBatch:
        arrays = _Arrays.padding(self.shape)
        filled, fresh = [], []
        for row, lane in enumerate(self.lanes):
            count = self._fill(lane)
            filled.append(count)
            fresh.append(lane.fresh and count > 0)
            if count:
                self._write(lane, count, arrays.inputs[row], arrays.targets[row], arrays.document[row])
            lane.advance(self.shape, count)
        if not any(filled):
            raise StopIteration
        return arrays.batch(filled, fresh, self.number, self.cursor())

    def cursor(self) -> str:
        """Returns the state of all lanes as JSON text, because a tree would be walked on every transfer to a device."""
        lanes = [
            [[document.at for document in lane.documents], lane.offset, lane.scored, int(lane.fresh)]
            for lane in self.lanes
        ]
        return json.dumps([self.stream.state(), lanes], separators=(",", ":"))

    def go_to(self, cursor: str) -> None:
        """Makes the next batch the one that came next when ``cursor`` was taken."""
        state, lanes = json.loads(cursor)
        for lane, (starts, offset, scored, fresh) in zip(self.lanes, lanes, strict=True):
            lane.clear(fresh=True)
            for start in starts:
                self.stream.go_to(start)
                self._pull(lane)
            lane.go_to(offset, scored, bool(fresh))
        self.stream.go_to(state)

    def _pull(self, lane: _Lane) -> bool:
        """Adds the stream's next document to the lane; returns False at the stream's end."""
        at = self.stream.state()
        item = self.stream.take()
        if item is None:
            return False
        ordinal, document = item
        encoded = encode_document(self.tokenizer, document)
        symbols = np.empty(len(encoded) + 1, np.int32)
        symbols[0] = self.tokenizer.vocabulary.boundary
        symbols[1:] = encoded
        if len(encoded):
            lane.add(_LaneDocument(at, ordinal, symbols, len(encoded)))
        return True

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
            inputs[position:end] = item.symbols[start:stop]
            targets[position:end] = item.symbols[start + 1 : stop + 1]
            document[position:end] = item.ordinal
            start, position = 0, end
            if position == filled:
                break
        if lane.scored:
            targets[: lane.scored] = IGNORED
