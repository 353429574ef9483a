"""Which class a sequence is of."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.batch import DataDescription, LabelledBatch
from lit_transformers.config import ConfigError
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.example_metric import ExampleMetric
from lit_transformers.tasks.pooled import PooledTask, PooledTaskConfig
from lit_transformers.training import TrainingConfig


class ClassificationConfig(PooledTaskConfig, kind="classification"):
    """A softmax over classes reads one vector of the network."""

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Classification:
        return Classification(self, model, data, training)

    def outputs(self, data: DataDescription) -> int:
        if not data.classes:
            raise ConfigError("classification needs classes, and these labels are numbers; set task=regression", "task")
        return data.classes


class ClassifiedExample(NamedTuple):
    """One example: its ordinal, nats of its class, 1 as its tokens, no bytes, and 1 where its class was likeliest."""

    document: int
    nats: float
    tokens: int
    bytes: int
    correct: int


class ClassificationMetric(ExampleMetric):
    """How many classes are found, and the nats of an example."""

    def row(self, document: int, sums: list[float]) -> ClassifiedExample:
        nats, count, correct = sums
        return ClassifiedExample(document, nats, int(count), 0, int(correct))

    def update(self, said: Float[Tensor, "b c"], nats: Float[Tensor, " b"], batch: LabelledBatch) -> None:
        """Logits and nats of every row; rows of padding count for nothing."""
        real = batch.keep.any(dim=1)
        correct = said.argmax(dim=-1) == batch.labels
        columns = torch.stack([nats.double(), real.double(), correct.double()], dim=1)
        self.add(batch.example[real], columns[real])

    def compute(self) -> dict[str, float]:
        """accuracy, and nats of an example."""
        rows = self.rows()
        count = sum(row.tokens for row in rows)
        if count == 0:
            return {}
        return {
            "accuracy": sum(row.correct for row in rows) / count,
            "nats": math.fsum(row.nats for row in rows) / count,
        }


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
        super().__init__(config, model, data, training, ClassificationMetric())

    def nats(self, said: Float[Tensor, "b c"], batch: LabelledBatch) -> Float[Tensor, " b"]:
        return F.cross_entropy(said, batch.labels, reduction="none")
