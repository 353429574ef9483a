"""Heads that predict a class, several classes or a number for each row, from one vector of the row."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.activations import Activation, activation
from lit_transformers.batch import (
    IGNORED,
    LABEL,
    ClassLabels,
    ClassSetLabels,
    DataDescription,
    LabelledBatch,
    LabelledDescription,
    Labels,
    NumberLabels,
    labels_in,
)
from lit_transformers.config import ConfigError, Dropout, Fraction, PositiveFloat
from lit_transformers.heads.head import HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.heads.pooling import PiecePooling, Pooled, Pooling, cut_rows
from lit_transformers.heads.teacher import TEACHER, TaughtHead, divergence
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.precision import full_precision
from lit_transformers.records.measure import Measure, maximized, minimized
from lit_transformers.scores import (
    class_columns,
    class_counts,
    exact_sets,
    macro_f1,
    matthews,
    micro_f1,
    moments,
    pearson,
    set_counts,
    spearman,
)

ClassWeights = Literal["none", "balanced"] | tuple[PositiveFloat, ...]


class PooledHeadConfig(HeadConfig):
    """Base of the heads with a linear layer on one vector of a row.

    pooling: the vector of a row. first: the vector of its first token, the boundary ([CLS] in arXiv:1810.04805, section
    3). mean, max: over all real tokens, for each channel. last: the vector of the last token, the only one that sees
    the whole row in a language_model. attention: the mean weighted by a softmax of products with a learned query,
    initially equal to mean. dropout: probability of dropout on this vector.
    piece_pooling: combines the vectors of the pieces of a text, if the data cut long texts into pieces: mean, max or
    attention (arXiv:1905.05583, section 5.3.1).
    hidden: activation after a linear map of the pooled vector to the same width, such as tanh in BERT's pooler; None:
    no map. column: the name of the column of labels that is predicted. ``probe_labels``: the labels of random rows.
    """

    reads: ClassVar[Reads] = LabelledDescription
    probe_labels: ClassVar[Labels] = ClassLabels(count=3)

    pooling: Pooling = "first"
    hidden: Activation | None = None
    dropout: Annotated[Fraction, Dropout] = 0.0
    piece_pooling: PiecePooling = "mean"
    column: str = LABEL

    def outputs(self, data: DataDescription) -> int:
        """Returns the number of outputs for each row. Raises ConfigError for data with unsuitable labels."""
        raise NotImplementedError


class PooledHead(TaughtHead):
    """Pools each row to a vector, then applies an optional hidden map, dropout, and a linear layer. data: the
    description of labelled sequences.

    ``temperature``: divides outputs before they become the probabilities of a prediction (Guo et al. 2017,
    arXiv:1706.04599, section 4.2). Losses and measures do not depend on it.
    """

    temperature = 1.0

    def __init__(self, config: PooledHeadConfig, dim: int, outputs: int, data: DataDescription | None = None) -> None:
        super().__init__(config)
        self.column, self.tokens = config.column, Pooled(config.pooling, dim)
        pieces, self.piece_length = (data.pieces, data.length) if isinstance(data, LabelledDescription) else (1, 1)
        self.pieces = Pooled(config.piece_pooling, dim) if pieces > 1 else None
        self.most_pieces = pieces
        self.hidden = nn.Linear(dim, dim) if config.hidden else nn.Identity()
        self.activation = activation(config.hidden or "identity")
        self.map = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(dim, outputs))

    @abstractmethod
    def nats(self, outputs: Float[Tensor, "b o"], labels: Tensor) -> Float[Tensor, " b"]:
        """Returns the loss of each example (b,) in nats, in float32 or higher precision; 0 for an example without a
        label."""

    @abstractmethod
    def scores(self, outputs: Float[Tensor, "b o"], labels: Tensor) -> list[Tensor]:
        """Returns the columns (b,) that follow nats, tokens and bytes."""

    @abstractmethod
    def prediction(self, document: int, outputs: list[float]) -> Any:
        """Returns the prediction for example ``document``, given its outputs."""

    def outputs(self, reading: Representation, batch: LabelledBatch) -> Float[Tensor, "b o"]:
        """Returns the outputs (b, o) for each row."""
        vector = self.pooled(reading.hidden, batch.padding_mask)
        return full_precision(self.map(self.activation(self.hidden(vector))))

    def pooled(self, hidden: Float[Tensor, "b t d"], padding_mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b d"]:
        """Returns one vector (b, d) for each row: pooled from its tokens, or from its pieces, each pooled from its
        tokens."""
        if self.pieces is None:
            return self.tokens(hidden, padding_mask)
        rows, real = len(hidden), cut_rows(padding_mask, self.piece_length)
        vectors = self.tokens(cut_rows(hidden, self.piece_length), real)
        return self.pieces(vectors.unflatten(0, (rows, -1)), real.any(dim=1).unflatten(0, (rows, -1)))

    def labels(self, batch: LabelledBatch) -> Tensor:
        """Returns the labels of each row."""
        return labels_in(batch, self.column)

    def labelled(self, batch: LabelledBatch) -> Bool[Tensor, " b"]:
        """Returns a mask (b,) of the rows with a label: not padding, and not IGNORED. Every row has a label if labels
        are numbers."""
        labels, real = self.labels(batch), batch.padding_mask.any(dim=1)
        return real if labels.is_floating_point() else real & (labels.view(len(labels), -1)[:, 0] != IGNORED)

    def targets(self, batch: LabelledBatch) -> Int[Tensor, ""]:
        return self.labelled(batch).sum()

    def loss(self, reading: Representation, batch: LabelledBatch) -> HeadLoss:
        outputs, labels, real = self.outputs(reading, batch), self.labels(batch), self.labelled(batch)
        nats = self.nats(outputs, labels).masked_fill(~real, 0.0)
        weights, teacher = self.loss_weights(labels), reading.parts.get(TEACHER)
        if weights is None and teacher is None:
            return HeadLoss.of(nats)
        total = (nats if weights is None else nats * weights).sum()
        if teacher is not None:
            total = teacher.joined(total, self, outputs, real)
        return HeadLoss(total, nats.detach().sum())

    def loss_weights(self, labels: Tensor) -> Float[Tensor, " b"] | None:
        """Hook: returns the factor (b,) of the loss of each row in training, given its labels; None for 1."""
        return None

    def sums(self, reading: Representation, batch: LabelledBatch) -> Float[Tensor, "b c"]:
        outputs, labels, real = self.outputs(reading, batch), self.labels(batch), self.labelled(batch)
        columns = (self.nats(outputs, labels), real, torch.zeros_like(real), *self.scores(outputs, labels))
        return torch.stack([column.double() for column in columns], dim=1).masked_fill(~real[:, None], 0.0)

    def flops(self, length: int) -> float:
        """As in ``Head.flops``. For a text of several pieces, of one piece with its share of the FLOPs for the text."""
        parameters = (*self.hidden.parameters(), *self.map.parameters())
        of_text = 2 * sum(parameter.numel() for parameter in parameters if parameter.dim() > 1)
        of_pieces = 0 if self.pieces is None else self.pieces.flops(self.most_pieces)
        return self.tokens.flops(length) + (of_text + of_pieces) / self.most_pieces


class ClassLabelConfig(PooledHeadConfig, kind="class_label"):
    """A softmax over the classes of the data.

    class_weights: the factor of the loss of an example in training, by its class. none: 1. A number for each class. Or
    balanced: the number of training examples, divided by the number of classes and by the number of examples of the
    class, with a mean of 1 over examples. Reported measures are not weighted.
    """

    class_weights: ClassWeights = "none"

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> ClassLabel:
        classes = self.outputs(data)
        if not isinstance(self.class_weights, str) and len(self.class_weights) != classes:
            reason = f"{len(self.class_weights)} weights, and the data have {classes} classes; give one for each"
            raise ConfigError(reason, "class_weights")
        return ClassLabel(self, model.dim, classes, data)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return maximized("accuracy", "matthews", "macro_f1", per="example") | minimized("nats", per="example")

    def outputs(self, data: DataDescription) -> int:
        description = LabelledDescription.of(data, self.kind)
        if isinstance(description.label_columns.get(self.column), NumberLabels):
            raise ConfigError("classification needs classes, and these labels are numbers; set task=regression", "task")
        return description.labels_of(self.column, ClassLabels, self.kind).count


class ClassProbabilities(NamedTuple):
    """The prediction for an example. document: its ordinal. probabilities: of each class."""

    document: int
    probabilities: tuple[float, ...]


class ClassLabel(PooledHead):
    """Predicts the class of each example. Columns: nats, 1 if the most likely class is right, the class, and the most
    likely class.

    Measures: accuracy, the share of examples whose class is predicted; the Matthews correlation, the score of CoLA
    (arXiv:1805.12471, section 4; arXiv:1804.07461, section 3.1); macro F1, the mean F1 of the classes that occur; and
    nats per example. ``class_weights`` (c,) multiply losses in training.
    """

    columns: ClassVar[Mapping[str, type]] = {
        "nats": float,
        "tokens": int,
        "bytes": int,
        "correct": int,
        "label": int,
        "predicted": int,
    }
    class_weights: Tensor | None

    def __init__(self, config: ClassLabelConfig, dim: int, classes: int, data: DataDescription | None = None) -> None:
        super().__init__(config, dim, classes, data)
        self.classes, self.balanced = classes, config.class_weights == "balanced"
        stated = None if config.class_weights == "none" else torch.ones(classes)
        if stated is not None and not isinstance(config.class_weights, str):
            stated = torch.tensor(config.class_weights)
        self.register_buffer("class_weights", stated)

    def balance(self, counts: Sequence[int]) -> None:
        """Sets the balanced weights of classes, given the number of training examples of each. A class without examples
        gets the weight 1."""
        assert self.class_weights is not None
        present, total = sum(count > 0 for count in counts), sum(counts)
        weights = [total / (present * count) if count else 1.0 for count in counts]
        self.class_weights.copy_(torch.tensor(weights))

    def nats(self, outputs: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
        return F.cross_entropy(outputs, labels, reduction="none", ignore_index=IGNORED)

    def divergence(
        self, outputs: Float[Tensor, "b c"], taught: Float[Tensor, "b c"], temperature: float
    ) -> Float[Tensor, " b"]:
        return divergence(outputs, taught, temperature)

    def loss_weights(self, labels: Int[Tensor, " b"]) -> Float[Tensor, " b"] | None:
        return None if self.class_weights is None else self.class_weights[labels.clamp(min=0)]

    def scores(self, outputs: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> list[Tensor]:
        predicted = outputs.argmax(dim=-1)
        return [predicted == labels, labels, predicted]

    def prediction(self, document: int, outputs: list[float]) -> ClassProbabilities:
        return ClassProbabilities(document, tuple((torch.tensor(outputs) / self.temperature).softmax(dim=0).tolist()))

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        has = np.array(sums["tokens"]) > 0
        if not has.any():
            return {}
        correct, labels, predicted = (np.array(sums[name], np.float64)[has] for name in [*self.columns][3:])
        counts = class_counts(labels, predicted).sum(axis=0)
        return {
            "accuracy": float(correct.mean()),
            "matthews": float(matthews(counts)),
            "macro_f1": float(macro_f1(counts)),
            "nats": math.fsum(sums["nats"]) / sum(sums["tokens"]),
        }


class ClassSetLabelConfig(PooledHeadConfig, kind="class_set_label"):
    """Any number of the classes of the data: a sigmoid for each."""

    probe_labels: ClassVar[Labels] = ClassSetLabels(count=3)

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> ClassSetLabel:
        return ClassSetLabel(self, model.dim, self.outputs(data), data)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return minimized("nats", per="example") | maximized("micro_f1", "macro_f1", "exact_match", per="example")

    def outputs(self, data: DataDescription) -> int:
        return LabelledDescription.of(data, self.kind).labels_of(self.column, ClassSetLabels, self.kind).count


class ClassSetLabel(PooledHead):
    """Predicts the classes of each example. Columns: nats, summed over classes, and for each class a number: 1 if the
    example has the class, plus 2 if it is predicted with a probability of at least 0.5.

    Measures: nats per example; micro F1 over all classes of all examples; macro F1, the mean F1 of the classes that
    occur; and the share of examples whose classes are predicted exactly.
    """

    def __init__(
        self, config: ClassSetLabelConfig, dim: int, classes: int, data: DataDescription | None = None
    ) -> None:
        super().__init__(config, dim, classes, data)
        self.classes = classes

    @property
    def columns(self) -> Mapping[str, type]:  # type: ignore[override]
        """The columns: nats, tokens, bytes, and one for each class."""
        return {"nats": float, "tokens": int, "bytes": int} | dict.fromkeys(class_columns(self.classes), int)

    def column_names(self, name: str) -> list[str]:  # type: ignore[override]
        return [f"{name}_{column}" for column in self.columns]

    def nats(self, outputs: Float[Tensor, "b c"], labels: Int[Tensor, "b c"]) -> Float[Tensor, " b"]:
        losses = F.binary_cross_entropy_with_logits(outputs, labels.clamp(min=0).to(outputs.dtype), reduction="none")
        return losses.sum(dim=1)

    def divergence(
        self, outputs: Float[Tensor, "b c"], taught: Float[Tensor, "b c"], temperature: float
    ) -> Float[Tensor, " b"]:
        """Returns the sum over classes; the sigmoid of a logit is a softmax over this logit and 0."""
        own, expected = (torch.stack([logits, torch.zeros_like(logits)], dim=-1) for logits in (outputs, taught))
        return divergence(own, expected, temperature).sum(dim=1)

    def scores(self, outputs: Float[Tensor, "b c"], labels: Int[Tensor, "b c"]) -> list[Tensor]:
        return [*((labels.clamp(min=0) + 2 * (outputs >= 0).long()).unbind(dim=1))]

    def prediction(self, document: int, outputs: list[float]) -> ClassProbabilities:
        return ClassProbabilities(document, tuple((torch.tensor(outputs) / self.temperature).sigmoid().tolist()))

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        count = sum(sums["tokens"])
        if not count:
            return {}
        has = np.array(sums["tokens"]) > 0
        codes = np.column_stack([np.array(sums[name])[has] for name in class_columns(self.classes)])
        totals = set_counts(codes).sum(axis=0)
        return {
            "nats": math.fsum(sums["nats"]) / count,
            "micro_f1": float(micro_f1(totals)),
            "macro_f1": float(macro_f1(totals)),
            "exact_match": float(exact_sets(codes).mean()),
        }


class NumberLabelConfig(PooledHeadConfig, kind="number_label"):
    """A number. The loss is half the squared error: -log p of the number under a normal distribution of variance 1,
    without its constant. Classes are used as numbers, by their index."""

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> NumberLabel:
        return NumberLabel(self, model.dim, self.outputs(data), data)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return minimized("mse", "nats", per="example") | maximized("pearson", "spearman", per="example")

    def outputs(self, data: DataDescription) -> int:
        description = LabelledDescription.of(data, self.kind)
        if not isinstance(description.label_columns.get(self.column), ClassLabels):  # their indices are numbers
            description.labels_of(self.column, NumberLabels, self.kind)
        return 1


class EstimatedNumber(NamedTuple):
    """The prediction for an example. document: its ordinal. number: the estimate."""

    document: int
    number: float


class NumberLabel(PooledHead):
    """Predicts the number of each example. Columns: nats (half the squared error), the squared error, the number, and
    the prediction.

    Measures: the means of nats and of the squared error, and Pearson's and Spearman's correlation of numbers and
    predictions, the scores of SICK's relatedness (Marelli et al. 2014, SemEval-2014 task 1, section 4).
    """

    columns: ClassVar[Mapping[str, type]] = {
        "nats": float,
        "tokens": int,
        "bytes": int,
        "squared_error": float,
        "number": float,
        "predicted": float,
    }

    def nats(self, outputs: Float[Tensor, "b 1"], labels: Tensor) -> Float[Tensor, " b"]:
        return (outputs[:, 0] - labels).square() / 2

    def divergence(
        self, outputs: Float[Tensor, "b 1"], taught: Float[Tensor, "b 1"], temperature: float
    ) -> Float[Tensor, " b"]:
        """Returns the divergence of two normal distributions of variance 1: half the squared difference of their
        means."""
        return ((outputs - taught)[:, 0] / temperature).square() / 2

    def scores(self, outputs: Float[Tensor, "b 1"], labels: Tensor) -> list[Tensor]:
        return [(outputs[:, 0] - labels).double().square(), labels, outputs[:, 0]]

    def prediction(self, document: int, outputs: list[float]) -> EstimatedNumber:
        return EstimatedNumber(document, outputs[0])

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        count = sum(sums["tokens"])
        if not count:
            return {}
        has = np.array(sums["tokens"]) > 0
        numbers, predicted = (np.array(sums[column], np.float64)[has] for column in ("number", "predicted"))
        return {
            "mse": math.fsum(sums["squared_error"]) / count,
            "nats": math.fsum(sums["nats"]) / count,
            "pearson": float(pearson(moments(numbers, predicted).sum(axis=0))),
            "spearman": spearman(numbers, predicted),
        }
