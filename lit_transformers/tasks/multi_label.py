"""Multi-label classification: a sequence has any number of classes."""

from __future__ import annotations

from lit_transformers.batch import DataDescription
from lit_transformers.heads.pooled import ClassSetLabelConfig, PooledHeadConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.pooled import PooledTask, PooledTaskConfig
from lit_transformers.training.config import TrainingConfig


class MultiLabelConfig(PooledTaskConfig, kind="multi_label"):
    """A sigmoid for each class, on one vector of the row. Every class with a probability of at least one half is
    predicted."""

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> MultiLabel:
        return MultiLabel(self, model, data, training)

    def head(self) -> PooledHeadConfig:
        return ClassSetLabelConfig(**self.head_fields())


class MultiLabel(PooledTask):
    """Trains and measures a network that predicts which classes a sequence has."""
