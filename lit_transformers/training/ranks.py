"""Communication between the processes of one run, which train together by DDP."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed
from torch import Tensor

__all__ = ["from_all_ranks", "is_first_rank", "joined_over_ranks", "mean_over_ranks", "most_over_ranks", "node_count"]


def is_first_rank() -> bool:
    """Whether this process writes the run's files; known before the process group is initialised."""
    return int(os.environ.get("RANK", "0")) == 0


def node_count() -> int:
    """Returns on how many machines torchrun has started the ranks of this run, on each equally many."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))


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


def most_over_ranks(count: int, device: torch.device) -> int:
    """Returns the largest of every rank's number. All ranks must call this."""
    if not together():
        return count
    most = torch.tensor(count, device=device)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    return int(most)


class _Joined(torch.autograd.Function):
    """The rows of all ranks. Every rank's loss depends on every rank's rows, so that the gradient of one's own is the
    sum over ranks of theirs."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.first, ctx.count = torch.distributed.get_rank() * len(rows), len(rows)
        parts = [torch.empty_like(rows) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone()
        torch.distributed.all_reduce(total)
        return total[ctx.first : ctx.first + ctx.count]


def joined_over_ranks(rows: Tensor) -> tuple[Tensor, int]:
    """Returns the rows of every rank, by rank, with gradient, and the number of the first of one's own. All ranks must
    call this, with as many rows each."""
    if not together():
        return rows, 0
    joined: Tensor = _Joined.apply(rows)  # type: ignore[no-untyped-call]
    return joined, torch.distributed.get_rank() * len(rows)
