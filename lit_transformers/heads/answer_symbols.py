"""The prediction of the symbols of answers and translations, each from those before it, by the network's softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.batch import IGNORED, DataDescription, PairBatch, PairDescription, StringBatch, StringDescription
from lit_transformers.config import Fraction
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.records.measure import Measure, maximized, minimized


class AnswerSymbolsConfig(HeadConfig, kind="answer_symbols"):
    """Every target of a row that is not IGNORED is predicted.

    label_smoothing: of the training loss, not of reported losses (arXiv:1512.00567, section 7).
    """

    reads: ClassVar[Reads] = (StringDescription, PairDescription)

    label_smoothing: Fraction = 0.0

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> AnswerSymbols:
        return AnswerSymbols(self, network)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        symbol = "target symbol" if isinstance(data, PairDescription) else "symbol"
        right = maximized("accuracy", per=symbol) | maximized("sequence_accuracy", per="example")
        return right | minimized("nats", per=symbol)


class AnswerSymbols(Head):
    """Nats of the symbols of each answer, how many of them were the most likely, and the length that the data asked
    for."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "bytes": int, "correct": int, "length": int}

    def __init__(self, config: AnswerSymbolsConfig, network: Network) -> None:
        super().__init__(config)
        self.label_smoothing, self.softmax_flops = config.label_smoothing, network.tokens.flops

    def targets(self, batch: StringBatch | PairBatch) -> Int[Tensor, ""]:
        return (batch.targets != IGNORED).sum()

    def loss(self, reading: Representation, batch: StringBatch | PairBatch) -> HeadLoss:
        loss, nats = reading.network.tokens.smoothed(reading.hidden, batch.targets, self.label_smoothing)
        return HeadLoss(loss.sum(), nats.sum())

    def sums(self, reading: Representation, batch: StringBatch | PairBatch) -> Float[Tensor, "b 5"]:
        log_probabilities = reading.network.tokens.log_probabilities(reading.hidden)
        is_scored, symbols = batch.targets != IGNORED, batch.targets.clamp(min=0)
        nats = -log_probabilities.gather(-1, symbols[..., None])[..., 0].double() * is_scored
        correct = (log_probabilities.argmax(dim=-1) == symbols) & is_scored
        tokens = is_scored.sum(1)
        columns = (nats.sum(1), tokens, torch.zeros_like(tokens), correct.sum(1), batch.requested_length)
        return torch.stack([column.double() for column in columns], dim=1)

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Returns accuracy of symbols and of whole answers, and nats per symbol; nothing where there are no symbols."""
        tokens = sum(sums["tokens"])
        if tokens == 0:
            return {}
        whole = sum(correct == count for correct, count in zip(sums["correct"], sums["tokens"], strict=True))
        return {
            "accuracy": sum(sums["correct"]) / tokens,
            "sequence_accuracy": whole / len(sums["tokens"]),
            "nats": math.fsum(sums["nats"]) / tokens,
        }

    def flops(self, length: int) -> float:
        return self.softmax_flops(length)
