"""Lanes: documents laid end to end in the rows of batches: each row continues the same row of the last batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from datamodules.documents import DocumentStream
from datamodules.tokenizers import Tokenizer, encode_document
from lit_transformers.batch import IGNORED, TextBatch
from lit_transformers.config import Plain

__all__ = ["LaneShape", "Lanes", "empty_batch"]


class LaneShape(NamedTuple):
    """rows: lanes. A row holds ``segment_length`` positions and the lane's next row starts ``stride`` later.

    joined: a row goes on with the next document (policy "stream"); otherwise it ends with its document ("reset").
    """

    rows: int
    segment_length: int
    stride: int
    joined: bool


class _Held(NamedTuple):
    """A document in a lane. at: the stream's state before it. symbols: the boundary, then the document."""

    at: Plain
    ordinal: int
    symbols: npt.NDArray[np.int32]

    @property
    def length(self) -> int:
        return len(self.symbols) - 1


class _Lane:
    """held: the documents from the row's start on. offset: positions of the first one before the row.

    scored: positions of the next row whose targets were scored already. fresh: the next row starts a document.
    """

    def __init__(self) -> None:
        self.held: list[_Held] = []
        self.offset = self.scored = 0
        self.fresh = True

    @property
    def remaining(self) -> int:
        return sum(held.length for held in self.held) - self.offset

    def advance(self, shape: LaneShape, filled: int) -> None:
        """Moves past a row that held ``filled`` positions."""
        sliding = shape.stride < shape.segment_length
        if filled < shape.segment_length or (not shape.joined and self.remaining == filled):
            self.held.clear()
            self.offset = self.scored = 0
            self.fresh = not shape.joined or sliding
            return
        self.offset += shape.stride
        self.scored = shape.segment_length - shape.stride
        self.fresh = sliding
        while self.held and self.offset >= self.held[0].length:
            self.offset -= self.held.pop(0).length


class _Arrays(NamedTuple):
    inputs: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]
    keep: npt.NDArray[np.bool_]
    document: npt.NDArray[np.int64]
    fresh: npt.NDArray[np.bool_]

    @classmethod
    def padding(cls, rows: int, length: int) -> _Arrays:
        return cls(
            np.zeros((rows, length), np.int64),
            np.full((rows, length), IGNORED, np.int64),
            np.zeros((rows, length), np.bool_),
            np.zeros((rows, length), np.int64),
            np.zeros(rows, np.bool_),
        )

    def batch(self, stream: int, cursor: str) -> TextBatch:
        inputs, targets, keep, document, fresh = map(torch.from_numpy, self)
        return TextBatch(inputs, targets, keep, document, fresh, stream, cursor)


def empty_batch(shape: LaneShape) -> TextBatch:
    """Nothing but padding: what a rank shows that has no document left while others have."""
    return _Arrays.padding(shape.rows, shape.segment_length).batch(0, "")


class Lanes(Iterator[TextBatch]):
    """The batches of one worker. A document d_1..d_n has inputs boundary, d_1..d_(n-1) and targets d_1..d_n.

    Ends when the stream has ended and every lane is through; lanes that are through earlier are padding.
    """

    def __init__(self, stream: DocumentStream, tokenizer: Tokenizer, shape: LaneShape, number: int = 0) -> None:
        self.stream, self.tokenizer, self.shape, self.number = stream, tokenizer, shape, number
        self.lanes = [_Lane() for _ in range(shape.rows)]

    def __next__(self) -> TextBatch:
        arrays = _Arrays.padding(self.shape.rows, self.shape.segment_length)
        emitted = [self._row(row, lane, arrays) for row, lane in enumerate(self.lanes)]
        if not any(emitted):
            raise StopIteration
        return arrays.batch(self.number, self.cursor())

    def cursor(self) -> str:
        """Where all lanes stand, as JSON: text, because a tree would be walked on every transfer to a device."""
        lanes = [[[held.at for held in lane.held], lane.offset, lane.scored, int(lane.fresh)] for lane in self.lanes]
        return json.dumps([self.stream.state(), lanes], separators=(",", ":"))

    def go_to(self, cursor: str) -> None:
        """Makes the next batch the one that came next when ``cursor`` was taken."""
        state, lanes = json.loads(cursor)
        for lane, (starts, offset, scored, fresh) in zip(self.lanes, lanes, strict=True):
            lane.held.clear()
            for start in starts:
                self.stream.go_to(start)
                self._pull(lane)
            lane.offset, lane.scored, lane.fresh = offset, scored, bool(fresh)
        self.stream.go_to(state)

    def _pull(self, lane: _Lane) -> bool:
        """Gives the lane the stream's next document; False at the end."""
        at = self.stream.state()
        taken = self.stream.take()
        if taken is None:
            return False
        ordinal, document = taken
        encoded = encode_document(self.tokenizer, document)
        symbols = np.empty(len(encoded) + 1, np.int32)
        symbols[0] = self.tokenizer.vocabulary.boundary
        symbols[1:] = encoded
        if len(encoded):
            lane.held.append(_Held(at, ordinal, symbols))
        return True

    def _fill(self, lane: _Lane) -> int:
        """Gets documents until the lane can fill its next row; the positions it now has for it."""
        while not lane.held or (self.shape.joined and lane.remaining < self.shape.segment_length):
            if not self._pull(lane):
                break
        return min(lane.remaining, self.shape.segment_length)

    def _row(self, row: int, lane: _Lane, arrays: _Arrays) -> bool:
        """Writes the lane's next row; False where nothing is left to score."""
        filled = self._fill(lane)
        if filled <= lane.scored:
            lane.advance(self.shape, 0)
            return False
        start, at = lane.offset, 0
        for held in lane.held:
            count = min(held.length - start, filled - at)
            arrays.inputs[row, at : at + count] = held.symbols[start : start + count]
            arrays.targets[row, at : at + count] = held.symbols[start + 1 : start + count + 1]
            arrays.document[row, at : at + count] = held.ordinal
            start, at = 0, at + count
            if at == filled:
                break
        arrays.targets[row, : lane.scored] = IGNORED
        arrays.keep[row, :filled] = True
        arrays.fresh[row] = lane.fresh
        lane.advance(self.shape, filled)
        return True
