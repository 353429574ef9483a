"""Objectives that say one thing of a whole sequence: a network, one vector of its output, a linear layer."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lit_transformers.batch import DataDescription, LabelledBatch
from lit_transformers.config import ConfigError, Fraction
from lit_transformers.cost import Cost, cost
from lit_transformers.mixer import full_precision
from lit_transformers.models.encoder import Encoder, EncoderConfig
from lit_transformers.models.language_model import LanguageModel, LanguageModelConfig
from lit_transformers.models.model import ModelConfig, Read
from lit_transformers.tasks.example_metric import ExampleMetric
from lit_transformers.tasks.task import Task, TaskConfig, averaged
from lit_transformers.training import TrainingConfig

Pooling = Literal["first", "mean", "last"]


class PooledTaskConfig(TaskConfig):
    """Base of the configs of such objectives.

    pooling: the vector of the first token, which is the boundary before every row (arXiv:1810.04805, section 3, where
    it is called [CLS]); the mean over all real tokens; or the vector of the last one, the only that has seen all of a
    row where the network is a language_model. dropout: of that vector.
    """

    batches: ClassVar[type] = LabelledBatch

    pooling: Pooling = "first"
    dropout: Fraction = 0.0

    def outputs(self, data: DataDescription) -> int:
        """Numbers that are said of a sequence. Raises ConfigError for data that this objective does not learn from."""
        raise NotImplementedError

    def cost(self, model: ModelConfig, data: DataDescription) -> Cost:
        reader(model, self)
        outputs, size, length = self.outputs(data), data.vocabulary.size, data.length
        found = cost(model, size, length, continued=False)
        with torch.device("meta"):
            tokens = model.tokens.build(size, model.dim)
        idle = sum(parameter.numel() for parameter in tokens.softmax_only())
        softmax = tokens.flops(length) if isinstance(model, LanguageModelConfig) else 0
        return found._replace(
            parameters=found.parameters - idle + outputs * (model.dim + 1),
            embedding_parameters=found.embedding_parameters - idle,
            flops_per_token=found.flops_per_token + (2 * outputs * model.dim - softmax) / length,
        )

    def random_batch(self, data: DataDescription) -> LabelledBatch:
        """Two rows of random symbols, each with a random label and a random token that the data single out."""
        inputs = torch.randint(1, data.vocabulary.size, (2, data.length))
        labels = torch.randint(data.classes, (2,)) if data.classes else torch.randn(2)
        marked = torch.arange(data.length) == torch.randint(data.length, (2, 1))
        return LabelledBatch(inputs, torch.ones_like(marked), labels, marked, torch.arange(2), 0, None)


class PooledMetric(ExampleMetric):
    """The mean over examples of one number, which is called ``name``, and of their nats."""

    name: ClassVar[str]

    @abstractmethod
    def scores(self, said: Float[Tensor, "b o"], batch: LabelledBatch) -> Tensor:
        """The number (b,) of every row."""

    def update(self, said: Float[Tensor, "b o"], nats: Float[Tensor, " b"], batch: LabelledBatch) -> None:
        """What was said, and nats, of every row; rows of padding count for nothing."""
        real = batch.keep.any(dim=1)
        columns = torch.stack([nats.double(), real.double(), self.scores(said, batch).double()], dim=1)
        self.add(batch.example[real], columns[real])

    def compute(self) -> dict[str, float]:
        rows = self.rows()
        count = sum(row.tokens for row in rows)
        if count == 0:
            return {}
        return {
            self.name: math.fsum(row[-1] for row in rows) / count,
            "nats": math.fsum(row.nats for row in rows) / count,
        }


class PooledTask(Task):
    """Trains and measures a network and the layer that reads it. An objective says what one example costs.

    ``metric`` is updated with what was said, the nats of every row, and the batch.
    """

    config: PooledTaskConfig
    network: Encoder | LanguageModel
    metric: PooledMetric

    def __init__(
        self,
        config: PooledTaskConfig,
        model: ModelConfig,
        data: DataDescription,
        training: TrainingConfig | None,
        metric: PooledMetric,
    ) -> None:
        """Raises ConfigError where the model cannot be built, or not for such an objective."""
        readable = reader(model, config)
        super().__init__(config, model, data, training)
        outputs = config.outputs(data)
        self.network = readable.build(data.vocabulary.size, data.length)
        for parameter in self.network.tokens.softmax_only():
            parameter.requires_grad_(False)
        self.head = nn.Sequential(nn.Dropout(config.dropout), nn.Linear(model.dim, outputs))
        if self.training_config.compile:
            self.network.compile()
        self.metric = metric

    @abstractmethod
    def nats(self, said: Float[Tensor, "b o"], batch: LabelledBatch) -> Float[Tensor, " b"]:
        """What each example costs, in float32."""

    def training_step(self, batch: LabelledBatch, batch_index: int) -> dict[str, Any]:
        read = read_whole(self.network, batch)
        real = batch.keep.any(dim=1)
        said = self.say(read, batch)
        mean = averaged(self.nats(said, batch)[real].sum(), real)
        return self.learned(mean, read.aux)

    def say(self, read: Read, batch: LabelledBatch) -> Float[Tensor, "b o"]:
        """The numbers that are said of each sequence."""
        said: Tensor = self.head(pooled(read.hidden, batch.keep, self.config.pooling))
        return full_precision(said)

    def measured(self, batch: LabelledBatch) -> Float[Tensor, "b o"]:
        return self.say(read_whole(self.evaluator(), batch), batch)

    def validation_step(self, batch: LabelledBatch, batch_index: int) -> None:
        real = batch.keep.any(dim=1)  # a rank that is through shows rows of padding
        if real.any():
            said = self.measured(batch)
            self.metric.update(said, self.nats(said, batch), batch)


def reader(model: ModelConfig, config: PooledTaskConfig) -> EncoderConfig | LanguageModelConfig:
    """The model, if it can be read so. Raises ConfigError."""
    if not isinstance(model, EncoderConfig | LanguageModelConfig):
        raise ConfigError(f"{config.kind} reads an encoder or a language_model, not a {model.kind}", "model")
    if isinstance(model, LanguageModelConfig) and config.pooling == "first":
        raise ConfigError(
            "the first token of a language_model sees nothing but itself; set task.pooling to last or mean, "
            "or model to encoder",
            "task.pooling",
        )
    return model


def read_whole(network: Any, batch: LabelledBatch) -> Read:
    """Every row of a batch, from its beginning to its end."""
    read: Read
    if isinstance(network, LanguageModel):
        read = network(batch.inputs, None, batch.keep)
    else:
        read = network(batch.inputs, batch.keep, marks(batch))
    return read


def marks(batch: LabelledBatch) -> Bool[Tensor, "b t"]:
    """What the data single out, or else the token that a row begins with (arXiv:2004.05150, section 3.2)."""
    if batch.marked is not None:
        return batch.marked
    first = torch.zeros_like(batch.keep)
    first[:, 0] = True
    return first & batch.keep


def pooled(hidden: Float[Tensor, "b t d"], keep: Bool[Tensor, "b t"], pooling: Pooling) -> Float[Tensor, "b d"]:
    """One vector of each row; padding stands at its end."""
    match pooling:
        case "first":
            return hidden[:, 0]
        case "last":
            last = (keep.sum(dim=1) - 1).clamp(min=0)
            return hidden[torch.arange(len(hidden), device=hidden.device), last]
        case "mean":
            total = hidden.masked_fill(~keep[..., None], 0.0).sum(dim=1)
            return total / keep.sum(dim=1, keepdim=True).clamp(min=1)
