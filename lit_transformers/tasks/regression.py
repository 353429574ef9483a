"""Regression: a number for each sequence."""

from __future__ import annotations

from lit_transformers.batch import DataDescription
from lit_transformers.heads.pooled import NumberLabelConfig, PooledHeadConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.pooled import PooledTask, PooledTaskConfig
from lit_transformers.training.config import TrainingConfig


class RegressionConfig(PooledTaskConfig, kind="regression"):
    """A linear layer on one vector of the row. The loss is half of the squared error: -log p of the number under a
    normal distribution of variance 1, without its constant. Classes count as the numbers of their index."""

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Regression:
        return Regression(self, model, data, training)

    def head(self) -> PooledHeadConfig:
        return NumberLabelConfig(**self.head_fields())


class Regression(PooledTask):
    """Trains and measures a network that predicts a number."""
