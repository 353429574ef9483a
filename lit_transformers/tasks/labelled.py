"""The base of the objectives that predict labels of rows: a network that reads whole rows, and heads on its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from lit_transformers.batch import ChoiceLabels, DataDescription, LabelledBatch, LabelledDescription, needed_mask
from lit_transformers.config import Positive
from lit_transformers.heads.head import Representation
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork, require
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.groups import INSTEAD_OF_FROZEN


class LabelledTaskConfig(TaskConfig):
    """Base of the configs of objectives that predict labels of rows, of their tokens, or of spans.

    layers: reads the output of the first n layers, and omits the others; None for the network's own output.
    Where ``training.groups`` freeze the network, it is a probe of the representations of a layer (Alain and Bengio
    2016, arXiv:1610.01644, section 3; Tenney et al. 2019, arXiv:1905.05950).
    """

    reads: ClassVar[type[DataDescription]] = LabelledDescription
    absent: ClassVar[Mapping[str, str]] = {"frozen": INSTEAD_OF_FROZEN}

    layers: Positive | None = None

    def conflicts(self) -> Iterator[str]:
        if self.layers is not None and self.evaluation:
            yield "evaluation measures another network, and layers takes a part of it; empty evaluation, or drop layers"

    def fewest_layers(self) -> int:
        return self.layers or 1

    def random_batch(self, data: DataDescription) -> LabelledBatch:
        """Returns two examples of random symbols, each with a random label and a random marked token in every row, and
        of two texts if rows may have two."""
        described = LabelledDescription.of(data, self.kind)
        choices = (described.labels.count,) if isinstance(described.labels, ChoiceLabels) else ()
        shape = (2, *choices, data.length)
        inputs = torch.randint(1, data.vocabulary.size, shape)
        labels = described.labels.random(2, data.length)
        columns = {name: kind.random(2, data.length) for name, kind in described.columns.items()}
        marked = torch.arange(data.length) == torch.randint(data.length, (*shape[:-1], 1))
        real, rows = torch.ones_like(marked), torch.arange(2)
        segments = random_segments(inputs) if described.segments > 1 else None
        return LabelledBatch(inputs, real, labels, marked, rows, None, columns, padded=False, segments=segments)


class LabelledTask(Task):
    """Trains and measures a network that reads whole rows. Subclasses add their heads."""

    config: LabelledTaskConfig
    network: RowNetwork

    def __init__(
        self,
        config: LabelledTaskConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None = None,
    ) -> None:
        """Raises ConfigError where the model cannot be built or cannot be used for such an objective."""
        reader = require(model, RowModelConfig, f"{config.kind} reads")
        super().__init__(config, model, data, training)
        self.network = built(reader, config, data)
        for parameter in self.network.prediction_only():
            parameter.requires_grad_(False)

    def unused(self) -> list[nn.Parameter]:
        return [*super().unused(), *self.network.prediction_only()]

    def read(self, network: RowNetwork, batch: LabelledBatch) -> Representation:
        output = network.read_row(batch.inputs, needed_mask(batch), marks(batch), batch.segments)
        return Representation(network, output.hidden, aux=output.aux)


def built(reader: RowModelConfig, config: LabelledTaskConfig, data: DataDescription) -> RowNetwork:
    """Builds the network with the layers that the config reads. Raises ConfigError where it has no more than these."""
    network = reader.build(data)
    if config.layers is not None and config.layers != reader.get("depth"):
        network.keep_layers(config.layers)
    return network


def marks(batch: LabelledBatch) -> Bool[Tensor, "b t"]:
    """Returns the tokens that the data mark, or else the first token of each row (arXiv:2004.05150, section 3.2)."""
    if batch.marked is not None:
        return batch.marked
    first = torch.zeros_like(batch.padding_mask)
    first[:, 0] = True
    return first & batch.padding_mask


def random_segments(inputs: Int[Tensor, "*n t"]) -> Int[Tensor, "*n t"]:
    """Returns segments of rows of two texts, of which the second begins at a random token."""
    length = inputs.size(-1)
    return (torch.arange(length) > torch.randint(length - 1, (*inputs.shape[:-1], 1))).long()
