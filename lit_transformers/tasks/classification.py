"""Classification of sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.batch import ClassLabels, DataDescription, LabelledBatch, LabelledDescription
from lit_transformers.config import ConfigError
from lit_transformers.models.model import ModelConfig
from lit_transformers.scores import confusion, matthews
from lit_transformers.tasks.pooled import PooledMetric, PooledTask, PooledTaskConfig
from lit_transformers.training.config import TrainingConfig


class ClassificationConfig(PooledTaskConfig, kind="classification"):
    """A softmax over classes from one vector of the network."""

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Classification:
        return Classification(self, model, data, training)

    def units(self, data: DataDescription) -> Mapping[str, str]:
        both_classes = {"matthews": "example"} if self.outputs(data) == 2 else {}
        return {"accuracy": "example", "nats": "example"} | both_classes

    def outputs(self, data: DataDescription) -> int:
        labels = LabelledDescription.of(data, self.kind).labels
        if not isinstance(labels, ClassLabels):
            raise ConfigError("classification needs classes, and these labels are numbers; set task=regression", "task")
        return labels.count


class ClassifiedExample(NamedTuple):
    """One example: its ordinal, nats of its class, 1 token, 0 bytes, 1 if its class was the most likely, else 0, and
    its class."""

    document: int
    nats: float
    tokens: int
    bytes: int
    correct: int
    label: int


class ClassProbabilities(NamedTuple):
    """What is predicted of an example: its ordinal, and the probability of each class."""

    document: int
    probabilities: tuple[float, ...]


class ClassificationMetric(PooledMetric):
    """Accuracy, the share of examples whose class is predicted, and nats per example; of two classes also Matthews
    correlation, by which CoLA is scored (arXiv:1805.12471, section 4; arXiv:1804.07461, section 3.1)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes

    def row(self, document: int, sums: list[float]) -> ClassifiedExample:
        nats, count, correct, label = sums
        return ClassifiedExample(document, nats, int(count), 0, int(correct), int(label))

    def scores(self, outputs: Float[Tensor, "b c"], batch: LabelledBatch) -> list[Tensor]:
        return [outputs.argmax(dim=-1) == batch.labels, batch.labels]

    def summary(self, rows: Sequence[ClassifiedExample]) -> dict[str, float]:
        correct, labels = (np.array(column, np.float64) for column in list(zip(*rows, strict=True))[-2:])
        results = {"accuracy": float(correct.mean())}
        if self.classes == 2:
            results["matthews"] = float(matthews(confusion(correct, labels).sum(axis=0)))
        return results


class Classification(PooledTask):
    """Trains and measures a classifier."""

    config: ClassificationConfig
    metric: ClassificationMetric

    def __init__(
        self,
        config: ClassificationConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError where the model cannot be built, or the data have no classes."""
        super().__init__(config, model, data, training, ClassificationMetric(config.outputs(data)))

    def nll(self, outputs: Float[Tensor, "b c"], batch: LabelledBatch) -> Float[Tensor, " b"]:
        return F.cross_entropy(outputs, batch.labels, reduction="none")

    def prediction(self, document: int, outputs: list[float]) -> ClassProbabilities:
        return ClassProbabilities(document, tuple(torch.tensor(outputs).softmax(dim=0).tolist()))
