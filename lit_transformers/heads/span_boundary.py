"""The span boundary objective: hidden symbols predicted from the vectors next to their span (arXiv:1907.10529)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.batch import IGNORED, DataDescription, RowBatch, RowDescription
from lit_transformers.config import Positive
from lit_transformers.heads.head import Head, HeadConfig, HeadLoss, Reads, Representation
from lit_transformers.heads.hidden_symbols import HIDDEN, row_network
from lit_transformers.heads.predicted_positions import PredictedPositions
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.models.model import ModelConfig, Network
from lit_transformers.records.measure import Measure, minimized


class SpanBoundaryConfig(HeadConfig, kind="span_boundary"):
    """Each symbol of a hidden span is predicted once more, from the last vectors of the two symbols next to the span
    and its place in it (arXiv:1907.10529, section 3.2).

    A span is a run of symbols that are predicted, so that no span hides the symbols next to it: spans that touch are
    one, as in the authors' code.
    weight: of the mean of this loss, which the paper adds as it is. longest: places of a span that are predicted; those
    further from its beginning are not, as in the authors' code. width: of the vector of each place.
    """

    reads: ClassVar[Reads] = RowDescription

    longest: Positive = 20
    width: Positive = 200

    def build(self, model: ModelConfig, network: Network, data: DataDescription) -> SpanBoundary:
        rows = RowDescription.of(data, self.kind)
        return SpanBoundary(self, model.dim, row_network(model, network), rows)

    def measures(self, data: DataDescription) -> Mapping[str, Measure]:
        return minimized("nats", per=HIDDEN)


class Boundaries(NamedTuple):
    """The symbols that are predicted from boundaries: their ``positions``, the position of the symbol to the ``left``
    of their span and to its ``right``, their ``place`` in the span, from 0, and the ``targets``, each (n,); 0 and
    IGNORED where nothing is predicted."""

    positions: PredictedPositions
    left: Int[Tensor, " n"]
    right: Int[Tensor, " n"]
    place: Int[Tensor, " n"]
    targets: Int[Tensor, " n"]


def boundaries(targets: Int[Tensor, "b t"], longest: int, most: int | None = None) -> Boundaries:
    """Returns the symbols of spans up to the place ``longest``, row by row. A span at the edge of a row has no symbol
    on one side, and is left out. most: ``RowBatch.most_targets``."""
    length = targets.size(1)
    position = torch.arange(length, device=targets.device)
    is_hidden = targets != IGNORED
    left = torch.where(is_hidden, -1, position).cummax(dim=1).values
    right = torch.where(is_hidden, length, position).flip(1).cummin(dim=1).values.flip(1)
    place = position - left - 1
    scored = is_hidden & (place < longest) & (left >= 0) & (right < length)
    positions = PredictedPositions.of(scored, most)
    left, right, place = (positions.of_rows(part.masked_fill(~scored, 0)) for part in (left, right, place))
    return Boundaries(positions, left, right, place, positions.of_rows(targets.masked_fill(~scored, IGNORED)))


class SpanBoundary(Head):
    """Two maps with GELU and layer norm of the vectors on both sides and that of the place (equation 1), and the
    softmax of the network."""

    def __init__(self, config: SpanBoundaryConfig, dim: int, network: RowNetwork, rows: RowDescription) -> None:
        super().__init__(config)
        self.longest, self.predictions, self.softmax_flops = config.longest, rows.predictions, network.tokens.flops
        with torch.no_grad():
            softmax = network.predict(torch.zeros(1, dim)).size(-1)
        self.places = nn.Embedding(config.longest, config.width)
        nn.init.normal_(self.places.weight, std=0.02)
        self.map = nn.Sequential(
            *(nn.Linear(2 * dim + config.width, dim), nn.GELU(), nn.LayerNorm(dim)),
            *(nn.Linear(dim, softmax), nn.GELU(), nn.LayerNorm(softmax)),
        )

    def vectors(self, hidden: Float[Tensor, "b t d"], spans: Boundaries) -> Float[Tensor, "n e"]:
        """Maps the vectors of rows to those from which the symbols of spans are predicted."""
        row = spans.positions.row
        sides = (hidden[row, spans.left], hidden[row, spans.right])
        vectors: Tensor = self.map(torch.cat([*sides, self.places(spans.place).to(hidden.dtype)], dim=-1))
        return vectors

    def nats(self, reading: Representation, spans: Boundaries) -> Float[Tensor, " n"]:
        """Returns -log p of each symbol of the spans, 0 where nothing is predicted."""
        nats: Tensor = reading.network.tokens.nll(self.vectors(reading.hidden, spans), spans.targets)
        return nats

    def spans(self, batch: RowBatch) -> Boundaries:
        """Returns the symbols of a batch that are predicted."""
        return boundaries(batch.targets, self.longest, batch.most_targets)

    def targets(self, batch: RowBatch) -> Int[Tensor, ""]:
        return self.spans(batch).positions.scored.sum()

    def loss(self, reading: Representation, batch: RowBatch) -> HeadLoss:
        return HeadLoss.of(self.nats(reading, self.spans(batch)))

    def sums(self, reading: Representation, batch: RowBatch) -> Float[Tensor, "b 2"]:
        spans = self.spans(batch)
        nats = self.nats(reading, spans).double()
        return spans.positions.sums(torch.stack([nats, torch.ones_like(nats)], dim=-1))

    def flops(self, length: int) -> float:
        maps = sum(parameter.numel() for parameter in self.map.parameters() if parameter.dim() > 1)
        return 2 * self.predictions * maps + self.softmax_flops(self.predictions)
