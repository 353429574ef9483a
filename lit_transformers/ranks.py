"""What the processes of one run, which train together by DDP, tell each other."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed
from torch import Tensor

__all__ = ["from_all_ranks", "is_first_rank", "mean_over_ranks"]


def is_first_rank() -> bool:
    """Whether this process writes the run's files; known before ranks can speak to each other."""
    return int(os.environ.get("RANK", "0")) == 0


def together() -> bool:
    """Whether there are other ranks that listen now."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def from_all_ranks(value: Any) -> list[Any]:
    """Every rank's value, by rank, on every rank; tensors in it must lie on the CPU. All ranks must ask."""
    if not together():
        return [value]
    everyone: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, value)
    return everyone


def mean_over_ranks(value: Tensor) -> Tensor:
    """The mean of every rank's tensor, without gradient. All ranks must ask."""
    if not together():
        return value.detach()
    total = value.detach().clone()
    torch.distributed.all_reduce(total)
    return total / torch.distributed.get_world_size()
