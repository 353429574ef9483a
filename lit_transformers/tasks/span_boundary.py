"""The span boundary objective: hidden symbols predicted from what stands beside their span (arXiv:1907.10529)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.batch import IGNORED
from lit_transformers.config import Config, Positive, PositiveFloat


class SpanBoundaryConfig(Config):
    """Each symbol of a hidden span is predicted once more, from the last vectors of the two symbols beside the span and
    its place in it (arXiv:1907.10529, section 3.2).

    A span is a run of symbols that are predicted, so that what stands beside it is hidden by none: spans that touch
    are one, as in the authors' code.
    weight: of the mean of this loss; the paper adds it as it is. longest: places of a span that are predicted; those
    further from its beginning are not, as in the authors' code. width: of the vector of each place.
    """

    weight: PositiveFloat = 1.0
    longest: Positive = 20
    width: Positive = 200


class Boundaries(NamedTuple):
    """The n symbols that are predicted from boundaries: their ``row``, the position of the symbol to the ``left`` of
    their span and to its ``right``, their ``place`` in the span, from 0, and the ``targets``, each (n,)."""

    row: Int[Tensor, " n"]
    left: Int[Tensor, " n"]
    right: Int[Tensor, " n"]
    place: Int[Tensor, " n"]
    targets: Int[Tensor, " n"]


def boundaries(targets: Int[Tensor, "b t"], longest: int) -> Boundaries:
    """Returns the symbols of spans up to the place ``longest``, row by row. A span at the edge of a row has no symbol
    on one side, and is left out."""
    length = targets.size(1)
    position = torch.arange(length, device=targets.device)
    is_hidden = targets != IGNORED
    left = torch.where(is_hidden, -1, position).cummax(dim=1).values
    right = torch.where(is_hidden, length, position).flip(1).cummin(dim=1).values.flip(1)
    place = position - left - 1
    row, where = (is_hidden & (place < longest) & (left >= 0) & (right < length)).nonzero(as_tuple=True)
    return Boundaries(row, left[row, where], right[row, where], place[row, where], targets[row, where])


class SpanBoundary(nn.Module):
    """Two maps with GELU and layer norm of the vectors on both sides and that of the place (equation 1).

    dim: the width of vectors. softmax: that of what the softmax reads.
    """

    def __init__(self, config: SpanBoundaryConfig, dim: int, softmax: int) -> None:
        super().__init__()
        self.places = nn.Embedding(config.longest, config.width)
        nn.init.normal_(self.places.weight, std=0.02)
        self.map = nn.Sequential(
            *(nn.Linear(2 * dim + config.width, dim), nn.GELU(), nn.LayerNorm(dim)),
            *(nn.Linear(dim, softmax), nn.GELU(), nn.LayerNorm(softmax)),
        )

    def forward(self, hidden: Float[Tensor, "b t d"], spans: Boundaries) -> Float[Tensor, "n e"]:
        """Maps the vectors of rows to those from which the symbols of spans are predicted."""
        beside = (hidden[spans.row, spans.left], hidden[spans.row, spans.right])
        vectors: Tensor = self.map(torch.cat([*beside, self.places(spans.place).to(hidden.dtype)], dim=-1))
        return vectors

    def flops(self, count: int) -> int:
        """Forward FLOPs for so many symbols."""
        return 2 * count * sum(p.numel() for p in self.map.parameters() if p.dim() > 1)
