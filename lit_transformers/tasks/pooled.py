"""Objectives with one prediction for a whole sequence: a network, and a head on one vector of its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, cast

from jaxtyping import Float
from torch import Tensor

from lit_transformers.batch import DataDescription, LabelledBatch
from lit_transformers.config import ConfigError, Dropout, Fraction
from lit_transformers.heads.head import HeadConfig
from lit_transformers.heads.pooled import PooledHead, PooledHeadConfig, Pooling
from lit_transformers.models.capabilities import RowModelConfig, require
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.labelled import LabelledTask, LabelledTaskConfig
from lit_transformers.training.config import TrainingConfig


class PooledTaskConfig(LabelledTaskConfig):
    """Base of the configs of objectives with one prediction per sequence.

    pooling: the vector of the first token, which is the boundary before every row (arXiv:1810.04805, section 3, where
    it is called [CLS]); the mean over all real tokens; or the vector of the last one, the only one that has seen the
    whole row if the network is a language_model. dropout: of that vector.
    """

    pooling: Pooling = "first"
    dropout: Annotated[Fraction, Dropout] = 0.0

    def head(self) -> PooledHeadConfig:
        """Returns the head that predicts the label."""
        raise NotImplementedError

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        return {"label": self.head()}


class PooledTask(LabelledTask):
    """Trains and measures a network with a head on one vector of each row."""

    config: PooledTaskConfig
    former_names: ClassVar[Mapping[str, str]] = {"head.": "heads.label.map."}

    def __init__(
        self,
        config: PooledTaskConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError where the model cannot be built or cannot be used for such an objective, or the labels are
        of another kind."""
        require_readable(model, config.kind, config.pooling)
        config.head().outputs(config.reads.of(data, config.kind))
        super().__init__(config, model, data, training)
        self.add_heads()

    @property
    def label_head(self) -> PooledHead:
        """The head that predicts the label."""
        return cast("PooledHead", self.heads["label"])

    def evaluation_output(self, batch: LabelledBatch) -> Float[Tensor, "b o"]:
        return self.label_head.outputs(self.evaluation_reading(batch), batch)

    def predict_step(self, batch: LabelledBatch, batch_index: int) -> list[Any]:
        """Returns the head's ``prediction`` of every example; rows of padding have none."""
        real, predict = batch.padding_mask.any(dim=1), self.label_head.prediction
        outputs = self.evaluation_output(batch)[real].tolist()
        return [predict(*pair) for pair in zip(batch.example[real].tolist(), outputs, strict=True)]


def require_readable(model: ModelConfig, task: str, pooling: Pooling) -> None:
    """Raises ConfigError if the output of a model cannot be pooled as a task says."""
    reader = require(model, RowModelConfig, f"{task} reads")
    if pooling == "first" and not reader.first_sees_all:
        raise ConfigError(
            f"the first token of a {model.kind} sees nothing but itself; set task.pooling to last or mean, "
            "or model to an encoder that is not causal",
            "task.pooling",
        )
