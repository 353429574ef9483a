"""Weights that share few values, found by k-means (Han et al. 2015, arXiv:1510.00149, section 3)."""

from __future__ import annotations

from typing import Annotated, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from lit_transformers.compression.compression import Compression, CompressionConfig, Matrices, matrices_of
from lit_transformers.config import Positive

__all__ = ["ShareValuesConfig", "shared_values"]


@final
class ShareValuesConfig(CompressionConfig, kind="share_values"):
    """Replaces the weights of each matrix, after training, by the nearest of 2^bits values: the centroids of k-means in
    one dimension, which begin at equal distances from the smallest weight to the largest. Zeros stay zero.

    bits: of the number of a value. rounds: the most rounds of k-means.
    """

    bits: Annotated[int, Field(ge=1, le=8)] = 4
    rounds: Positive = 50

    def build(self, task: nn.Module) -> Compression:
        return ShareValues(self, matrices_of(task, self.parameters))

    def conflict_after(self, earlier: CompressionConfig) -> str | None:
        return (
            "shared values of quantised weights keep the error of both; drop one"
            if earlier.kind in ("quantise_weights", self.kind)
            else None
        )


@final
class ShareValues(Compression):
    """Replaces matrices in place by their shared values."""

    def __init__(self, config: ShareValuesConfig, matrices: Matrices) -> None:
        self.matrices = matrices
        self.config = config

    def finish(self) -> None:
        for matrix in self.matrices.values():
            matrix.data.copy_(shared_values(matrix.detach(), self.config.bits, self.config.rounds))


def shared_values(matrix: Float[Tensor, "*s"], bits: int, rounds: int) -> Float[Tensor, "*s"]:
    """Returns a matrix of at most 2^bits different values. If a weight is zero, one of these is zero."""
    weights = matrix.flatten().double()
    kept = weights[weights != 0]
    count = 2**bits - int(len(kept) < len(weights))
    if len(kept.unique()) <= count:
        return matrix.clone()
    ordered = kept.sort().values
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    centroids = torch.linspace(float(ordered[0]), float(ordered[-1]), count, dtype=torch.float64, device=ordered.device)
    for _ in range(rounds):
        ends = torch.searchsorted(ordered, (centroids[1:] + centroids[:-1]) / 2)
        edges = torch.cat([ends.new_zeros(1), ends, ends.new_full((1,), len(ordered))])
        sizes = edges.diff()
        means = (sums[edges[1:]] - sums[edges[:-1]]) / sizes.clamp(min=1)
        means = torch.where(sizes > 0, means, centroids)
        if torch.equal(means, centroids):
            break
        centroids = means
    nearest = torch.searchsorted((centroids[1:] + centroids[:-1]) / 2, weights)
    return torch.where(weights == 0, 0.0, centroids[nearest]).to(matrix.dtype).view_as(matrix)
