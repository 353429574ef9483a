"""What a block of queries and keys hides: the masks of the executors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.patterns import Band, Block, Local, Pattern, Without, visible
from lit_transformers.recompute import folded


class Hidden(NamedTuple):
    """What a block hides: of its columns from ``start`` on those that are True; all before are seen by every query."""

    start: int
    hidden: Bool[Tensor, "*b t s"]

    def seen(self) -> Bool[Tensor, "*b t s"]:
        """What is seen of all columns."""
        return F.pad(~self.hidden, (self.start, 0), value=True) if self.start else ~self.hidden


def steady(pattern: Pattern, seen: Bool[Tensor, "b s"] | None) -> bool:
    """Whether blocks that follow each other hide alike."""
    return seen is None and isinstance(pattern, Band | Without | Local)


def one_mask(seen: Bool[Tensor, "b s"] | None, crossed: bool) -> Bool[Tensor, "b 1 1 s"] | None:
    """What every query sees of another sequence, or the last token alone of its own, for a query sees itself."""
    if seen is None or crossed:
        return None if seen is None else seen[:, None, None]
    return F.pad(seen[:, :-1], (0, 1), value=True)[:, None, None]


def hidden_from(
    pattern: Pattern,
    block: Block,
    seen: Bool[Tensor, "b s"] | None,
    offset: int,
    rows: int,
    heads: int,
    device: torch.device,
) -> Hidden | None:
    """What a block hides, or None: under a causal band its last keys, without limits nothing. Of several blocks in one
    that hide alike there is one mask."""
    start, far = 0, block.further
    if block.whole:
        if seen is None and (far is None or not bool((far < 0).any())):
            return None
        pattern = Band(None, None)
    elif isinstance(pattern, Band) and seen is None and pattern.before is None and pattern.step == block.step:
        if pattern.after is None:
            return None
        first = offset + block.first + (pattern.after + 1) * pattern.step
        start = min(len(block.keys), max(0, -(-(first - block.start) // block.step)))
        if start == len(block.keys):
            return None
    if far is None and steady(pattern, seen):
        block = block._replace(times=1)
    i, near = indices(block._replace(further=None), offset, device, rows)
    mask = visible(pattern, i, near[..., start:], seen, rows, heads, block.times)
    if far is not None:
        j = listed(far)
        more = visible(pattern, i, j.clamp(min=0), seen, rows, heads, block.times) & (j >= 0)
        lead = torch.broadcast_shapes(mask.shape[:-1], more.shape[:-1])
        mask = torch.cat([mask.expand(*lead, -1), more.expand(*lead, -1)], dim=-1)
    return Hidden(start, ~mask)


def indices(
    block: Block, offset: int, device: torch.device, rows: int = 1
) -> tuple[Int[Tensor, "*n t 1"], Int[Tensor, "*b s"]]:
    """Of queries and of keys, as indices of keys; of several blocks in one for so many rows, (b times, 1, t, 1)."""
    i = torch.arange(offset + block.first, offset + block.stop, block.step, device=device)[:, None]
    near = torch.arange(block.start, block.end, block.step, device=device)
    if block.times > 1:
        moved = torch.arange(block.times, device=device).repeat(rows)[:, None, None, None] * block.stride
        i, near = i + moved, near + moved
    if block.further is None:
        return i, near
    far = listed(block.further)
    lead = torch.broadcast_shapes(near.shape[:-1], far.shape[:-1])
    return i, torch.cat([near.expand(*lead, -1), far.expand(*lead, -1)], dim=-1)


def listed(further: Int[Tensor, "*b n"]) -> Int[Tensor, "*b n"]:
    """Keys that are listed, as they meet queries: (n,), or (b times, h, 1, n)."""
    return further if further.dim() == 1 else folded(further).unsqueeze(-2)
