"""The targets of an update that takes several batches, counted before the first of them is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from lit_transformers.heads.head import Head
from lit_transformers.training.ranks import mean_over_ranks


class Update(NamedTuple):
    """counts: the targets of each head, by name, and tokens, those of all batches; means over ranks of what each rank
    reads. factor: by which losses are multiplied, for a trainer that divides them by it."""

    counts: Mapping[str, Tensor]
    tokens: Tensor
    factor: int

    @classmethod
    def of(cls, heads: Mapping[str, Head], batches: Sequence[Any], factor: int, device: torch.device) -> Self:
        """Counts the batches of an update, wherever they are; the counts are on ``device``. All ranks must call it."""
        sums = [sum(float(head.targets(batch)) for batch in batches) for head in heads.values()]
        tokens = sum(float(real_tokens(batch)) for batch in batches)
        *counts, all_tokens = mean_over_ranks(torch.tensor([*sums, tokens], dtype=torch.float64, device=device))
        return cls(dict(zip(heads, counts, strict=True)), all_tokens, factor)


def real_tokens(batch: Any) -> Tensor:
    """Returns the number of tokens of a batch that are not padding; of pairs, those of targets."""
    count: Tensor = batch.padding_mask.sum(dtype=torch.float64)
    return count
