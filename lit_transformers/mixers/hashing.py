"""Angular locality-sensitive hashing (Andoni et al. 2015, arXiv:1509.02897; Kitaev et al. 2020, arXiv:2001.04451,
section 2): vectors that point the same way come into the same bucket. No gradient flows through it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

MOST = 128
"""Buckets of one digit, where no number is given."""


def digits(length: int, chunk_length: int) -> tuple[int, ...]:
    """Twice as many buckets as chunks (section 4), as digits of their number: one, or beyond 128 two, which cost the
    root of the products (the authors' code factorises likewise)."""
    count = 2 * -(-length // chunk_length)
    if count <= MOST:
        return (count,)
    first = 2 * round(count**0.5 / 2)
    return first, 2 * -(-count // (2 * first))


def columns(counts: Sequence[int]) -> int:
    """Columns of a rotation that hashes to so many buckets: each stands for a bucket and for its opposite."""
    return sum(count // 2 for count in counts)


def rotations(
    heads: int, channels: int, rounds: int, counts: Sequence[int], seed: int | None, device: torch.device
) -> Float[Tensor, "h k r c"]:
    """Normal numbers, by a generator of their own where there is a seed; single precision, whatever is hashed."""
    shape = (heads, channels, rounds, columns(counts))
    if seed is None:
        return torch.randn(shape, device=device)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


@torch.no_grad()
def hashed(
    q: Float[Tensor, "b h t k"],
    rotation: Float[Tensor, "h k r c"],
    counts: Sequence[int],
    keep: Bool[Tensor, "b t"] | None = None,
) -> Int[Tensor, "b h r t"]:
    """h(x) = argmax([xR; -xR]) in every round; with several counts a digit for each, as in the authors' code.

    A count of one is no hash. Padding has a bucket of its own, the last.
    """
    found = []
    for turn in rotation.unbind(dim=2):
        turned = q.to(rotation.dtype) @ turn
        buckets = torch.zeros(q.shape[:-1], dtype=torch.long, device=q.device)
        bases = accumulate(counts[:-1], int.__mul__, initial=1)
        for part, base in zip(turned.split([count // 2 for count in counts], dim=-1), bases, strict=True):
            if part.size(-1):
                largest = part.abs().argmax(dim=-1, keepdim=True)
                opposite = part.gather(-1, largest) < 0
                buckets += base * (largest + opposite * part.size(-1)).squeeze(-1)
        found.append(buckets)
    every = torch.stack(found, dim=2)
    return every if keep is None else every.masked_fill(~keep[:, None, None], prod(counts))
