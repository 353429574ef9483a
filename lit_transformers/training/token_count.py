"""How many tokens training has read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_transformers.batch import tokens_read
from lit_transformers.training.ranks import mean_over_ranks

__all__ = ["TokenCount"]


class TokenCount:
    """The tokens of all batches that all ranks have read. They are counted on the device, which ``total`` waits for."""

    def __init__(self) -> None:
        self._total = 0
        self._unread: Tensor | None = None

    def add(self, batch: Any) -> None:
        """Counts a batch of this rank."""
        count = tokens_read(batch)
        self._unread = count if self._unread is None else self._unread + count

    def total(self) -> int:
        """Returns the number of tokens that all ranks have read. All ranks must call it."""
        if self._unread is not None:
            ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
            self._total += round(float(mean_over_ranks(self._unread)) * ranks)
            self._unread = None
        return self._total

    def resume(self, total: int) -> None:
        """Counts on from the total of a checkpoint."""
        self._total, self._unread = total, None
