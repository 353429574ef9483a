"""Answers a question by a span of its passage (arXiv:1810.04805, sections 4.2 and 4.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.answer_scores import answer_scores, best_threshold
from lit_transformers.batch import (
    IGNORED,
    LABEL,
    DataDescription,
    LabelledBatch,
    LabelledDescription,
    Passage,
    SpanLabels,
    row_lengths,
)
from lit_transformers.config import ConfigError, Plain, Positive
from lit_transformers.heads.head import HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.heads.teacher import TEACHER, TaughtHead, divergence
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.precision import full_precision
from lit_transformers.records.measure import PERCENT, Measure, maximized, minimized

SpanScores = Literal["linear", "product"]
NO_SPAN = -1e9
"""The score of a window without a token of the passage."""


class AnswerSpanConfig(HeadConfig, kind="answer_span"):
    """Two softmaxes, over the first and over the last token of the answer. Both choose among the tokens of the passage
    and [CLS]. [CLS] means that the window holds no answer. The loss of a window is the mean of both cross entropies, in
    nats.

    scores: the logits of a token. linear: a linear map of its vector (section 4.2). product: the product of its vector
    with a linear map of the vector of [CLS], divided by the square root of the width (arXiv:1804.07726, section 3), so
    that the answer depends on the question even if all layers read the passage without the question.
    longest_answer: the most tokens of an answer. threshold: predict no answer if the score of no answer exceeds the
    score of the best span by more than this; a score is the sum of two logits (arXiv:1810.04805, section 4.3). None:
    every question has an answer.
    """

    reads: ClassVar[Reads] = LabelledDescription

    scores: SpanScores = "linear"
    longest_answer: Positive = 30
    threshold: float | None = None

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> AnswerSpan:
        description = LabelledDescription.of(data, self.kind)
        description.labels_of(LABEL, SpanLabels, self.kind)
        if description.segments < 2:
            reason = "answers questions in a passage, and rows of these data are one text"
            raise ConfigError(f"{self.kind} {reason}; set data.source to questions", "data")
        return AnswerSpan(self, model.dim)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        measures = maximized("exact_match", "f1", per="question", full=PERCENT) | minimized(
            "nats", per="question window"
        )
        if self.threshold is None:
            return measures
        best = ("best_exact_match", "best_f1")
        thresholds = minimized(*(f"{name}_threshold" for name in best), per="question")
        return measures | maximized(*best, per="question", full=PERCENT) | thresholds


class WindowAnswer(NamedTuple):
    """The best span of one window.

    question: the ordinal of the question. score: of the span, a sum of two logits. start: the place of its first
    character in the passage. text: its text. none: the score of no answer. total: log sum exp(score) over all spans of
    the window. answers: the right answers.
    """

    question: int
    score: float
    start: int
    text: str
    none: float
    total: float
    answers: tuple[str, ...] = ()

    @classmethod
    def of(cls, question: int, best: Sequence[float], passage: Passage) -> WindowAnswer:
        """Returns the span that a row of ``best_spans`` names in its passage."""
        score, first, last, none, total = best
        start, stop = int(passage.spans[int(first), 0]), int(passage.spans[int(last), 1])
        return cls(question, score, start, passage.text[start : max(start, stop)], none, total, passage.answers)


class ResolvedAnswer(NamedTuple):
    """The answer to a question from all windows of its passage.

    text: the best span. start: the place of its first character in the passage. margin: the score of no answer minus
    the score of the span; the score of no answer is the lowest of all windows. probability, none_probability: the share
    of exp(score) of the span and of no answer in the sum over all spans and no answer.
    """

    text: str
    start: int
    margin: float
    probability: float
    none_probability: float

    @classmethod
    def of(cls, windows: Sequence[WindowAnswer]) -> ResolvedAnswer:
        """Returns the answer from the windows of one question, in any order. Among spans with the same score, the first
        in the passage wins."""
        best = max(windows, key=lambda window: (window.score, -window.start, -len(window.text)))
        none = min(window.none for window in windows)
        scores = np.logaddexp.reduce([none, *(window.total for window in windows)])
        shares = (math.exp(score - scores) for score in (best.score, none))
        return cls(best.text, best.start, none - best.score, *shares)


class AnswerSpan(TaughtHead):
    """Predicts the span of each window, and scores the best span over all windows of a question.

    Nats are per window. ``exact_match`` and ``f1``, from 0 to 100, score the answer, which may be no answer;
    ``span_exact_match`` and ``span_f1`` score the best span. ``margin`` is the score of no answer minus the score of
    the best span. ``answerable`` is 1 if the passage has an answer. With a threshold, the best threshold and the score
    that it reaches are measures too (arXiv:1806.03822).
    """

    columns: ClassVar[Mapping[str, type]] = {
        "nats": float,
        "tokens": int,
        "bytes": int,
        "exact_match": float,
        "f1": float,
        "span_exact_match": float,
        "span_f1": float,
        "margin": float,
        "answerable": int,
    }
    keeps: ClassVar[bool] = True

    def __init__(self, config: AnswerSpanConfig, dim: int) -> None:
        super().__init__(config)
        self.longest_answer, self.threshold = config.longest_answer, config.threshold
        self.scores = config.scores
        self.map = nn.Linear(dim, 2 if config.scores == "linear" else 2 * dim)

    def outputs(self, reading: Representation, batch: LabelledBatch) -> Float[Tensor, "b t 2"]:
        """Returns the logits (b, t, 2) of the first and the last token of the answer; -inf outside ``answerable``."""
        return self.logits(reading).masked_fill(~answerable(batch)[..., None], float("-inf"))

    def logits(self, reading: Representation) -> Float[Tensor, "b t 2"]:
        """Returns the logits (b, t, 2) of the first and the last token of the answer, for every token."""
        if self.scores == "linear":
            return full_precision(self.map(reading.hidden))
        questions = self.map(reading.hidden[:, 0]).unflatten(-1, (2, -1))
        return full_precision(reading.hidden @ questions.mT) / math.sqrt(reading.hidden.size(-1))

    def nats(self, outputs: Float[Tensor, "b t 2"], batch: LabelledBatch) -> Float[Tensor, " b"]:
        """Returns the mean of both cross entropies of each window; 0 for a window without a label."""
        starts, stops = batch.labels.unbind(dim=1)
        lasts = torch.where(stops == IGNORED, IGNORED, stops - 1)
        both = zip(outputs.unbind(dim=-1), (starts, lasts), strict=True)
        first, last = (
            F.cross_entropy(logits, places, ignore_index=IGNORED, reduction="none") for logits, places in both
        )
        return (first + last) / 2

    def divergence(
        self, outputs: Float[Tensor, "b t 2"], taught: Float[Tensor, "b t 2"], temperature: float
    ) -> Float[Tensor, " b"]:
        """Returns the mean over both ends of the answer, like the loss by labels."""
        return divergence(outputs.mT, taught.mT, temperature).mean(dim=1)

    def targets(self, batch: LabelledBatch) -> Int[Tensor, ""]:
        return (batch.labels[:, 0] != IGNORED).sum()

    def loss(self, reading: Representation, batch: LabelledBatch) -> HeadLoss:
        outputs, teacher = self.outputs(reading, batch), reading.parts.get(TEACHER)
        loss = HeadLoss.of(self.nats(outputs, batch))
        if teacher is None:
            return loss
        return HeadLoss(teacher.joined(loss.total, self, outputs, batch.labels[:, 0] != IGNORED), loss.nats.detach())

    def sums(self, reading: Representation, batch: LabelledBatch) -> Float[Tensor, "b c"]:
        nats = self.nats(self.outputs(reading, batch), batch).double()
        labelled = (batch.labels[:, 0] != IGNORED).double()
        return torch.stack([nats, labelled, *[torch.zeros_like(nats)] * (len(self.columns) - 2)], dim=1)

    def kept(self, reading: Representation, batch: LabelledBatch) -> Sequence[WindowAnswer]:
        spans, real = best_spans(self.outputs(reading, batch), self.longest_answer), batch.padding_mask.any(dim=1)
        table = torch.cat([spans, torch.stack([batch.example, real], dim=1).double()], dim=1).tolist()
        if batch.passages is None and any(row[-1] for row in table):
            reason = "reads the text of answers in passages, and the batches of these data have none"
            way_out = "set passage of every Example, or data.source to questions"
            raise ConfigError(f"{AnswerSpanConfig.kind} {reason}; {way_out}", "data")
        answers = []
        for (*best, question, is_real), passage in zip(table, batch.passages or (), strict=False):
            if is_real:
                answers.append(WindowAnswer.of(int(question), best, passage))
        return answers

    def resolved(self, rows: Sequence[Sequence[Plain]]) -> dict[str, float]:
        windows = [WindowAnswer(*row) for row in rows]
        answer, right = ResolvedAnswer.of(windows), windows[0].answers
        scores = answer_scores(answer.text, right, self.threshold is not None)
        final = answer_scores(self.answered(answer) or "", right, self.threshold is not None)
        names = ("exact_match", "f1", "span_exact_match", "span_f1", "margin", "answerable")
        return dict(zip(names, (*final, *scores, answer.margin, float(bool(right))), strict=True))

    def output(self, rows: Sequence[Sequence[Plain]]) -> dict[str, Plain]:
        windows = [WindowAnswer(*row) for row in rows]
        answer = self.answered(ResolvedAnswer.of(windows))
        return {"hypothesis": answer or "", "references": [*windows[0].answers] or [""]}

    def answered(self, answer: ResolvedAnswer) -> str | None:
        """Returns the text of an answer. None if the prediction is no answer, or no window has a token of the
        passage."""
        return answer.text or None if self.threshold is None or answer.margin <= self.threshold else None

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        columns = {name: np.array(values, np.float64) for name, values in sums.items()}
        results = {name: float(columns[name].mean()) for name in ("exact_match", "f1")}
        results["nats"] = math.fsum(sums["nats"]) / sum(sums["tokens"])
        if self.threshold is None:
            return results
        refused = 100 * (1 - columns["answerable"])
        for name in ("exact_match", "f1"):
            best = best_threshold(columns["margin"], columns[f"span_{name}"], refused)
            results |= {f"best_{name}": best.score, f"best_{name}_threshold": best.threshold}
        return results

    def flops(self, length: int) -> float:
        """As in ``Head.flops``. With product scores: the map of one vector, and the products with all vectors."""
        if self.scores == "linear":
            return super().flops(length)
        return 2 * self.map.weight.numel() + 4 * length * self.map.in_features


def answerable(batch: LabelledBatch) -> Bool[Tensor, "b t"]:
    """Returns a mask of the tokens that an answer may begin or end with: [CLS], and the passage without its [SEP]."""
    assert batch.segments is not None
    places = torch.arange(batch.inputs.size(1), device=batch.inputs.device)
    is_last = places == row_lengths(batch.padding_mask)[:, None] - 1
    return ((batch.segments == 1) & ~is_last) | (places == 0)


def best_spans(logits: Float[Tensor, "b t 2"], longest: int) -> Float[Tensor, "b 5"]:
    """Returns five numbers for each row: the score of its best span of at most ``longest`` tokens, the places of its
    first and its last token, the score of no answer (both logits of the first token of the row), and log sum exp(score)
    over all spans. A score is the sum of two logits; a row without a span has the score ``NO_SPAN``."""
    starts, ends = logits.double().unbind(dim=-1)
    none = starts[:, 0] + ends[:, 0]
    length = starts.size(1) - 1
    reach = min(longest, max(length, 1))
    following = F.pad(ends[:, 1:], (0, reach), value=float("-inf")).unfold(1, reach, 1)[:, :length]
    scores = (starts[:, 1:, None] + following).flatten(1)
    if not length:
        scores = scores.new_full((len(scores), 1), float("-inf"))
    best, place = scores.max(dim=1)
    first = 1 + place // reach
    columns = (best.clamp(min=NO_SPAN), first, first + place % reach, none, scores.logsumexp(dim=1).clamp(min=NO_SPAN))
    return torch.stack([column.double() for column in columns], dim=1)
