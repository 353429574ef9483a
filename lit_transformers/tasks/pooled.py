"""Objectives with one prediction for a whole sequence: a network, one vector of its output, a linear layer."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lit_transformers.batch import DataDescription, LabelledBatch, LabelledDescription
from lit_transformers.config import ConfigError, Dropout, Fraction, Positive
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork, require
from lit_transformers.models.cost import ModelCost, cost
from lit_transformers.models.model import ModelConfig, ModelOutput
from lit_transformers.precision import full_precision
from lit_transformers.tasks.example_metric import ExampleMetric
from lit_transformers.tasks.task import Task, TaskConfig, token_mean
from lit_transformers.training.config import TrainingConfig

Pooling = Literal["first", "mean", "last"]


class PooledTaskConfig(TaskConfig):
    """Base of the configs of objectives with one prediction per sequence.

    pooling: the vector of the first token, which is the boundary before every row (arXiv:1810.04805, section 3, where
    it is called [CLS]); the mean over all real tokens; or the vector of the last one, the only one that has seen the
    whole row if the network is a language_model. dropout: of that vector.
    layers: reads the output of so many of the first layers, the others are left out; None for the network's own output.
    frozen: whether the network keeps the weights that it starts from, and the linear layer alone is trained: a probe of
    what a layer represents (Alain and Bengio 2016, arXiv:1610.01644, section 3; Tenney et al. 2019, arXiv:1905.05950).
    """

    reads: ClassVar[type[DataDescription]] = LabelledDescription

    pooling: Pooling = "first"
    dropout: Annotated[Fraction, Dropout] = 0.0
    layers: Positive | None = None
    frozen: bool = False

    def conflicts(self) -> Iterator[str]:
        if self.layers is not None and self.evaluation:
            yield "evaluation measures another network, and layers takes a part of it; empty evaluation, or drop layers"

    def outputs(self, data: DataDescription) -> int:
        """Returns the number of outputs per sequence. Raises ConfigError for data that it cannot learn from."""
        raise NotImplementedError

    def cost(self, model: ModelConfig, data: DataDescription) -> ModelCost:
        reader = readable(model, self)
        outputs, length = self.outputs(data), data.length
        kept = reader if self.layers is None else reader.override({"depth": self.layers})
        network_cost = cost(kept, data, length, continued=False)
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            network = built(reader, self, data)
        unused = sum(parameter.numel() for parameter in network.prediction_only())
        parameters = network_cost.parameters
        if self.layers is not None:
            parameters = sum(parameter.numel() for parameter in network.parameters())
        softmax = network.softmax_flops(length)
        return network_cost._replace(
            parameters=parameters - unused + outputs * (model.dim + 1),
            embedding_parameters=network_cost.embedding_parameters - unused,
            flops_per_token=network_cost.flops_per_token + (2 * outputs * model.dim - softmax) / length,
        )

    def passes(self) -> int:
        """One where the network is frozen, for the backward pass ends before it."""
        return 1 if self.frozen else 3

    def random_batch(self, data: DataDescription) -> LabelledBatch:
        """Returns two rows of random symbols, each with a random label and a random marked token."""
        inputs = torch.randint(1, data.vocabulary.size, (2, data.length))
        labels = LabelledDescription.of(data, self.kind).labels.random(2)
        marked = torch.arange(data.length) == torch.randint(data.length, (2, 1))
        return LabelledBatch(inputs, torch.ones_like(marked), labels, marked, torch.arange(2), None)


class PooledMetric(ExampleMetric):
    """The mean over examples of their nats, and a subclass's summary of their scores."""

    @abstractmethod
    def scores(self, outputs: Float[Tensor, "b o"], batch: LabelledBatch) -> list[Tensor]:
        """Returns the scores (b,) of every row, given the outputs (b, o): the last columns of its sums."""

    @abstractmethod
    def summary(self, rows: Sequence[Any]) -> dict[str, float]:
        """Returns the reported numbers beside nats, of at least one row."""

    def update(self, outputs: Float[Tensor, "b o"], nats: Float[Tensor, " b"], batch: LabelledBatch) -> None:
        """Adds the outputs (b, o) and nats (b,) of every row; rows of padding do not count."""
        real = batch.padding_mask.any(dim=1)
        columns = torch.stack([column.double() for column in (nats, real, *self.scores(outputs, batch))], dim=1)
        self.add(batch.example[real], columns[real])

    def compute(self) -> dict[str, float]:
        rows = self.rows()
        count = sum(row.tokens for row in rows)
        if count == 0:
            return {}
        return self.summary(rows) | {"nats": math.fsum(row.nats for row in rows) / count}


class PooledTask(Task):
    """Trains and measures a network and a linear layer on its pooled output. A subclass defines the loss of an example.

    ``metric`` is updated with the outputs, the nats of every row, and the batch.
    """

    config: PooledTaskConfig
    network: RowNetwork
    metric: PooledMetric

    def __init__(
        self,
        config: PooledTaskConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None,
        metric: PooledMetric,
    ) -> None:
        """Raises ConfigError where the model cannot be built, or cannot be used for such an objective."""
        reader = readable(model, config)
        super().__init__(config, model, data, training)
        outputs = config.outputs(data)
        self.network = built(reader, config, data)
        untrained = self.network.parameters() if config.frozen else self.network.prediction_only()
        for parameter in untrained:
            parameter.requires_grad_(False)
        self.head = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(model.dim, outputs))
        if self.training_config.compile:
            self.network.compile()
        self.metric = metric

    @abstractmethod
    def nll(self, outputs: Float[Tensor, "b o"], batch: LabelledBatch) -> Float[Tensor, " b"]:
        """Returns the loss (b,) of each example, in float32."""

    def training_step(self, batch: LabelledBatch, batch_index: int) -> dict[str, Any]:
        if self.config.frozen:
            self.network.eval()
        network_output = read_whole(self.network, batch)
        real = batch.padding_mask.any(dim=1)
        outputs = self.predict(network_output, batch)
        mean = token_mean(self.nll(outputs, batch)[real].sum(), real)
        return self.training_output(mean, network_output.aux)

    def predict(self, network_output: ModelOutput, batch: LabelledBatch) -> Float[Tensor, "b o"]:
        """Returns the outputs (b, o) for each sequence."""
        outputs: Tensor = self.head(pooled(network_output.hidden, batch.padding_mask, self.config.pooling))
        return full_precision(outputs)

    def evaluation_output(self, batch: LabelledBatch) -> Float[Tensor, "b o"]:
        return self.predict(read_whole(self.evaluator(), batch), batch)

    @abstractmethod
    def prediction(self, document: int, outputs: list[float]) -> Any:
        """Returns what is predicted of the example of that ordinal, given its outputs."""

    def predict_step(self, batch: LabelledBatch, batch_index: int) -> list[Any]:
        """Returns the ``prediction`` of every example; rows of padding have none."""
        real = batch.padding_mask.any(dim=1)
        outputs = self.evaluation_output(batch)[real].tolist()
        return [self.prediction(*pair) for pair in zip(batch.example[real].tolist(), outputs, strict=True)]

    def validation_step(self, batch: LabelledBatch, batch_index: int) -> None:
        real = batch.padding_mask.any(dim=1)  # a rank that has finished gets rows of padding
        if real.any():
            outputs = self.evaluation_output(batch)
            self.metric.update(outputs, self.nll(outputs, batch), batch)


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


def read_whole(network: RowNetwork, batch: LabelledBatch) -> ModelOutput:
    """Runs the network on whole rows of a batch."""
    return network.read_row(batch.inputs, batch.padding_mask, marks(batch))


def marks(batch: LabelledBatch) -> Bool[Tensor, "b t"]:
    """Returns the tokens that the data mark, or else the first token of each row (arXiv:2004.05150, section 3.2)."""
    if batch.marked is not None:
        return batch.marked
    first = torch.zeros_like(batch.padding_mask)
    first[:, 0] = True
    return first & batch.padding_mask


def pooled(hidden: Float[Tensor, "b t d"], padding_mask: Bool[Tensor, "b t"], pooling: Pooling) -> Float[Tensor, "b d"]:
    """Returns one vector (b, d) for each row; padding is at the end of a row."""
    match pooling:
        case "first":
            return hidden[:, 0]
        case "last":
            last = (padding_mask.sum(dim=1) - 1).clamp(min=0)
            return hidden[torch.arange(len(hidden), device=hidden.device), last]
        case "mean":
            total = hidden.masked_fill(~padding_mask[..., None], 0.0).sum(dim=1)
            return total / padding_mask.sum(dim=1, keepdim=True).clamp(min=1)
