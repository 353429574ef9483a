"""Classification of sequences."""

from __future__ import annotations

from lit_transformers.batch import DataDescription
from lit_transformers.heads.pooled import ClassLabelConfig, PooledHeadConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.pooled import PooledTask, PooledTaskConfig
from lit_transformers.training.config import TrainingConfig


class ClassificationConfig(PooledTaskConfig, kind="classification"):
    """A softmax over classes from one vector of the network."""

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Classification:
        return Classification(self, model, data, training)

    def head(self) -> PooledHeadConfig:
        return ClassLabelConfig(**self.head_fields())


class Classification(PooledTask):
    """Trains and measures a classifier."""
