"""The targets of an update that takes several batches, counted before the first of them is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from lit_transformers.batch import PairBatch, RetrievalBatch
from lit_transformers.host import reads_at_once
from lit_transformers.training.ranks import mean_over_ranks


class Update(NamedTuple):
    """counts: the targets of each head, by name; tokens and source_tokens: of rows and of sources; of all batches, as
    means over ranks of the counts of each rank. factor: by which losses are multiplied, for a trainer that divides them
    by it."""

    counts: Mapping[str, Tensor]
    tokens: Tensor
    source_tokens: Tensor
    factor: int

    @classmethod
    def of(
        cls, targets: Mapping[str, Callable[[Any], Tensor]], batches: Sequence[Any], factor: int, device: torch.device
    ) -> Self:
        """Counts the batches of an update, wherever they are; the counts are on ``device``. All ranks must call it.

        targets: functions that count the targets of a head in a batch, by the name of the head.
        """
        counted = [*targets.values(), real_tokens, source_tokens]
        sums = [total([count(batch) for batch in batches], device) for count in counted]
        *counts, tokens, of_sources = mean_over_ranks(torch.stack(sums))
        return cls(dict(zip(targets, counts, strict=True)), tokens, of_sources, factor)


def total(counts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Returns the sum of counts on a device, which is not waited for: those on the CPU are given to it as numbers."""
    numbers = sum(int(count) for count in counts if reads_at_once(count))
    others = [count.double() for count in counts if not reads_at_once(count)]
    return torch.full((), float(numbers), dtype=torch.float64, device=device) + sum(others)


def real_tokens(batch: Any) -> Tensor:
    """Returns the number of tokens of a batch that are not padding; of pairs, those of targets."""
    count: Tensor = batch.padding_mask.sum(dtype=torch.float64)
    return count


def source_tokens(batch: Any) -> Tensor:
    """Returns the number of tokens of sources, or of questions, that are not padding; 0 of other batches."""
    if not isinstance(batch, PairBatch | RetrievalBatch):
        return batch.padding_mask.new_zeros((), dtype=torch.float64)
    return batch.source_padding_mask.sum(dtype=torch.float64)
