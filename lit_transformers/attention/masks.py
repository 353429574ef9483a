"""The masks of the executors: the keys that a block hides from its queries."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.attention.patterns import Band, Pattern, QueryBlock, visible
from lit_transformers.attention.recompute import folded
from lit_transformers.named_tuples import with_fields


class Hidden(NamedTuple):
    """The hidden keys of a block, True in ``hidden``, which begins at column ``start``; columns before are visible."""

    start: int
    hidden: Bool[Tensor, "*b t s"]

    def visible(self) -> Bool[Tensor, "*b t s"]:
        """Returns the mask of all columns, True where a query attends."""
        return F.pad(~self.hidden, (self.start, 0), value=True) if self.start else ~self.hidden


def steady(pattern: Pattern, key_mask: Bool[Tensor, "b s"] | None) -> bool:
    """Whether consecutive blocks of equal shape have equal masks."""
    return key_mask is None and pattern.shift_invariant


def one_mask(key_mask: Bool[Tensor, "b s"] | None, crossed: bool) -> Bool[Tensor, "b 1 1 s"] | None:
    """Returns the key mask, broadcast over heads and queries. Within one sequence the last key is visible, because the
    mask then serves the last token alone, which sees itself."""
    if key_mask is None or crossed:
        return None if key_mask is None else key_mask[:, None, None]
    return F.pad(key_mask[:, :-1], (0, 1), value=True)[:, None, None]


def hidden_from(
    pattern: Pattern,
    block: QueryBlock,
    key_mask: Bool[Tensor, "b s"] | None,
    offset: int,
    rows: int,
    heads: int,
    device: torch.device,
) -> Hidden | None:
    """Returns the keys that a block hides, or None where it hides none. An unlimited causal band hides only a block's
    last keys. Several blocks in one that have equal masks share one mask."""
    start, far = 0, block.further
    if block.whole:
        if key_mask is None and (far is None or not block.gaps):
            return None
        pattern = Band(None, None)
    elif key_mask is None and far is None and (first := pattern.first_hidden(block, offset)) is not None:
        if first == len(block.keys):
            return None
        start = first
    if far is None and steady(pattern, key_mask):
        block = with_fields(block, times=1)
    i, near = indices(with_fields(block, further=None), offset, device, rows)
    mask = visible(pattern, i, near[..., start:], key_mask, rows, heads, block.times)
    if far is not None:
        j = listed(far)
        listed_mask = visible(pattern, i, j.clamp(min=0), key_mask, rows, heads, block.times) & (j >= 0)
        leading_shape = torch.broadcast_shapes(mask.shape[:-1], listed_mask.shape[:-1])
        mask = torch.cat([mask.expand(*leading_shape, -1), listed_mask.expand(*leading_shape, -1)], dim=-1)
    return Hidden(start, ~mask)


def indices(
    block: QueryBlock, offset: int, device: torch.device, rows: int = 1
) -> tuple[Int[Tensor, "*n t 1"], Int[Tensor, "*b s"]]:
    """Returns the indices of a block's queries and of its keys, both counted in keys. For several blocks in one, and
    ``rows`` rows of the batch, those of the queries are (b times, 1, t, 1)."""
    i = torch.arange(offset + block.first, offset + block.stop, block.step, device=device)[:, None]
    near = torch.arange(block.start, block.end, block.step, device=device)
    if block.times > 1:
        shifts = torch.arange(block.times, device=device).repeat(rows)[:, None, None, None] * block.stride
        i, near = i + shifts, near + shifts
    if block.further is None:
        return i, near
    far = listed(block.further)
    leading_shape = torch.broadcast_shapes(near.shape[:-1], far.shape[:-1])
    return i, torch.cat([near.expand(*leading_shape, -1), far.expand(*leading_shape, -1)], dim=-1)


def listed(further: Int[Tensor, "*b n"]) -> Int[Tensor, "*b n"]:
    """Returns the listed keys in a shape that broadcasts with queries: (n,), or (b times, h, 1, n)."""
    return further if further.dim() == 1 else folded(further).unsqueeze(-2)
