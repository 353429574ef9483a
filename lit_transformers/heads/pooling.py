"""Pools several vectors into one: the tokens of a row, or the pieces of a text."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.batch import row_lengths
from lit_transformers.precision import full_precision

__all__ = ["FixedPooling", "PiecePooling", "Pooled", "Pooling", "cut_rows", "joined_rows", "pooled"]

FixedPooling = Literal["first", "mean", "last", "max"]
"""The poolings without parameters."""
Pooling = FixedPooling | Literal["attention"]
PiecePooling = Literal["mean", "max", "attention"]


class Pooled(nn.Module):
    """Pools the vectors of each row into one.

    attention: sum_i softmax_i(q . h_i / sqrt(d)) h_i with a learned query q (arXiv:1703.03130, section 2.1, with one
    hop and no hidden layer). q starts at 0, where attention equals the mean.
    """

    def __init__(self, pooling: Pooling, dim: int) -> None:
        super().__init__()
        self.pooling: Pooling = pooling
        self.dim = dim
        self.query = nn.Parameter(torch.zeros(dim)) if pooling == "attention" else None

    def forward(self, hidden: Float[Tensor, "b t d"], padding_mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b d"]:
        """Returns one vector (b, d) for each row. Mean, max and attention return zeros for a row of padding alone.
        ``padding_mask`` is False at padding."""
        if self.pooling != "attention":
            return pooled(hidden, padding_mask, self.pooling)
        assert self.query is not None
        scores = full_precision(hidden @ self.query.to(hidden.dtype)) / self.dim**0.5
        weights = scores.masked_fill(~padding_mask, torch.finfo(scores.dtype).min).softmax(dim=1)
        weights = weights.masked_fill(~padding_mask, 0.0).to(hidden.dtype)
        return (weights[:, None] @ hidden.masked_fill(~padding_mask[..., None], 0.0))[:, 0]

    def flops(self, count: int) -> int:
        """Returns the forward FLOPs for a row of ``count`` vectors."""
        return 0 if self.query is None else 4 * count * self.dim


def pooled(
    hidden: Float[Tensor, "b t d"], padding_mask: Bool[Tensor, "b t"], pooling: FixedPooling
) -> Float[Tensor, "b d"]:
    """Returns one vector (b, d) for each row, by a pooling without parameters."""
    match pooling:
        case "first":
            return hidden[:, 0]
        case "last":
            last = (row_lengths(padding_mask) - 1).clamp(min=0)
            return hidden[torch.arange(len(hidden), device=hidden.device), last]
        case "mean":
            total = hidden.masked_fill(~padding_mask[..., None], 0.0).sum(dim=1)
            return total / padding_mask.sum(dim=1, keepdim=True).clamp(min=1)
        case "max":
            largest = hidden.masked_fill(~padding_mask[..., None], float("-inf")).amax(dim=1)
            return largest.masked_fill(~padding_mask.any(dim=1, keepdim=True), 0.0)


def cut_rows(rows: Shaped[Tensor, "b t *d"], length: int) -> Shaped[Tensor, "p s *d"]:
    """Cuts each row into pieces of ``length`` tokens, which become the rows of a new batch. Zeros, which are padding,
    fill the last piece. Rows of at most ``length`` tokens stay whole."""
    width = rows.size(1)
    if width <= length:
        return rows
    fill = (0, 0) * (rows.dim() - 2) + (0, -width % length)
    return F.pad(rows, fill).unflatten(1, (-1, length)).flatten(0, 1)


def joined_rows(pieces: Shaped[Tensor, "p s *d"], rows: int) -> Shaped[Tensor, "b t *d"]:
    """Joins the pieces of ``cut_rows`` into ``rows`` rows."""
    return pieces.unflatten(0, (rows, -1)).flatten(1, 2)
