"""Learned vectors for each distance up to a clipping distance, as in Shaw et al. and in Huang et al."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.mixer import Shape


class DistanceVectors(nn.Module):
    """Learned vectors a_d for d = -k .. k, in one table for all heads or in one for each head. d = i - j is the
    position of the query minus that of the key.

    Shaw et al. index by j - i; only the order of the rows differs.
    """

    def __init__(self, distance: int, head_dim: int, heads: int | None) -> None:
        super().__init__()
        self.distance = distance
        self.weight = nn.Parameter(torch.empty(*([heads] if heads else []), 2 * distance + 1, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, distances: Int[Tensor, " w"]) -> Float[Tensor, "*h w k"]:
        """Clips the distances to -k .. k and returns their vectors."""
        return self.weight.index_select(-2, distances.clamp(-self.distance, self.distance) + self.distance)


def distance_vectors(
    shape: Shape, name: str, distance: int, head_dim: int, per_head: bool, share_layers: bool
) -> nn.Module:
    """Returns a table for this layer alone, or, with ``share_layers``, the one that all layers share under ``name``."""

    def make_vectors() -> nn.Module:
        return DistanceVectors(distance, head_dim, shape.heads if per_head else None)

    return shape.share(name, make_vectors) if share_layers else make_vectors()
