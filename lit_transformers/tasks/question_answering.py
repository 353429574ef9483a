"""Extractive question answering: the answer to a question is a span of its passage (arXiv:1810.04805)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.batch import DataDescription, LabelledBatch, LabelledDescription, Passage, SpanLabels, Vocabulary
from lit_transformers.config import Positive
from lit_transformers.heads.answer_span import AnswerSpan, AnswerSpanConfig, SpanScores, WindowAnswer
from lit_transformers.heads.head import HeadConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.labelled import LabelledTask, LabelledTaskConfig
from lit_transformers.training.config import TrainingConfig


class QuestionAnsweringConfig(LabelledTaskConfig, kind="question_answering"):
    """Predicts the first and the last token of the answer in each window of a passage, or [CLS] if the window holds no
    answer (arXiv:1810.04805, sections 4.2 and 4.3).

    scores: the logits of a token. linear: a linear map of its vector. product: the product of its vector with a linear
    map of the vector of [CLS]; two encoders (``deformer`` with all layers apart) need it.
    longest_answer: the most tokens of an answer. threshold: predict no answer if the score of no answer exceeds the
    score of the best span by more than this; a score is the sum of two logits. None: every question has an answer. With
    a threshold, the best threshold is measured too, and can then be set (``evaluate``, ``predict --threshold``).
    """

    scores: SpanScores = "linear"
    longest_answer: Positive = 30
    threshold: float | None = None

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        config = AnswerSpanConfig(scores=self.scores, longest_answer=self.longest_answer, threshold=self.threshold)
        return {"answer": config}

    def probe_data(self, vocabulary: Vocabulary, length: int) -> DataDescription:
        described = cast("LabelledDescription", super().probe_data(vocabulary, length))
        return replace(described, labels=SpanLabels(), segments=2)

    def random_batch(self, data: DataDescription) -> LabelledBatch:
        """Returns two rows of random symbols: the first with a random answer in a passage of numbers, the second
        without an answer."""
        batch = super().random_batch(data)
        assert batch.segments is not None
        labels, passages = [], []
        for row, second in enumerate((batch.segments == 0).sum(dim=1).tolist()):
            first, last = sorted(torch.randint(second, max(data.length - 1, second + 1), (2,)).tolist())
            is_answered = row == 0 and second < data.length - 1
            words = [str(place) for place in range(second, data.length - 1)]
            stops = np.cumsum([len(word) + 1 for word in words], dtype=np.int64) - 1
            spans = np.zeros((data.length, 2), np.int64)
            spans[second : data.length - 1] = np.stack([stops - [len(word) for word in words], stops], axis=1)
            text = " ".join(words)
            answer = text[spans[first, 0] : spans[last, 1]]
            labels.append((first, last + 1) if is_answered else (0, 1))
            passages.append(Passage(text, spans, (answer,) if is_answered else ()))
        return batch._replace(labels=torch.tensor(labels), passages=tuple(passages))

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> QuestionAnswering:
        return QuestionAnswering(self, model, data, training)


class QuestionAnswering(LabelledTask):
    """Trains and measures a network that answers questions by spans of passages."""

    config: QuestionAnsweringConfig

    def __init__(
        self,
        config: QuestionAnsweringConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError if the model cannot be built or used for this objective, or the labels are not spans of a
        second text."""
        super().__init__(config, model, data, training)
        self.add_heads()

    @property
    def answer_head(self) -> AnswerSpan:
        """The head that predicts the answer."""
        return cast("AnswerSpan", self.heads["answer"])

    def evaluation_output(self, batch: LabelledBatch) -> Float[Tensor, "b t 2"]:
        return self.answer_head.outputs(self.evaluation_reading(batch), batch)

    def predict_step(self, batch: LabelledBatch, batch_index: int) -> Sequence[WindowAnswer]:
        """Returns the best span of every window. ``ResolvedAnswer.of`` gives the answer to a question from its
        windows."""
        return self.answer_head.kept(self.evaluation_reading(batch), batch)
