"""Classification of sequences."""

from __future__ import annotations

from lit_transformers.batch import DataDescription
from lit_transformers.heads.pooled import ClassLabelConfig, ClassWeights, PooledHeadConfig
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.pooled import PooledTask, PooledTaskConfig
from lit_transformers.training.config import TrainingConfig


class ClassificationConfig(PooledTaskConfig, kind="classification"):
    """A softmax over classes, on one vector of the row.

    class_weights: multiply the training loss of an example, by its class. none; a number for each class; or balanced:
    the number of training examples, divided by the number of classes and by the number of examples of the class.
    Measures are not weighted.
    """

    class_weights: ClassWeights = "none"

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Classification:
        return Classification(self, model, data, training)

    def head(self) -> PooledHeadConfig:
        return ClassLabelConfig(**self.head_fields(), class_weights=self.class_weights)


class Classification(PooledTask):
    """Trains and measures a classifier."""
