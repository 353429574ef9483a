"""Angular locality-sensitive hashing (Andoni et al. 2015, arXiv:1509.02897; Kitaev et al. 2020, arXiv:2001.04451,
section 2): vectors of similar direction get the same bucket. No gradient flows through it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.host import HOST, sent

MOST = 128
"""The largest number of buckets of one digit, where the config gives no number."""


def digits(length: int, chunk_length: int) -> tuple[int, ...]:
    """Returns twice as many buckets as chunks (section 4), factorised into digits: one, or beyond 128 two, which need
    only about the square root of the products (the authors' code factorises likewise)."""
    count = 2 * -(-length // chunk_length)
    if count <= MOST:
        return (count,)
    first = 2 * round(count**0.5 / 2)
    return first, 2 * -(-count // (2 * first))


def columns(counts: Sequence[int]) -> int:
    """The number of columns of a rotation for these counts of buckets: each is a bucket and its opposite."""
    return sum(count // 2 for count in counts)


def rotations(
    heads: int, channels: int, rounds: int, counts: Sequence[int], seed: int | None, device: torch.device
) -> Float[Tensor, "h k r c"]:
    """Draws normal numbers, from a separate generator if there is a seed; always in single precision."""
    shape = (heads, channels, rounds, columns(counts))
    if seed is None:
        return torch.randn(shape, device=device)
    return sent(torch.randn(shape, generator=torch.Generator().manual_seed(seed), device=HOST), device)


@torch.no_grad()
def hashed(
    q: Float[Tensor, "b h t k"],
    rotation: Float[Tensor, "h k r c"],
    counts: Sequence[int],
    padding_mask: Bool[Tensor, "b t"] | None = None,
) -> Int[Tensor, "b h r t"]:
    """Returns the bucket h(x) = argmax([xR; -xR]) of every round; with several counts, one digit for each, as in the
    authors' code.

    A count of one does not hash. Padding has its own bucket, the last.
    """
    rounds = []
    for matrix in rotation.unbind(dim=2):
        projected = q.to(rotation.dtype) @ matrix
        buckets = torch.zeros(q.shape[:-1], dtype=torch.long, device=q.device)
        bases = accumulate(counts[:-1], int.__mul__, initial=1)
        for part, base in zip(projected.split([count // 2 for count in counts], dim=-1), bases, strict=True):
            if part.size(-1):
                largest = part.abs().argmax(dim=-1, keepdim=True)
                opposite = part.gather(-1, largest) < 0
                buckets += base * (largest + opposite * part.size(-1)).squeeze(-1)
        rounds.append(buckets)
    all_buckets = torch.stack(rounds, dim=2)
    return all_buckets if padding_mask is None else all_buckets.masked_fill(~padding_mask[:, None, None], prod(counts))
