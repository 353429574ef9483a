"""Rows [CLS] question [SEP] window [SEP]: the overlapping windows of a passage, each after the question."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from datamodules.core.errors import DataError
from datamodules.core.tokenizers import Offsets, Symbols, Tokenizer
from datamodules.rows.symbols import RowSymbols

__all__ = ["NO_ANSWER", "QuestionRow", "QuestionWindows", "answer_symbols"]

SPECIAL = 2
"""The number of special symbols of a question, [CLS] and [SEP]."""
NO_ANSWER = (-1, 0)
"""The label of a window without the answer: the span of [CLS], which precedes the symbols of a row."""


class QuestionRow(NamedTuple):
    """A row. symbols: all symbols without [CLS]. second: the place of the first symbol of the passage in them. window:
    the symbols of the passage that the row holds. first: number of symbols of the question with its [SEP]; None if no
    padding follows them."""

    symbols: npt.NDArray[np.int64]
    second: int
    window: range
    first: int | None = None

    def spans(self, offsets: Offsets) -> Offsets:
        """Returns the first character of each token (t, 2) of the row with [CLS], and the one after its last; 0 outside
        the passage. offsets: the same of all symbols of the passage."""
        spans = np.zeros((len(self.symbols) + 1, 2), np.int64)
        spans[self.second + 1 : -1] = offsets[self.window.start : self.window.stop]
        return spans

    def label(self, answer: range | None) -> tuple[int, int]:
        """Returns the span of an answer in the row, given its symbols in the passage; ``NO_ANSWER`` if the window does
        not hold all of them."""
        if answer is None or answer.start < self.window.start or answer.stop > self.window.stop:
            return NO_ANSWER
        moved = self.second - self.window.start
        return answer.start + moved, answer.stop + moved


class QuestionWindows(NamedTuple):
    """Turns a question and its passage into rows of at most ``length`` tokens. Each window begins ``stride`` symbols of
    the passage after the previous one (arXiv:1901.08634, section 2; ``doc_stride`` of BERT's code). separator: [SEP],
    which ends both texts. question_width: tokens of every question with [CLS], [SEP] and padding; None: no padding."""

    tokenizer: Tokenizer
    separator: int
    length: int
    stride: int
    question_width: int | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, length: int, stride: int, question_width: int | None = None) -> Self:
        """Returns the windows for the symbols of a tokenizer."""
        return cls(tokenizer, RowSymbols.of(tokenizer).separator, length, stride, question_width)

    def ranges(self, question: int, passage: int, name: str) -> list[range]:
        """Returns the symbols of the passage in each window, given the numbers of symbols of a question and of its
        passage. Raises DataError, with the name of the question, if the question leaves too little of a window to the
        passage or is longer than ``question_width``."""
        width = question + SPECIAL if self.question_width is None else self.question_width
        if question + SPECIAL > width:
            reason = f"has {question} symbols, too many with [CLS] and [SEP] for the question width of {width}"
            raise DataError(f"{name}: {reason}; set data.source.question_width to {question + SPECIAL} or more")
        room = self.length - width - 1
        if room < max(min(self.stride, passage), 1):
            reason = f"has {width - SPECIAL} symbols, which leave {max(room, 0)} of {self.length} tokens to the passage"
            remedy = f"which is less than the stride of {self.stride}"
            raise DataError(f"{name}: {reason}, {remedy}; set data.source.length larger, or stride smaller")
        windows = [range(min(room, passage))]
        while windows[-1].stop < passage:
            start = windows[-1].start + self.stride
            windows.append(range(start, min(start + room, passage)))
        return windows

    def row(self, question: Symbols, passage: Symbols, window: range) -> QuestionRow:
        """Returns the row of a window."""
        first, end = len(question) + 1, [self.separator]
        padding = 0 if self.question_width is None else self.question_width - 1 - first
        parts = (question, end, [0] * padding, passage[window.start : window.stop], end)
        return QuestionRow(np.concatenate(parts).astype(np.int64), first + padding, window, first if padding else None)


def answer_symbols(offsets: Offsets, start: int, stop: int) -> range | None:
    """Returns the smallest range of symbols that covers the characters from ``start`` to ``stop``, without characters
    that no symbol stands for; None if no symbol stands for any of them."""
    held = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < stop) & (offsets[:, 0] < offsets[:, 1]))
    return range(int(held[0]), int(held[-1]) + 1) if len(held) else None
