"""Answers questions, line by line, from passages whose lower states are on disk (arXiv:2005.00697)."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from datamodules.core.examples import TextRows
from datamodules.core.tokenizers import Symbols
from lit_transformers.batch import LabelledBatch, Passage
from lit_transformers.config import ConfigError
from lit_transformers.heads.answer_span import ResolvedAnswer, WindowAnswer, best_spans
from lit_transformers.heads.head import Representation
from lit_transformers.inference.encode_passages import PassageReader, passage_reader_of
from lit_transformers.inference.lines import LineOptions, batches, padded
from lit_transformers.inference.passage_states import PassageStates, PassageWindow
from lit_transformers.inference.passages import PassageLine, passage_finder_of
from lit_transformers.inference.predict_answers import require_readable
from lit_transformers.inference.predictor import DIGITS, LineFormat, LineRows, LineTexts, Predictor, require_writable

__all__ = ["Finds", "PassageAnswerPredictor", "passage_answer_predictor_of"]

QUESTION_LINE = '{"question": "..."}, or with "passage": the line of a passage'
"""The form of a line of JSON, for messages."""
NAMES = ("answer", "passage", "start", "end", "score", "probability")
TOGETHER = 1024
"""The number of windows that are sorted by length together."""


class StoredPassages(Sequence[PassageLine]):
    """The passages whose states are on disk. Only passages in use are read into memory."""

    def __init__(self, states: PassageStates) -> None:
        self.states = states

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, number: Any) -> Any:
        return self.states.passage(number)


class Finds(Protocol):
    """Chooses the passages that are read for each question, as ``PassageFinder`` does."""

    def nearest_of(self, questions: Sequence[str]) -> Sequence[Sequence[tuple[int, float]]]:
        """Returns, for the text of each question, the numbers and scores of the passages."""


class FoundSpan(NamedTuple):
    """A window that was read for a question. columns: its best span, a row of ``best_spans``."""

    window: PassageWindow
    columns: Sequence[float]


class FoundSpans:
    """The best spans of the windows that were read for a question. ``reduce`` keeps only the spans of two passages: the
    passage with the best span, and the last passage, whose other windows may follow. none, total: of the windows of all
    other passages, the lowest score of no answer, and log sum exp(score) over all spans."""

    def __init__(self) -> None:
        self.spans: list[FoundSpan] = []
        self.none, self.total = math.inf, -math.inf

    @property
    def best(self) -> FoundSpan:
        """The span with the largest score, the first one among equal scores."""
        return max(self.spans, key=lambda span: (span.columns[0], -span.window.number))

    def reduce(self) -> None:
        """Drops the spans that cannot become a part of the answer, so that memory does not grow with the passages."""
        kept = {self.best.window.passage, max(span.window.passage for span in self.spans)}
        for window, (_, _, _, none, total) in self.spans:
            if window.passage not in kept:
                self.none, self.total = min(self.none, none), float(np.logaddexp(self.total, total))
        self.spans = [span for span in self.spans if span.window.passage in kept]


class PassageAnswerPredictor(Predictor):
    """Finds the answer to a question in passages on disk: in the passage that the line names, in the passages that a
    retriever ranks highest, or in all passages. The lower layers read each question once. The upper layers read its
    states with the states of each window. States of questions are in memory for one batch of questions.

    The answer is the span with the largest sum of two logits over all windows. The logits have no softmax, so scores of
    different passages can be compared (arXiv:1704.00051, section 3.2). The score of no answer and the probabilities are
    computed over all windows read, as if they were windows of one passage.
    """

    ability = "answer"

    def __init__(
        self,
        reader: PassageReader,
        states: PassageStates,
        finder: Finds | None,
        options: LineOptions,
        form: LineFormat,
    ) -> None:
        rows = TextRows(reader.windows.tokenizer, sys.maxsize, (reader.windows.separator,))
        super().__init__(reader.task, LineTexts(("question",), form), rows, options, NAMES)
        self.reader, self.states, self.finder, self.head = reader, states, finder, reader.task.answer_head

    def texts(self, line: str) -> tuple[str, ...]:
        """Returns the question of a line and, if it names a passage, the line of the passage in its file. Raises
        ConfigError for a line of another form."""
        plain: Any = line
        if self.line_texts.format == "json":
            try:
                plain = json.loads(line)
            except (ValueError, RecursionError):
                raise ConfigError(f"is no JSON; give {QUESTION_LINE}, or --lines text") from None
        question, passage = plain, None
        if isinstance(plain, Mapping):
            question, passage = plain.get("question"), plain.get("passage")
        if not isinstance(question, str) or not isinstance(passage, int | None) or isinstance(passage, bool):
            raise ConfigError(f"has another form; give {QUESTION_LINE}")
        require_writable([question])
        if passage is not None and self.states.number_of(passage) is None:
            raise ConfigError(f"{self.states.folder} has no passage of line {passage}; omit it, or correct it")
        require_readable(self.reader.windows, self.encode(question), 0)
        return (question,) if passage is None else (question, str(passage))

    def encode_each(self, texts: Sequence[str]) -> list[Symbols]:
        return [self.encode(texts[0])]

    def predictions(self, read: LineRows) -> Iterator[Mapping[str, Any]]:
        rows, _, padding_mask, _, texts = read
        width = self.reader.width - rows.size(1)
        questions, mask = F.pad(rows, (0, width)), F.pad(padding_mask, (0, width))
        states = self.question_states(questions, mask)
        spans = [FoundSpans() for _ in texts]
        windows = self.windows_of(texts)
        while some := [*islice(windows, TOGETHER)]:
            sizes = [self.reader.width + window.tokens for _, window in some]
            for indices in batches(sizes, self.batch_tokens):
                numbers = torch.tensor([some[index][0] for index in indices], device=rows.device)
                taken = [some[index][1] for index in indices]
                logits = self.logits(questions[numbers], mask[numbers], states[numbers], taken)
                best = best_spans(logits, self.head.longest_answer)
                for index, span in zip(indices, best.tolist(), strict=True):
                    spans[some[index][0]].spans.append(FoundSpan(some[index][1], span))
            for number in {number for number, _ in some}:
                spans[number].reduce()
        for own in spans:
            yield self.answer(own)

    def windows_of(self, texts: Sequence[tuple[str, ...]]) -> Iterator[tuple[int, PassageWindow]]:
        """Yields the number of each question with each window to read for it."""
        searched = [question for question, *named in texts if not named]
        nearest = iter(self.finder.nearest_of(searched) if self.finder and searched else ())
        for number, (_, *named) in enumerate(texts):
            passages: Sequence[int] = range(len(self.states))
            if named:
                passages = [self.states.number_of(int(line)) or 0 for line in named]
            elif self.finder:
                passages = sorted(passage for passage, _ in next(nearest))
            for passage in passages:
                yield from ((number, window) for window in self.states.windows_of(passage))

    def question_states(self, questions: Int[Tensor, "b w"], mask: Bool[Tensor, "b w"]) -> Float[Tensor, "b w d"]:
        """Returns the states (b, w, d) of questions above the lower layers, which read at most ``batch_tokens`` symbols
        at once."""
        network, together = self.reader.network, max(1, self.batch_tokens // self.reader.width)
        parts = zip(questions.split(together), mask.split(together), strict=True)
        return torch.cat([network.question_states(*part) for part in parts])

    def logits(
        self,
        questions: Int[Tensor, "b w"],
        mask: Bool[Tensor, "b w"],
        question_states: Float[Tensor, "b w d"],
        windows: Sequence[PassageWindow],
    ) -> Float[Tensor, "b t 2"]:
        """Returns the logits (b, t, 2) of the first and the last token of the answer, given b questions with their
        states and the window of each."""
        states, states_mask = (
            part.to(questions.device) for part in padded([self.states.states(window) for window in windows])
        )
        network = self.reader.network
        output = network.read_states(question_states, mask, states, states_mask)
        unknown = torch.zeros(states_mask.shape, dtype=torch.long, device=questions.device)
        numbers = torch.arange(len(questions))
        segments = torch.cat([torch.zeros_like(questions), states_mask.long()], dim=1)
        symbols, real = torch.cat([questions, unknown], dim=1), torch.cat([mask, states_mask], dim=1)
        batch = LabelledBatch(symbols, real, unknown[:, 0], None, numbers, None, segments=segments)
        return self.head.outputs(Representation(network, output.hidden, aux=output.aux), batch)

    def answer(self, spans: FoundSpans) -> Mapping[str, Any]:
        """Returns the output for a question, given the best spans of all its windows."""
        best = spans.best
        number, score = best.window.passage, best.columns[0]
        passage = self.states.passage(number)
        symbols, offsets = self.tokenizer.encode_with_offsets(passage.text)
        windows = [WindowAnswer(number, -math.inf, sys.maxsize, "", spans.none, spans.total)]
        for window, columns in spans.spans:
            if window.passage == number:
                row = self.reader.windows.row(symbols[:0], symbols, window.symbols)
                windows.append(WindowAnswer.of(number, columns, Passage(passage.text, row.spans(offsets), ())))
            else:  # loses against an equal score
                other, _, _, none, total = columns
                windows.append(WindowAnswer(number, other, sys.maxsize, "", none, total))
        answer = ResolvedAnswer.of(windows)
        text = self.head.answered(answer)
        probability = answer.none_probability if text is None else answer.probability
        places = (passage.line, answer.start, answer.start + len(text)) if text is not None else (None, None, None)
        numbers = (round(score, DIGITS), round(probability, DIGITS))
        return dict(zip(NAMES, (text, *places, *numbers), strict=True))


def passage_answer_predictor_of(
    checkpoint: Path,
    passages: Path,
    options: LineOptions,
    form: LineFormat = "json",
    retriever: Path | None = None,
    top: int = 5,
    threshold: float | None = None,
) -> PassageAnswerPredictor:
    """Returns the predictor that answers questions by a checkpoint, from the states of passages in a folder. Raises
    ConfigError if the states belong to another network, or a checkpoint to another task.

    retriever: the checkpoint of a run of retrieval, which finds the ``top`` most similar passages for each question;
    None: each question is answered from all passages. threshold: the threshold of no answer that replaces the
    threshold of the task; None to keep it.
    """
    reader = passage_reader_of(checkpoint, threshold)
    states = PassageStates(passages, reader.dependencies)
    finder = None
    if retriever is not None:
        finder = passage_finder_of(retriever, StoredPassages(states), options, top=top, place="--retriever")
    return PassageAnswerPredictor(reader, states, finder, options, form)
