"""The prediction of every symbol of a row from those on one side of it, by a network that reads in that direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.heads.hidden_symbols import row_network
from lit_transformers.heads.predicted_positions import PredictedPositions
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.records.measure import Measure, maximized, minimized


class OneSidedSymbolsConfig(HeadConfig, kind="one_sided_symbols"):
    """Every symbol of a row but special ones is predicted from those before it or, if ``backward``, after it.

    It reads the vectors of its task in that direction, and is a head of such a task alone (``bilm``).
    """

    reads: ClassVar[Reads] = RowDescription

    parts: ClassVar[tuple[str, ...]] = ("forward",)

    backward: bool = False

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> OneSidedSymbols:
        head = BackwardSymbols if self.backward else ForwardSymbols
        return head(self, row_network(model, network), RowDescription.of(data, self.kind))

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        side = "" if self.backward else "forward_"
        return minimized(f"{side}nats", per="symbol") | maximized(f"{side}accuracy", per="symbol")


class Represented(NamedTuple):
    """The vectors (n, e) of the text before each predicted symbol of rows, which the softmax of ``network`` reads; the
    symbols ``targets`` (n,), IGNORED where none is predicted, and their ``positions`` among (b, t - 1); in training
    also ``nats`` (n,)."""

    network: RowNetwork
    vectors: Float[Tensor, "n e"]
    targets: Int[Tensor, " n"]
    positions: PredictedPositions
    nats: Float[Tensor, " n"] | None = None


class Predicted(NamedTuple):
    """The predictions of one direction: -log p of each symbol, 0 where none is predicted, whether it was the most
    likely, both (n,), and their ``positions`` among (b, t - 1)."""

    nats: Float[Tensor, " n"]
    correct: Bool[Tensor, " n"]
    positions: PredictedPositions


class OneSidedSymbols(Head):
    """Nats of the symbols of each row in one direction, and how many of them were the most likely. It reads the part
    ``direction`` of a reading, ``Represented``."""

    direction: ClassVar[str]

    def __init__(self, config: OneSidedSymbolsConfig, network: RowNetwork, rows: RowDescription) -> None:
        super().__init__(config)
        self.special = (rows.vocabulary.boundary, rows.separator, rows.mask)
        predictions = rows.length - 1 - rows.segments
        self.row_flops = network.predict_flops(predictions) + network.tokens.flops(predictions)

    def rows(self, batch: RowBatch) -> RowBatch:
        """Returns the rows as they are read in this direction, with their original symbols, all of which but special
        ones are targets."""
        symbols = torch.where(batch.targets != IGNORED, batch.targets, batch.inputs)
        special = torch.zeros_like(batch.padding_mask)
        for number in self.special:
            special |= symbols == number
        targets = symbols.masked_fill(special | ~batch.padding_mask, IGNORED)
        return batch._replace(inputs=symbols, targets=targets, most_targets=None)

    def targets(self, batch: RowBatch) -> Int[Tensor, ""]:
        return (self.rows(batch).targets[:, 1:] != IGNORED).sum()

    def loss(self, reading: Representation, batch: RowBatch) -> HeadLoss:
        return HeadLoss.of(reading.parts[self.direction].nats)

    def predicted(self, reading: Representation) -> Predicted:
        """Returns the predictions of all symbols."""
        represented: Represented = reading.parts[self.direction]
        log_probabilities = represented.network.tokens.log_probabilities(represented.vectors)
        nats = -log_probabilities.gather(-1, represented.targets.clamp(min=0)[:, None])[:, 0]
        nats = nats.masked_fill(~represented.positions.scored, 0.0)
        return Predicted(nats, log_probabilities.argmax(dim=-1) == represented.targets, represented.positions)

    def sums(self, reading: Representation, batch: RowBatch) -> Float[Tensor, "b c"]:
        nats, correct, positions = self.predicted(reading)
        ones = torch.ones_like(nats).double()
        values = {"nats": nats.double(), "tokens": ones, "bytes": 0 * ones, "correct": correct.to(ones)}
        return positions.sums(torch.stack([values[name] for name in self.columns], dim=-1))

    def flops(self, length: int) -> float:
        return self.row_flops


class ForwardSymbols(OneSidedSymbols):
    """Symbols from those before them."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "bytes": int, "correct": int}
    direction: ClassVar[str] = "forward"

    def results(self, sums: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Returns forward_nats and forward_accuracy of symbols."""
        return {f"forward_{name}": value for name, value in super().results(sums).items()}


class BackwardSymbols(OneSidedSymbols):
    """Symbols from those after them."""

    columns: ClassVar[Mapping[str, type]] = {"nats": float, "tokens": int, "correct": int}
    direction: ClassVar[str] = "backward"

    def rows(self, batch: RowBatch) -> RowBatch:
        return in_reverse(super().rows(batch))


def in_reverse(rows: RowBatch) -> RowBatch:
    """Returns rows whose symbols stand in reverse, with their padding at the end as before."""
    position = torch.arange(rows.inputs.size(1), device=rows.inputs.device)
    length = rows.padding_mask.sum(dim=1, keepdim=True)
    place = torch.where(rows.padding_mask, length - 1 - position, position)
    inputs, targets, segments = (part.gather(1, place) for part in (rows.inputs, rows.targets, rows.segments))
    return rows._replace(inputs=inputs, targets=targets, segments=segments)
