"""Regression: a number for each sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from lit_transformers.batch import DataDescription, LabelledBatch
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.pooled import PooledMetric, PooledTask, PooledTaskConfig
from lit_transformers.training.config import TrainingConfig


class RegressionConfig(PooledTaskConfig, kind="regression"):
    """A linear layer reads one vector of the network. The loss is half the squared error: -log p of the number under a
    normal distribution of variance 1, without its constant. Classes are used as numbers, by their index."""

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Regression:
        return Regression(self, model, data, training)

    def units(self, data: DataDescription) -> Mapping[str, str]:
        return {"mse": "example", "nats": "example"}

    def outputs(self, data: DataDescription) -> int:
        return 1


class EstimatedExample(NamedTuple):
    """One example: its ordinal, nats (half the squared error), 1 token, 0 bytes, and the squared error."""

    document: int
    nats: float
    tokens: int
    bytes: int
    squared_error: float


class EstimatedNumber(NamedTuple):
    """What is predicted of an example: its ordinal and a number."""

    document: int
    number: float


class RegressionMetric(PooledMetric):
    """The mean squared error, mse, and nats per example."""

    def row(self, document: int, sums: list[float]) -> EstimatedExample:
        nats, count, squared_error = sums
        return EstimatedExample(document, nats, int(count), 0, squared_error)

    def scores(self, outputs: Float[Tensor, "b 1"], batch: LabelledBatch) -> list[Tensor]:
        return [(outputs[:, 0] - batch.labels).double().square()]

    def summary(self, rows: Sequence[EstimatedExample]) -> dict[str, float]:
        return {"mse": math.fsum(row.squared_error for row in rows) / len(rows)}


class Regression(PooledTask):
    """Trains and measures a network that predicts a number."""

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

    def nll(self, outputs: Float[Tensor, "b 1"], batch: LabelledBatch) -> Float[Tensor, " b"]:
        return (outputs[:, 0] - batch.labels).square() / 2

    def prediction(self, document: int, outputs: list[float]) -> EstimatedNumber:
        return EstimatedNumber(document, outputs[0])
