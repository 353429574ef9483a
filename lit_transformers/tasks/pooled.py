"""Objectives with one prediction for a whole sequence: a network, and a head on one vector of its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lit_transformers.batch import DataDescription, LabelledBatch, LabelledDescription, needed_mask
from lit_transformers.config import ConfigError, Dropout, Fraction, Positive
from lit_transformers.heads.head import HeadConfig, Representation
from lit_transformers.heads.pooled import PooledHead, PooledHeadConfig, Pooling
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork, require
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.groups import INSTEAD_OF_FROZEN


class PooledTaskConfig(TaskConfig):
    """Base of the configs of objectives with one prediction per sequence.

    pooling: the vector of the first token, which is the boundary before every row (arXiv:1810.04805, section 3, where
    it is called [CLS]); the mean over all real tokens; or the vector of the last one, the only one that has seen the
    whole row if the network is a language_model. dropout: of that vector.
    layers: reads the output of the first n layers, and omits the others; None for the network's own output.
    Where ``training.groups`` freeze the network, it is a probe of the representations of a layer (Alain and Bengio
    2016, arXiv:1610.01644, section 3; Tenney et al. 2019, arXiv:1905.05950).
    """

    reads: ClassVar[type[DataDescription]] = LabelledDescription
    absent: ClassVar[Mapping[str, str]] = {"frozen": INSTEAD_OF_FROZEN}

    pooling: Pooling = "first"
    dropout: Annotated[Fraction, Dropout] = 0.0
    layers: Positive | None = None

    def conflicts(self) -> Iterator[str]:
        if self.layers is not None and self.evaluation:
            yield "evaluation measures another network, and layers takes a part of it; empty evaluation, or drop layers"

    def head(self) -> PooledHeadConfig:
        """Returns the head that predicts the label."""
        raise NotImplementedError

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        return {"label": self.head()}

    def fewest_layers(self) -> int:
        return self.layers or 1

    def random_batch(self, data: DataDescription) -> LabelledBatch:
        """Returns two rows of random symbols, each with a random label and a random marked token."""
        inputs = torch.randint(1, data.vocabulary.size, (2, data.length))
        described = LabelledDescription.of(data, self.kind)
        labels = described.labels.random(2, data.length)
        columns = {name: kind.random(2, data.length) for name, kind in described.columns.items()}
        marked = torch.arange(data.length) == torch.randint(data.length, (2, 1))
        real, rows = torch.ones_like(marked), torch.arange(2)
        return LabelledBatch(inputs, real, labels, marked, rows, None, columns, padded=False)


class PooledTask(Task):
    """Trains and measures a network with a head on one vector of each row."""

    config: PooledTaskConfig
    network: RowNetwork
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
        reader = readable(model, config)
        super().__init__(config, model, data, training)
        config.head().outputs(data)
        self.network = built(reader, config, data)
        for parameter in self.network.prediction_only():
            parameter.requires_grad_(False)
        self.add_heads()

    def unused(self) -> list[nn.Parameter]:
        return [*super().unused(), *self.network.prediction_only()]

    def read(self, network: RowNetwork, batch: LabelledBatch) -> Representation:
        output = network.read_row(batch.inputs, needed_mask(batch), marks(batch))
        return Representation(network, output.hidden, aux=output.aux)

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


def built(reader: RowModelConfig, config: PooledTaskConfig, data: DataDescription) -> RowNetwork:
    """Builds the network with the layers that the config reads. Raises ConfigError where it has no more than these."""
    network = reader.build(data)
    if config.layers is not None and config.layers != reader.get("depth"):
        network.keep_layers(config.layers)
    return network


def readable(model: ModelConfig, config: PooledTaskConfig) -> RowModelConfig:
    """Returns the model. Raises ConfigError if its output cannot be pooled as the config says."""
    reader = require(model, RowModelConfig, f"{config.kind} reads")
    if config.pooling == "first" and not reader.first_sees_all:
        raise ConfigError(
            f"the first token of a {model.kind} sees nothing but itself; set task.pooling to last or mean, "
            "or model to an encoder that is not causal",
            "task.pooling",
        )
    return reader


def marks(batch: LabelledBatch) -> Bool[Tensor, "b t"]:
    """Returns the tokens that the data mark, or else the first token of each row (arXiv:2004.05150, section 3.2)."""
    if batch.marked is not None:
        return batch.marked
    first = torch.zeros_like(batch.padding_mask)
    first[:, 0] = True
    return first & batch.padding_mask
