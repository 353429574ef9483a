"""The adaptive softmax in tensors whose shapes do not depend on the symbols: the same numbers without synchronisation.

torch's own module selects the targets of each cluster. Their number is known only after a synchronisation with the
device, one for each cluster, so such a step can be neither captured as a CUDA graph nor compiled whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.batch import IGNORED
from lit_transformers.models.tokens import AdaptiveTokenEmbedding
from lit_transformers.precision import full_precision

MULTIPLE = 64
"""Capacities are rounded up to a multiple of this, because matrix products are computed in tiles."""


class FixedShapes(nn.Module):
    """Replaces the ``tokens`` module of a network and uses its weights.

    capacities: for each rare cluster, how many targets of a batch it can hold. The loss of a batch with more is NaN,
    which needs no synchronisation with the device.
    """

    def __init__(self, tokens: AdaptiveTokenEmbedding, capacities: Sequence[int]) -> None:
        super().__init__()
        self.tokens, self.capacities = tokens, tuple(capacities)

    def embed(self, symbols: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """The adaptive input vectors of the symbols. Every cluster computes vectors at all positions."""
        flat = symbols.flatten()
        vectors = self.tokens.softmax.head.weight.new_zeros(flat.size(0), self.tokens.softmax.in_features)
        for cluster, (start, end) in enumerate(pairwise(self.tokens.edges)):
            in_cluster = (flat >= start) & (flat < end)
            # Vectors of symbols outside the cluster are discarded. Their rows differ, for adding to one row serialises.
            rows = torch.where(in_cluster, flat - start, flat % (end - start))
            vectors = torch.where(in_cluster[:, None], self.tokens.of_cluster(cluster, rows).to(vectors.dtype), vectors)
        return vectors.view(*symbols.shape, -1) * self.tokens.factor

    def nll(self, hidden: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Returns -log p of each target in float32, and 0 where the target is IGNORED."""
        softmax, flat_targets = self.tokens.softmax, targets.flatten()
        vectors = full_precision(hidden.flatten(0, -2))
        column, log_probs = flat_targets.clamp(min=0), vectors.new_zeros(flat_targets.size(0))
        for cluster, (start, end) in enumerate(pairwise(self.tokens.edges[1:])):
            in_cluster, capacity = (flat_targets >= start) & (flat_targets < end), self.capacities[cluster]
            column = torch.where(in_cluster, softmax.shortlist_size + cluster, column)
            members = (
                (~in_cluster).to(torch.uint8).argsort(stable=True)[:capacity]
            )  # targets of this cluster first, then others
            scores = full_precision(softmax.tail[cluster](vectors.index_select(0, members))).log_softmax(dim=1)
            columns = (flat_targets[members] - start).clamp(0, end - start - 1)
            chosen = scores.gather(1, columns[:, None]).squeeze(1)
            log_probs = log_probs.index_add(0, members, chosen.masked_fill(~in_cluster[members], 0.0))
            log_probs = log_probs.masked_fill(in_cluster.sum() > capacity, float("nan"))
        head = full_precision(softmax.head(vectors)).log_softmax(dim=1)
        nats = -(log_probs + head.gather(1, column[:, None]).squeeze(1))
        return nats.masked_fill(flat_targets == IGNORED, 0.0).view(targets.shape)


def capacities_of(tokens: AdaptiveTokenEmbedding, batches: Int[Tensor, "batches n"]) -> list[int]:
    """For each rare cluster, a capacity that holds its targets in every one of these batches."""
    most = [int(((batches >= start) & (batches < end)).sum(dim=1).max()) for start, end in pairwise(tokens.edges[1:])]
    return [min(batches.size(1), -(-max(1, count) // MULTIPLE) * MULTIPLE) for count in most]
