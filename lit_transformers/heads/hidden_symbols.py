"""The prediction of the symbols that rows hide, by the network's softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import ConfigError
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.records.measure import Measure, maximized, minimized

HIDDEN = "hidden symbol"
"""What measures of symbols that the data hide are means over."""


class HiddenSymbolsConfig(HeadConfig, kind="hidden_symbols"):
    """The targets of rows are predicted. Only their positions reach the softmax."""

    reads: ClassVar[Reads] = RowDescription

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> HiddenSymbols:
        return HiddenSymbols(self, row_network(model, network), RowDescription.of(data, self.kind))

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return minimized("nats", "perplexity", per=HIDDEN) | maximized("accuracy", per=HIDDEN)


class HiddenSymbols(Head):
    """Nats of the hidden symbols of each row, their number, and how many of them were the most likely."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "bytes": int, "correct": int}

    def __init__(self, config: HiddenSymbolsConfig, network: RowNetwork, rows: RowDescription) -> None:
        super().__init__(config)
        self.row_flops = network.predict_flops(rows.predictions) + network.tokens.flops(rows.predictions)

    def targets(self, batch: RowBatch) -> Int[Tensor, ""]:
        return (batch.targets != IGNORED).sum()

    def loss(self, reading: Representation, batch: RowBatch) -> HeadLoss:
        scored = batch.targets != IGNORED
        hidden = reading.network.predict(reading.hidden[scored])
        return HeadLoss.of(reading.network.tokens.nll(hidden, batch.targets[scored]))

    def log_probabilities(self, reading: Representation, batch: RowBatch) -> Float[Tensor, "n v"]:
        """Returns log probabilities at the n positions whose symbol is predicted, row by row."""
        log_probabilities: Tensor = reading.network.tokens.log_probabilities(
            reading.network.predict(reading.hidden[batch.targets != IGNORED])
        )
        return log_probabilities

    def sums(self, reading: Representation, batch: RowBatch) -> Float[Tensor, "b 4"]:
        scored, log_probabilities = batch.targets != IGNORED, self.log_probabilities(reading, batch)
        targets = batch.targets[scored]
        nats = -log_probabilities.gather(-1, targets[:, None])[:, 0].double()
        correct = log_probabilities.argmax(dim=-1) == targets
        ones = torch.ones_like(nats)
        return by_row(torch.stack([nats, ones, 0 * ones, correct.double()], dim=-1), rows_of(scored), len(scored))

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Returns nats, perplexity and accuracy of symbols."""
        tokens = sum(sums["tokens"])
        if tokens == 0:
            return {}
        nats = math.fsum(sums["nats"]) / tokens
        return {"nats": nats, "perplexity": math.exp(min(nats, 700.0)), "accuracy": sum(sums["correct"]) / tokens}

    def flops(self, length: int) -> float:
        return self.row_flops


def row_network(model: ModelConfig, network: Network) -> RowNetwork:
    """Returns the network. Raises ConfigError where it does not read whole rows."""
    if not isinstance(network, RowNetwork):
        raise ConfigError(f"a {model.kind} reads no whole rows; set model to an encoder", "model")
    return network


def rows_of(scored: Tensor) -> Int[Tensor, " n"]:
    """Returns the number of the row of each position (b, t) that is True, row by row."""
    return torch.arange(len(scored), device=scored.device)[:, None].expand_as(scored)[scored]


def by_row(values: Float[Tensor, "n c"], row: Int[Tensor, " n"], rows: int) -> Float[Tensor, "b c"]:
    """Returns the sums of values that belong to rows."""
    return values.new_zeros(rows, values.size(1)).index_add(0, row, values)
