"""Vectors learned for each distance up to a clipping distance: the tables of Shaw et al. and of Huang et al."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.mixer import Shape


class DistanceVectors(nn.Module):
    """a_d for d = -k .. k, one table for all heads or one for each. d = i - j: query minus key.

    Shaw et al. index by j - i; only the order of the rows differs.
    """

    def __init__(self, distance: int, head_dim: int, heads: int | None) -> None:
        super().__init__()
        self.distance = distance
        self.weight = nn.Parameter(torch.empty(*([heads] if heads else []), 2 * distance + 1, head_dim))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, distances: Int[Tensor, " w"]) -> Float[Tensor, "*h w k"]:
        """Clipped first, then looked up."""
        return self.weight.index_select(-2, distances.clamp(-self.distance, self.distance) + self.distance)


def distance_vectors(
    shape: Shape, name: str, distance: int, head_dim: int, per_head: bool, share_layers: bool
) -> nn.Module:
    """A table of this layer's own, or the one that all layers share."""

    def make() -> nn.Module:
        return DistanceVectors(distance, head_dim, shape.heads if per_head else None)

    return shape.share(name, make) if share_layers else make()
