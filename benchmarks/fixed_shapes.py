"""The adaptive softmax in tensors whose shapes do not depend on the symbols: the same numbers, without a wait.

torch's own picks the targets of each cluster, and how many there are is known when the device has been waited for, once
for each cluster. Such a step can be neither captured as a CUDA graph nor compiled whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.batch import IGNORED
from lit_transformers.mixer import full_precision
from lit_transformers.models.tokens import AdaptiveTokens

MULTIPLE = 64
"""Capacities are rounded up to a multiple of it, for matrix products are made of tiles."""


class FixedShapes(nn.Module):
    """Takes the place of ``tokens`` in a network, with its weights.

    capacities: of each rare cluster, how many targets of a batch can be of it. A batch that holds more has no loss but
    NaN, which is found without a wait for the device.
    """

    def __init__(self, tokens: AdaptiveTokens, capacities: Sequence[int]) -> None:
        super().__init__()
        self.tokens, self.capacities = tokens, tuple(capacities)

    def embed(self, symbols: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """What the adaptive input makes of symbols: every cluster is asked for every one of them."""
        flat = symbols.flatten()
        vectors = self.tokens.softmax.head.weight.new_zeros(flat.size(0), self.tokens.softmax.in_features)
        for cluster, (start, end) in enumerate(pairwise(self.tokens.edges)):
            here = (flat >= start) & (flat < end)
            # What is read elsewhere is thrown away. Were it one row for all, they would queue to add to its gradient.
            rows = torch.where(here, flat - start, flat % (end - start))
            vectors = torch.where(here[:, None], self.tokens.of_cluster(cluster, rows).to(vectors.dtype), vectors)
        return vectors.view(*symbols.shape, -1) * self.tokens.factor

    def nats(self, hidden: Float[Tensor, "*n d"], targets: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """-log p of each target, in float32; 0 where it is IGNORED."""
        softmax, wanted = self.tokens.softmax, targets.flatten()
        vectors = full_precision(hidden.flatten(0, -2))
        column, found = wanted.clamp(min=0), vectors.new_zeros(wanted.size(0))
        for cluster, (start, end) in enumerate(pairwise(self.tokens.edges[1:])):
            here, capacity = (wanted >= start) & (wanted < end), self.capacities[cluster]
            column = torch.where(here, softmax.shortlist_size + cluster, column)
            members = (~here).to(torch.uint8).argsort(stable=True)[:capacity]  # its targets first, then others
            scores = full_precision(softmax.tail[cluster](vectors.index_select(0, members))).log_softmax(dim=1)
            places = (wanted[members] - start).clamp(0, end - start - 1)
            picked = scores.gather(1, places[:, None]).squeeze(1)
            found = found.index_add(0, members, picked.masked_fill(~here[members], 0.0))
            found = found.masked_fill(here.sum() > capacity, float("nan"))
        head = full_precision(softmax.head(vectors)).log_softmax(dim=1)
        found = -(found + head.gather(1, column[:, None]).squeeze(1))
        return found.masked_fill(wanted == IGNORED, 0.0).view(targets.shape)


def capacities_of(tokens: AdaptiveTokens, batches: Int[Tensor, "batches n"]) -> list[int]:
    """Room for the targets of each rare cluster in every one of these batches."""
    most = [int(((batches >= start) & (batches < end)).sum(dim=1).max()) for start, end in pairwise(tokens.edges[1:])]
    return [min(batches.size(1), -(-max(1, count) // MULTIPLE) * MULTIPLE) for count in most]
