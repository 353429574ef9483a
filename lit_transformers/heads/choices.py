"""Predicts the right choice: a score for each choice, and a softmax over the choices of an example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.activations import Activation, activation
from lit_transformers.batch import LABEL, ChoiceLabels, DataDescription, LabelledBatch, LabelledDescription
from lit_transformers.config import Dropout, Fraction
from lit_transformers.heads.head import HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.heads.pooling import FixedPooling, pooled
from lit_transformers.heads.teacher import TEACHER, TaughtHead, divergence
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.precision import full_precision
from lit_transformers.records.measure import Measure, maximized, minimized


class ChoiceScoresConfig(HeadConfig, kind="choice_scores"):
    """Scores a choice by the product of its row's vector with a learned vector, and takes a softmax over the choices of
    an example (GPT, section 3.3; arXiv:1810.04805, section 4.4).

    pooling, hidden, dropout: as in ``class_label``.
    """

    reads: ClassVar[Reads] = LabelledDescription

    pooling: FixedPooling = "first"
    hidden: Activation | None = None
    dropout: Annotated[Fraction, Dropout] = 0.0

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> ChoiceScores:
        data.labels_of(LABEL, ChoiceLabels, self.kind)
        return ChoiceScores(self, model.dim)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return maximized("accuracy", per="example") | minimized("nats", per="example")


class ChoiceScores(TaughtHead):
    """Measures accuracy and nats per example. An example is right if the score of its right choice is higher than every
    other score."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "bytes": int, "correct": int}

    def __init__(self, config: ChoiceScoresConfig, dim: int) -> None:
        super().__init__(config)
        self.pooling = config.pooling
        self.hidden = nn.Linear(dim, dim) if config.hidden else nn.Identity()
        self.activation = activation(config.hidden or "identity")
        self.map = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(dim, 1, bias=False))

    def targets(self, batch: LabelledBatch) -> Int[Tensor, ""]:
        return batch.padding_mask.flatten(1).any(dim=1).sum()

    def outputs(self, reading: Representation, batch: LabelledBatch) -> Float[Tensor, "b c"]:
        """Returns the score of each choice; -inf in the columns beyond the choices of an example."""
        vectors = pooled(reading.hidden.flatten(0, 1), batch.padding_mask.flatten(0, 1), self.pooling)
        scores = full_precision(self.map(self.activation(self.hidden(vectors))))[:, 0].unflatten(
            0, batch.inputs.shape[:2]
        )
        is_choice = batch.padding_mask.any(dim=2)
        # An example of padding alone has no choice, but its softmax must stay finite.
        is_choice = is_choice | ~is_choice.any(dim=1, keepdim=True)
        return scores.masked_fill(~is_choice, -torch.inf)

    def nats(self, scores: Float[Tensor, "b c"], batch: LabelledBatch) -> Float[Tensor, " b"]:
        """Returns the loss of each example in nats; 0 for padding."""
        return F.cross_entropy(scores, batch.labels, reduction="none")

    def divergence(
        self, outputs: Float[Tensor, "b c"], taught: Float[Tensor, "b c"], temperature: float
    ) -> Float[Tensor, " b"]:
        return divergence(outputs, taught, temperature)

    def loss(self, reading: Representation, batch: LabelledBatch) -> HeadLoss:
        outputs, teacher = self.outputs(reading, batch), reading.parts.get(TEACHER)
        loss = HeadLoss.of(self.nats(outputs, batch))
        if teacher is None:
            return loss
        is_example = batch.padding_mask.flatten(1).any(dim=1)
        return HeadLoss(teacher.joined(loss.total, self, outputs, is_example), loss.nats.detach())

    def sums(self, reading: Representation, batch: LabelledBatch) -> Float[Tensor, "b 4"]:
        scores = self.outputs(reading, batch)
        own = scores.gather(1, batch.labels.clamp(min=0)[:, None])
        correct = (~(scores < own)).sum(dim=1) == 1
        real = batch.padding_mask.flatten(1).any(dim=1)
        columns = (self.nats(scores, batch), real, torch.zeros_like(real), correct)
        return torch.stack([column.double() for column in columns], dim=1)

    def flops(self, length: int) -> float:
        """As in ``Head.flops``, for a row of one choice, of which only one vector is read."""
        return 2 * sum(parameter.numel() for parameter in self.parameters() if parameter.dim() > 1)
