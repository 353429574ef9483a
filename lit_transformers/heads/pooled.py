"""Predictions of a whole sequence from one vector of the network: its class, or a number."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.activations import Activation, activation
from lit_transformers.batch import LABEL, ClassLabels, DataDescription, LabelledBatch, LabelledDescription, NumberLabels
from lit_transformers.config import ConfigError, Dropout, Fraction
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.heads.pooling import PiecePooling, Pooled, Pooling, cut_rows
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.precision import full_precision
from lit_transformers.records.measure import Measure, maximized, minimized
from lit_transformers.scores import confusion, matthews


class PooledHeadConfig(HeadConfig):
    """Base of the heads with a linear layer on one vector of a row.

    pooling: the vector of the first token, which is the boundary before every row (arXiv:1810.04805, section 3, where
    it is called [CLS]); the mean over all real tokens, or the max of each channel; the vector of the last one, the only
    one that has seen the whole row if the network is a language_model; or attention, the mean weighted by the softmax
    of products with a learned query, which begins as the mean. dropout: of the vector that is read.
    piece_pooling: how the vectors of the pieces of a text become one, where the data cut long texts into pieces: by
    mean, max or attention (arXiv:1905.05583, section 5.3.1).
    hidden: the activation of a linear map of the pooled vector to one as wide, such as tanh, BERT's pooler; None for no
    such map.
    """

    reads: ClassVar[Reads] = LabelledDescription

    pooling: Pooling = "first"
    hidden: Activation | None = None
    dropout: Annotated[Fraction, Dropout] = 0.0
    piece_pooling: PiecePooling = "mean"

    def outputs(self, data: DataDescription) -> int:
        """Returns the number of outputs per sequence. Raises ConfigError for data that it cannot learn from."""
        raise NotImplementedError


TEACHER = "teacher"
"""The part of a reading in training that holds a ``Teacher``, where there is one."""


class Teacher(NamedTuple):
    """What heads are to predict besides labels: the outputs (b, o) of each head, and the factor of the mean squared
    difference from them."""

    outputs: Mapping[PooledHead, Tensor]
    weight: float


class PooledHead(Head):
    """One vector of each row, dropout, and a linear layer. data: the description of labelled sequences."""

    def __init__(self, config: PooledHeadConfig, dim: int, outputs: int, data: DataDescription | None = None) -> None:
        super().__init__(config)
        self.tokens = Pooled(config.pooling, dim)
        pieces, self.piece_length = (data.pieces, data.length) if isinstance(data, LabelledDescription) else (1, 1)
        self.pieces = Pooled(config.piece_pooling, dim) if pieces > 1 else None
        self.most_pieces = pieces
        self.hidden = nn.Linear(dim, dim) if config.hidden else nn.Identity()
        self.activation = activation(config.hidden or "identity")
        self.map = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(dim, outputs))

    @abstractmethod
    def nats(self, outputs: Float[Tensor, "b o"], batch: LabelledBatch) -> Float[Tensor, " b"]:
        """Returns the loss of each example, in float32 or finer."""

    @abstractmethod
    def scores(self, outputs: Float[Tensor, "b o"], batch: LabelledBatch) -> list[Tensor]:
        """Returns the columns (b,) that follow nats, tokens and bytes."""

    @abstractmethod
    def prediction(self, document: int, outputs: list[float]) -> Any:
        """Returns what is predicted of the example of that ordinal, given its outputs."""

    def outputs(self, reading: Representation, batch: LabelledBatch) -> Float[Tensor, "b o"]:
        """Returns the outputs for each sequence."""
        vector = self.pooled(reading.hidden, batch.padding_mask)
        return full_precision(self.map(self.activation(self.hidden(vector))))

    def pooled(self, hidden: Float[Tensor, "b t d"], padding_mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b d"]:
        """Returns one vector of each row: of its tokens, or of its pieces, of which each has one of its tokens."""
        if self.pieces is None:
            return self.tokens(hidden, padding_mask)
        rows, real = len(hidden), cut_rows(padding_mask, self.piece_length)
        vectors = self.tokens(cut_rows(hidden, self.piece_length), real)
        return self.pieces(vectors.unflatten(0, (rows, -1)), real.any(dim=1).unflatten(0, (rows, -1)))

    def targets(self, batch: LabelledBatch) -> Int[Tensor, ""]:
        return batch.padding_mask.any(dim=1).sum()

    def loss(self, reading: Representation, batch: LabelledBatch) -> HeadLoss:
        outputs, padding = self.outputs(reading, batch), ~batch.padding_mask.any(dim=1)
        loss = HeadLoss.of(self.nats(outputs, batch).masked_fill(padding, 0.0))
        teacher: Teacher | None = reading.parts.get(TEACHER)
        if teacher is None:
            return loss
        distance = (outputs - teacher.outputs[self]).square().mean(dim=1).masked_fill(padding, 0.0).sum()
        return HeadLoss(loss.total + teacher.weight * distance, loss.nats.detach())

    def sums(self, reading: Representation, batch: LabelledBatch) -> Float[Tensor, "b c"]:
        outputs, real = self.outputs(reading, batch), batch.padding_mask.any(dim=1)
        columns = (self.nats(outputs, batch), real, torch.zeros_like(real), *self.scores(outputs, batch))
        return torch.stack([column.double() for column in columns], dim=1)

    def flops(self, length: int) -> float:
        """As in ``Head.flops``, of one piece where a text has several, with its share of the work for the text."""
        parameters = (*self.hidden.parameters(), *self.map.parameters())
        of_text = 2 * sum(parameter.numel() for parameter in parameters if parameter.dim() > 1)
        of_pieces = 0 if self.pieces is None else self.pieces.flops(self.most_pieces)
        return self.tokens.flops(length) + (of_text + of_pieces) / self.most_pieces


class ClassLabelConfig(PooledHeadConfig, kind="class_label"):
    """A softmax over the classes of the data."""

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> ClassLabel:
        return ClassLabel(self, model.dim, self.outputs(data), data)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        both_classes = maximized("matthews", per="example") if self.outputs(data) == 2 else {}
        return maximized("accuracy", per="example") | minimized("nats", per="example") | both_classes

    def outputs(self, data: DataDescription) -> int:
        description = LabelledDescription.of(data, self.kind)
        if isinstance(description.labels, NumberLabels):
            raise ConfigError("classification needs classes, and these labels are numbers; set task=regression", "task")
        return description.labels_of(LABEL, ClassLabels, self.kind).count


class ClassProbabilities(NamedTuple):
    """What is predicted of an example: its ordinal, and the probability of each class."""

    document: int
    probabilities: tuple[float, ...]


class ClassLabel(PooledHead):
    """Nats of the class of each example, whether it was the most likely, and its number.

    Measures are accuracy, the share of examples whose class is predicted, and nats per example; of two classes also
    Matthews correlation, by which CoLA is scored (arXiv:1805.12471, section 4; arXiv:1804.07461, section 3.1).
    """

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "bytes": int, "correct": int, "label": int}

    def __init__(self, config: PooledHeadConfig, dim: int, classes: int, data: DataDescription | None = None) -> None:
        super().__init__(config, dim, classes, data)
        self.classes = classes

    def nats(self, outputs: Float[Tensor, "b c"], batch: LabelledBatch) -> Float[Tensor, " b"]:
        return F.cross_entropy(outputs, batch.labels, reduction="none")

    def scores(self, outputs: Float[Tensor, "b c"], batch: LabelledBatch) -> list[Tensor]:
        return [outputs.argmax(dim=-1) == batch.labels, batch.labels]

    def prediction(self, document: int, outputs: list[float]) -> ClassProbabilities:
        return ClassProbabilities(document, tuple(torch.tensor(outputs).softmax(dim=0).tolist()))

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        correct, labels = (np.array(sums[column], np.float64) for column in ("correct", "label"))
        results = {"accuracy": float(correct.mean())}
        if self.classes == 2:
            results["matthews"] = float(matthews(confusion(correct, labels).sum(axis=0)))
        return results | {"nats": math.fsum(sums["nats"]) / sum(sums["tokens"])}


class NumberLabelConfig(PooledHeadConfig, kind="number_label"):
    """A number. The loss is half the squared error: -log p of the number under a normal distribution of variance 1,
    without its constant. Classes are used as numbers, by their index."""

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> NumberLabel:
        return NumberLabel(self, model.dim, self.outputs(data), data)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return minimized("mse", "nats", per="example")

    def outputs(self, data: DataDescription) -> int:
        description = LabelledDescription.of(data, self.kind)
        if not isinstance(description.labels, ClassLabels):  # whose numbers are numbers
            description.labels_of(LABEL, NumberLabels, self.kind)
        return 1


class EstimatedNumber(NamedTuple):
    """What is predicted of an example: its ordinal and a number."""

    document: int
    number: float


class NumberLabel(PooledHead):
    """Nats of the number of each example, half its squared error, and the squared error. Measures are means of both."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "bytes": int, "squared_error": float}

    def nats(self, outputs: Float[Tensor, "b 1"], batch: LabelledBatch) -> Float[Tensor, " b"]:
        return (outputs[:, 0] - batch.labels).square() / 2

    def scores(self, outputs: Float[Tensor, "b 1"], batch: LabelledBatch) -> list[Tensor]:
        return [(outputs[:, 0] - batch.labels).double().square()]

    def prediction(self, document: int, outputs: list[float]) -> EstimatedNumber:
        return EstimatedNumber(document, outputs[0])

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        nats, count = math.fsum(sums["nats"]), sum(sums["tokens"])
        return {"mse": math.fsum(sums["squared_error"]) / len(sums["nats"]), "nats": nats / count}
