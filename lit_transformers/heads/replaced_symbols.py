"""The predictions of a discriminator for rows with draws in place of hidden symbols (arXiv:2003.10555), and the
predictions of the generator that the draws are from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.heads.hidden_symbols import (
    HIDDEN,
    HiddenSymbols,
    HiddenSymbolsConfig,
    hidden_positions,
    row_network,
)
from lit_transformers.heads.predicted_positions import PredictedPositions
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.precision import full_precision
from lit_transformers.records.measure import Measure, maximized, minimized

Predicts = Literal["replaced", "replaced_at_masks", "symbols", "symbols_at_masks"]


class DrawnSymbolsConfig(HiddenSymbolsConfig, kind="drawn_symbols"):
    """Hidden symbols are predicted by the generator of a task (``replaced_tokens``), whose reading has them as the part
    "generator", ``Predictions``. The task counts their cost."""

    parts: ClassVar[tuple[str, ...]] = ("generator",)

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> DrawnSymbols:
        return DrawnSymbols(self, row_network(model, network), RowDescription.of(data, self.kind))

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return minimized("nats", per=HIDDEN) | maximized("accuracy", per=HIDDEN)


class ReplacedSymbolsConfig(HeadConfig, kind="replaced_symbols"):
    """predicts: whether each symbol was replaced (ELECTRA); the same at positions that were hidden alone ("ELECTRA
    15%"); the original symbol at these ("Replace MLM"); or that of all positions, from a softmax that is mixed with a
    copy of the symbol that is read ("All-Tokens MLM"; arXiv:2003.10555, section 3.4).

    It reads the parts "drawn" (b, t), the symbols of the rows that the network has read, and "original" (b, t).
    """

    reads: ClassVar[Reads] = RowDescription

    parts: ClassVar[tuple[str, ...]] = ("drawn", "original")

    predicts: Predicts = "replaced"

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> ReplacedSymbols:
        rows = RowDescription.of(data, self.kind)
        return ReplacedSymbols(self, model.dim, row_network(model, network), rows)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        symbol = HIDDEN if self.predicts.endswith("at_masks") else "symbol"
        predicted = f"detected {symbol}" if self.predicts.startswith("replaced") else symbol
        own = minimized("discriminator_nats", per=predicted) | maximized("discriminator_accuracy", per=predicted)
        return own | maximized("noticed", per=f"replaced {HIDDEN}")


class Predictions(NamedTuple):
    """The predictions of a network for a batch, all (b, t): the nats where ``scored`` is True, else 0, and whether the
    most likely prediction is right."""

    nats: Float[Tensor, "b t"]
    scored: Bool[Tensor, "b t"]
    correct: Bool[Tensor, "b t"]

    @classmethod
    def at(cls, positions: PredictedPositions, nats: Float[Tensor, " n"], correct: Bool[Tensor, " n"]) -> Predictions:
        """Returns predictions at positions."""
        return cls(*(positions.in_rows(column) for column in (nats, positions.scored, correct)))

    @classmethod
    def of_symbols(
        cls, positions: PredictedPositions, log_probabilities: Float[Tensor, "n v"], symbols: Int[Tensor, " n"]
    ) -> Predictions:
        """Returns predictions of the symbols at positions."""
        nats = -log_probabilities.gather(-1, symbols.clamp(min=0)[:, None])[:, 0]
        return cls.at(positions, nats, log_probabilities.argmax(dim=-1) == symbols)


class DrawnSymbols(HiddenSymbols):
    """Nats of the hidden symbols of each row by the generator, and how many of them it finds most likely."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "correct": int}

    def loss(self, reading: Representation, batch: RowBatch) -> HeadLoss:
        return HeadLoss.of(reading.parts["generator"].nats)

    def sums(self, reading: Representation, batch: RowBatch) -> Float[Tensor, "b 3"]:
        return torch.stack([column.double().sum(dim=1) for column in reading.parts["generator"]], dim=1)

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Returns nats and accuracy of hidden symbols; nothing where there are none."""
        return Head.results(self, sums)

    def flops(self, length: int) -> float:
        return 0


class ReplacedSymbols(Head):
    """Nats of the predictions in each row, how many of them were right, how many symbols were replaced, and how many of
    these were noticed."""

    columns: ClassVar[Mapping[str, type]] = {
        "nats": float,
        "tokens": int,
        "bytes": int,
        "correct": int,
        "replaced": int,
        "noticed": int,
    }

    def __init__(self, config: ReplacedSymbolsConfig, dim: int, network: RowNetwork, rows: RowDescription) -> None:
        super().__init__(config)
        self.predicts = config.predicts
        self.map = None if config.predicts == "symbols_at_masks" else detection_map(dim)
        self.scored = rows.predictions if config.predicts.endswith("at_masks") else rows.length
        predictions = 0 if config.predicts.startswith("replaced") else self.scored
        self.softmax_flops = network.predict_flops(predictions) + network.tokens.flops(predictions)

    def at(self, batch: RowBatch) -> PredictedPositions:
        """Returns the positions of which something is predicted."""
        return (
            hidden_positions(batch) if self.predicts.endswith("at_masks") else PredictedPositions.of(batch.padding_mask)
        )

    def targets(self, batch: RowBatch) -> Int[Tensor, ""]:
        return (batch.targets != IGNORED if self.predicts.endswith("at_masks") else batch.padding_mask).sum()

    def predictions(self, reading: Representation, positions: PredictedPositions) -> Predictions:
        """Returns the predictions at positions of the rows that the network has read."""
        drawn, original = reading.parts["drawn"], positions.of_rows(reading.parts["original"])
        drawn, vectors = positions.of_rows(drawn), positions.of_rows(reading.hidden)
        if not self.predicts.startswith("replaced"):
            log_probabilities = self.log_probabilities(reading.network, vectors, drawn)
            return Predictions.of_symbols(positions, log_probabilities, original)
        logits, targets = self.detection(vectors), drawn != original
        nats = F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
        return Predictions.at(positions, nats, (logits > 0) == targets)

    def detection(self, hidden: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Returns the logit that each symbol was replaced, or of "All-Tokens MLM", that it is copied."""
        assert self.map is not None
        return full_precision(self.map(hidden)).squeeze(-1)

    def log_probabilities(
        self, network: RowNetwork, hidden: Float[Tensor, "n d"], symbols: Int[Tensor, " n"]
    ) -> Float[Tensor, "n v"]:
        """Returns log probabilities of the original symbols: of the softmax, or of its mixture with a copy of the
        symbols that are read, which has the weight sigmoid(logit)."""
        from_softmax = network.tokens.log_probabilities(network.predict(hidden))
        if self.map is None:
            return from_softmax
        logits = self.detection(hidden)
        copied = (F.one_hot(symbols, from_softmax.size(-1)) * logits.sigmoid()[..., None]).clamp(min=1e-30).log()
        return torch.logaddexp(from_softmax + F.logsigmoid(-logits)[..., None], copied)

    def loss(self, reading: Representation, batch: RowBatch) -> HeadLoss:
        return HeadLoss.of(self.predictions(reading, self.at(batch)).nats)

    def sums(self, reading: Representation, batch: RowBatch) -> Float[Tensor, "b 6"]:
        nats, scored, correct = self.predictions(reading, self.at(batch))
        replaced = reading.parts["drawn"] != reading.parts["original"]
        columns = (nats, scored, torch.zeros_like(scored), correct, replaced & scored, replaced & correct)
        return torch.stack([column.double().sum(dim=1) for column in columns], dim=1)

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Returns discriminator_nats and discriminator_accuracy, and "noticed" where something was replaced."""
        replaced = sum(sums["replaced"])
        results = {f"discriminator_{name}": value for name, value in super().results(sums).items()}
        return results | ({"noticed": sum(sums["noticed"]) / replaced} if replaced else {})

    def flops(self, length: int) -> float:
        maps = [] if self.map is None else [p for p in self.map.parameters() if p.dim() > 1]
        return self.softmax_flops + 2 * self.scored * sum(p.numel() for p in maps)


def detection_map(dim: int) -> nn.Sequential:
    """Builds the discriminator's output: a map with GELU and a linear map to one logit, as in the authors' code."""
    return nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 1))
