"""Windows of a passage behind a question, [CLS] question [SEP] passage [SEP], that overlap where it is long."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from datamodules.core.errors import DataError
from datamodules.core.tokenizers import Offsets, Symbols, Tokenizer
from datamodules.rows.symbols import RowSymbols

__all__ = ["NO_ANSWER", "QuestionRow", "QuestionWindows", "answer_symbols"]

SPECIAL = 2
"""[CLS] and [SEP] of a question."""
NO_ANSWER = (-1, 0)
"""The span of [CLS], which stands before the symbols of a row: that of a window without the answer."""


class QuestionRow(NamedTuple):
    """The symbols of a row, without [CLS], the place of the first of its passage in them, the first and last symbol of
    the passage that it holds, as a range, and how many symbols are of the question with its [SEP], where padding
    follows it; None where none does."""

    symbols: npt.NDArray[np.int64]
    second: int
    window: range
    first: int | None = None

    def spans(self, offsets: Offsets) -> Offsets:
        """Returns the characters of every token of the row, with [CLS], given those of the symbols of the passage."""
        spans = np.zeros((len(self.symbols) + 1, 2), np.int64)
        spans[self.second + 1 : -1] = offsets[self.window.start : self.window.stop]
        return spans

    def label(self, answer: range | None) -> tuple[int, int]:
        """Returns the span of an answer of these symbols of the passage, where the window holds all of it."""
        if answer is None or answer.start < self.window.start or answer.stop > self.window.stop:
            return NO_ANSWER
        moved = self.second - self.window.start
        return answer.start + moved, answer.stop + moved


class QuestionWindows(NamedTuple):
    """How a question and its passage become rows: of ``length`` tokens at most, each of which begins ``stride`` symbols
    of the passage after the one before it (arXiv:1901.08634, section 2; ``doc_stride`` of BERT's code). separator: the
    symbol that ends both. question_width: tokens of every question with [CLS], [SEP] and the padding behind it; None
    where the passage follows it."""

    tokenizer: Tokenizer
    separator: int
    length: int
    stride: int
    question_width: int | None = None

    @classmethod
    def of(cls, tokenizer: Tokenizer, length: int, stride: int, question_width: int | None = None) -> Self:
        """Returns the windows of texts by a tokenizer."""
        return cls(tokenizer, RowSymbols.of(tokenizer).separator, length, stride, question_width)

    def ranges(self, question: int, passage: int, name: str) -> list[range]:
        """Returns the symbols of the passage in each window, given the numbers of symbols of a question and a passage.
        Raises DataError, with the name of the question, where a window has no room for the passage, or the question is
        wider than all may be."""
        width = question + SPECIAL if self.question_width is None else self.question_width
        if question + SPECIAL > width:
            reason = f"has {question} symbols, which with [CLS] and [SEP] are more than the {width} of every question"
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
    """Returns the fewest symbols that hold all characters of an answer that any symbol stands for; None where none
    stands for one."""
    held = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < stop) & (offsets[:, 0] < offsets[:, 1]))
    return range(int(held[0]), int(held[-1]) + 1) if len(held) else None
