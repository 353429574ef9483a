"""Finds the answers to questions in passages, line by line (arXiv:1810.04805, section 4.2)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from datamodules import DataError
from datamodules.core.examples import TextRows
from datamodules.core.tokenizers import Symbols
from datamodules.labelled.question_windows import QuestionWindows
from lit_transformers.batch import LabelledBatch, Passage
from lit_transformers.config import ConfigError
from lit_transformers.heads.answer_span import ResolvedAnswer, WindowAnswer, best_spans
from lit_transformers.inference.lines import LineOptions
from lit_transformers.inference.predictor import DIGITS, LineFormat, LineRows, LineTexts, Predictor
from lit_transformers.tasks.question_answering import QuestionAnswering

__all__ = ["AnswerPredictor", "require_readable"]


def require_readable(windows: QuestionWindows, question: Symbols, passage: int) -> None:
    """Raises ConfigError for a question, given as symbols, that leaves no room for a passage of ``passage`` symbols,
    or holds the symbol that ends questions."""
    if windows.separator in question:
        raise ConfigError("the question holds the symbol that ends questions; remove it")
    try:
        windows.ranges(len(question), passage, "the question")
    except DataError as error:
        raise ConfigError(str(error)) from None


class AnswerPredictor(Predictor):
    """Finds the answer to a question in a passage, divided into windows as in training."""

    ability = "answer"

    def __init__(
        self, task: QuestionAnswering, windows: QuestionWindows, options: LineOptions, form: LineFormat
    ) -> None:
        rows = TextRows(windows.tokenizer, sys.maxsize, (windows.separator,), texts=2)
        names = ("answer", "start", "end", "probability")
        super().__init__(task, LineTexts(("question", "context"), form), rows, options, names)
        self.task, self.windows, self.head = task, windows, task.answer_head

    def texts(self, line: str) -> tuple[str, ...]:
        texts = super().texts(line)
        require_readable(self.windows, self.encode(texts[0]), len(self.encode(texts[1])))
        return texts

    def rows_of(self, symbols: Sequence[Symbols]) -> Sequence[Symbols]:
        question, passage = symbols
        ranges = self.windows.ranges(len(question), len(passage), "the question")
        windows = (self.windows.row(question, passage, window) for window in ranges)
        return [self.row_of(window.symbols, window.second, window.first) for window in windows]

    def predictions(self, read: LineRows) -> Iterator[Sequence[float]]:
        """Yields the row of ``best_spans`` for each window."""
        rows, segments, padding_mask, padded, _ = read
        numbers = torch.arange(len(rows))
        batch = LabelledBatch(
            rows, padding_mask, numbers.to(rows.device), None, numbers, None, padded=padded, segments=segments
        )
        logits = self.head.outputs(self.task.evaluation_reading(batch), batch)
        yield from best_spans(logits, self.head.longest_answer).tolist()

    def prediction(self, texts: tuple[str, ...], outputs: Sequence[Sequence[float]]) -> Mapping[str, Any]:
        question, (passage, offsets) = self.encode(texts[0]), self.tokenizer.encode_with_offsets(texts[1])
        windows = []
        for best, window in zip(outputs, self.windows.ranges(len(question), len(passage), "the question"), strict=True):
            spans = self.windows.row(question, passage, window).spans(offsets)
            windows.append(WindowAnswer.of(0, best, Passage(texts[1], spans, ())))
        answer = ResolvedAnswer.of(windows)
        text = self.head.answered(answer)
        start, end = (None, None) if text is None else (answer.start, answer.start + len(text))
        probability = answer.none_probability if text is None else answer.probability
        return {"answer": text, "start": start, "end": end, "probability": round(probability, DIGITS)}
