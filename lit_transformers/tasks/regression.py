"""Regression: a number for each sequence."""

from __future__ import annotations

from lit_transformers.batch import DataDescription
from lit_transformers.heads.pooled import NumberLabelConfig, PooledHeadConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.pooled import PooledTask, PooledTaskConfig
from lit_transformers.training.config import TrainingConfig


class RegressionConfig(PooledTaskConfig, kind="regression"):
    """A linear layer reads one vector of the network. The loss is half the squared error: -log p of the number under a
    normal distribution of variance 1, without its constant. Classes are used as numbers, by their index."""

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Regression:
        return Regression(self, model, data, training)

    def head(self) -> PooledHeadConfig:
        return NumberLabelConfig(pooling=self.pooling, dropout=self.dropout, column=self.column)


class Regression(PooledTask):
    """Trains and measures a network that predicts a number."""
