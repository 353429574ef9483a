"""Which number a sequence stands for."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.batch import DataDescription, LabelledBatch
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.example_metric import ExampleMetric
from lit_transformers.tasks.pooled import PooledTask, PooledTaskConfig
from lit_transformers.training import TrainingConfig


class RegressionConfig(PooledTaskConfig, kind="regression"):
    """A linear layer reads one vector of the network. The loss is half the squared error: -log p of the number under a
    normal distribution of variance 1, without its constant. Classes count as the numbers that they are called by."""

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Regression:
        return Regression(self, model, data, training)

    def outputs(self, data: DataDescription) -> int:
        return 1


class EstimatedExample(NamedTuple):
    """One example: its ordinal, nats (half the squared error), 1 as its tokens, 0 bytes, and the squared error."""

    document: int
    nats: float
    tokens: int
    bytes: int
    squared_error: float


class RegressionMetric(ExampleMetric):
    """How far off the numbers are."""

    def row(self, document: int, sums: list[float]) -> EstimatedExample:
        nats, count, squared_error = sums
        return EstimatedExample(document, nats, int(count), 0, squared_error)

    def update(self, said: Float[Tensor, "b 1"], nats: Float[Tensor, " b"], batch: LabelledBatch) -> None:
        """Numbers and nats of every row; rows of padding count for nothing."""
        real = batch.keep.any(dim=1)
        squared_error = (said[:, 0] - batch.labels).double().square()
        columns = torch.stack([nats.double(), real.double(), squared_error], dim=1)
        self.add(batch.example[real], columns[real])

    def compute(self) -> dict[str, float]:
        """mse, the mean squared error, and nats of an example."""
        rows = self.rows()
        count = sum(row.tokens for row in rows)
        if count == 0:
            return {}
        return {
            "mse": math.fsum(row.squared_error for row in rows) / count,
            "nats": math.fsum(row.nats for row in rows) / count,
        }


class Regression(PooledTask):
    """Trains and measures a network that says a number."""

    config: RegressionConfig
    metric: RegressionMetric

    def __init__(
        self,
        config: RegressionConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError where the model cannot be built."""
        super().__init__(config, model, data, training, RegressionMetric())

    def nats(self, said: Float[Tensor, "b 1"], batch: LabelledBatch) -> Float[Tensor, " b"]:
        return (said[:, 0] - batch.labels).square() / 2
