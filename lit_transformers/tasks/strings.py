"""Answers to generated questions, symbol by symbol: causal language modelling with a loss on the answer alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.batch import IGNORED, DataDescription, StringBatch, StringDescription, needed_mask
from lit_transformers.heads.answer_symbols import AnswerSymbolsConfig
from lit_transformers.heads.head import HeadConfig, Representation
from lit_transformers.models.capabilities import CausalModelConfig, CausalNetwork, require
from lit_transformers.models.model import ModelConfig, ModelOutput
from lit_transformers.tasks.string_metric import StringMetric
from lit_transformers.tasks.task import Task, TaskConfig
from lit_transformers.training.config import TrainingConfig


class StringsConfig(TaskConfig, kind="strings"):
    """Every symbol of an answer is predicted from the question and the correct symbols before it."""

    reads: ClassVar[type[DataDescription]] = StringDescription

    def build(self, model: ModelConfig, data: DataDescription, training: TrainingConfig) -> Strings:
        return Strings(self, model, data, training)

    def own_heads(self, data: DataDescription) -> Mapping[str, HeadConfig]:
        return {"answers": AnswerSymbolsConfig()}

    def random_batch(self, data: DataDescription) -> StringBatch:
        """Returns two random strings whose answer is their second half."""
        text = torch.randint(1, data.vocabulary.size, (2, data.length + 1))
        targets = text[:, 1:].clone()
        targets[:, : data.length // 2] = IGNORED
        real, rows = torch.ones(2, data.length, dtype=torch.bool), torch.arange(2)
        return StringBatch(text[:, :-1], targets, real, rows, torch.full((2,), data.length), None, padded=False)


class Strings(Task):
    """Trains and measures a language model on whole strings, each read from an empty state."""

    config: StringsConfig
    network: CausalNetwork

    def __init__(
        self, config: StringsConfig, model: ModelConfig, data: DataDescription, training: TrainingConfig | None = None
    ) -> None:
        """Raises ConfigError where the model cannot be built, or the data are of another kind."""
        super().__init__(config, model, data, training)
        self.network = require(model, CausalModelConfig, "strings trains").build(data)
        self.add_heads(StringMetric)

    def read(self, network: CausalNetwork, batch: StringBatch) -> Representation:
        output: ModelOutput = network(batch.inputs, None, needed_mask(batch))
        return Representation(network, output.hidden, aux=output.aux)

    def evaluation_output(self, batch: StringBatch) -> Float[Tensor, "b t v"]:
        reading = self.evaluation_reading(batch)
        return reading.network.tokens.log_probabilities(reading.hidden)
