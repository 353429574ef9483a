"""Communication between the processes of one run, which train together by DDP."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed
from torch import Tensor

__all__ = ["from_all_ranks", "is_first_rank", "mean_over_ranks"]


def is_first_rank() -> bool:
    """Whether this process writes the run's files; known before the process group is initialised."""
    return int(os.environ.get("RANK", "0")) == 0


def together() -> bool:
    """Whether the process group is initialised, so that ranks can communicate."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def from_all_ranks(value: Any) -> list[Any]:
    """Returns every rank's value, by rank, on every rank; tensors must be on the CPU. All ranks must call this."""
    if not together():
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def mean_over_ranks(value: Tensor) -> Tensor:
    """Returns the mean of every rank's tensor, without gradient. All ranks must call this."""
    if not together():
        return value.detach()
    total = value.detach().clone()
    torch.distributed.all_reduce(total)
    return total / torch.distributed.get_world_size()
