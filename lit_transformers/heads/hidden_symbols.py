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
from lit_transformers.heads.predicted_positions import PredictedPositions
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.records.measure import Measure, maximized, minimized

HIDDEN = "hidden symbol"
"""The unit of measures that are means over the symbols that the data hide."""


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
        return HeadLoss.of(self.nats(reading, batch, hidden_positions(batch)))

    def nats(self, reading: Representation, batch: RowBatch, positions: PredictedPositions) -> Float[Tensor, " n"]:
        """Returns -log p of the targets at positions, 0 where they are IGNORED."""
        vectors = reading.network.predict(positions.of_rows(reading.hidden))
        nats: Tensor = reading.network.tokens.nll(vectors, positions.of_rows(batch.targets))
        return nats

    def log_probabilities(self, reading: Representation, positions: PredictedPositions) -> Float[Tensor, "n v"]:
        """Returns log probabilities of symbols at positions."""
        vectors = reading.network.predict(positions.of_rows(reading.hidden))
        log_probabilities: Tensor = reading.network.tokens.log_probabilities(vectors)
        return log_probabilities

    def sums(self, reading: Representation, batch: RowBatch) -> Float[Tensor, "b 4"]:
        positions = hidden_positions(batch)
        log_probabilities, targets = self.log_probabilities(reading, positions), positions.of_rows(batch.targets)
        nats = -log_probabilities.gather(-1, targets.clamp(min=0)[:, None])[:, 0].double()
        correct = log_probabilities.argmax(dim=-1) == targets
        ones = torch.ones_like(nats)
        return positions.sums(torch.stack([nats, ones, 0 * ones, correct.double()], dim=-1))

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


def hidden_positions(batch: RowBatch) -> PredictedPositions:
    """Returns the positions of the symbols of a batch that are predicted."""
    return PredictedPositions.of(batch.targets != IGNORED, batch.most_targets)
