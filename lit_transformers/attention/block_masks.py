"""The block masks of FlexAttention: which blocks of queries and keys a kernel reads, and which of these it masks.

They are of one row and one head unless the pattern depends on either or keys are hidden. Those of a pattern that is
static are cached. No tensor of all pairs is made: pairs are evaluated some rows of blocks at a time, and a key mask
changes blocks as a whole, for the kernel checks every pair of a block that it masks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from lit_transformers.attention.patterns import TILE, Outline, Pattern, Tiling

MASKS = 16
"""How many outlines, and masks, of static patterns are kept: the latest ones."""
PAIRS = 2**24
"""How many pairs of queries and keys are evaluated at once."""


def block_mask(
    pattern: Pattern, tiling: Tiling, key_mask: Bool[Tensor, "b s"] | None, rows: int, padded_rows: int, heads: int
) -> BlockMask:
    """Returns the mask of a pattern, which extends to the padded rows and positions; the first ``rows`` exist."""
    is_traced = torch.compiler.is_compiling()
    if pattern.static and key_mask is None:
        return static_mask(pattern, tiling) if is_traced else cached_mask(pattern, tiling)
    outline = outline_of(pattern, tiling, static_outline if is_traced else cached_outline, rows, heads)
    if key_mask is not None:
        key_mask = F.pad(key_mask, (0, tiling.padded_keys - tiling.keys, 0, padded_rows - rows))
        outline = with_keys(outline, tiling, key_mask)
    if outline.seen.size(0) > 1:
        is_row = torch.arange(padded_rows, device=tiling.device)[:, None, None, None] < rows
        outline = Outline(*(extended_rows(part, padded_rows) & is_row for part in outline))
    return as_block_mask(outline, mask_mod(pattern, tiling, key_mask), tiling)


def static_mask(pattern: Pattern, tiling: Tiling) -> BlockMask:
    """Returns the mask of a static pattern without a key mask."""
    return as_block_mask(static_outline(pattern, tiling), mask_mod(pattern, tiling, None), tiling)


def static_outline(pattern: Pattern, tiling: Tiling) -> Outline:
    """Returns the blocks of a static pattern (1, 1, m, n)."""
    return outline_of(pattern, tiling, static_outline, 1, 1)


@lru_cache(maxsize=MASKS)
def cached_mask(pattern: Pattern, tiling: Tiling) -> BlockMask:
    """Returns the cached mask of ``static_mask``. It is made outside inference mode, since training could not use it
    otherwise."""
    with torch.inference_mode(False):
        return static_mask(pattern, tiling)


@lru_cache(maxsize=MASKS)
def cached_outline(pattern: Pattern, tiling: Tiling) -> Outline:
    """Returns the cached outline of ``static_outline``."""
    with torch.inference_mode(False):
        return static_outline(pattern, tiling)


def outline_of(
    pattern: Pattern, tiling: Tiling, static: Callable[[Pattern, Tiling], Outline], rows: int, heads: int
) -> Outline:
    """Returns the blocks of a pattern in which a query sees a key, of those that exist, and those of them in which each
    query sees all; of the rows that exist, or of all. ``static`` returns those of a static pattern."""
    if pattern.static and static is not static_outline:
        return static(pattern, tiling)
    outline = pattern.outline(tiling, lambda inner: static(inner, tiling))
    if outline is None:
        return evaluated(pattern, tiling, rows if pattern.of_rows else 1, heads if pattern.of_heads else 1)
    i, j = tiling.query_tiles() - tiling.offset, tiling.key_tiles()
    seen = outline.seen & (i < tiling.queries) & (j < tiling.keys)
    return Outline(seen, outline.whole & seen & (j + TILE <= tiling.keys))


def evaluated(pattern: Pattern, tiling: Tiling, rows: int, heads: int) -> Outline:
    """Evaluates pairs of queries and keys, of each run of ``pattern.grain`` positions one, and returns their blocks."""
    device, size = tiling.device, tiling.padded_queries
    steps = torch.arange(0, TILE - 1 + pattern.grain, pattern.grain, device=device).clamp(max=TILE - 1)
    b, h = torch.arange(rows, device=device)[:, None, None, None], torch.arange(heads, device=device)[:, None, None]
    j = (tiling.key_tiles()[:, None] + steps).flatten()
    if not torch.compiler.is_compiling():  # where one kernel evaluates all pairs and stores their blocks alone
        size = TILE * max(1, PAIRS // (rows * heads * len(steps) * len(j)))
    parts = []
    for first in range(0, tiling.padded_queries, size):
        stop = min(first + size, tiling.padded_queries)
        i = (torch.arange(first, stop, TILE, device=device)[:, None] + steps).flatten()[:, None]
        allowed, is_query = pattern.sees(b, h, i + tiling.offset, j) & (j < tiling.keys), i < tiling.queries
        seen, whole = (
            part.expand(rows, heads, -1, -1).unflatten(3, (-1, len(steps)))
            for part in (allowed & is_query, allowed | ~is_query & (j < tiling.keys))
        )
        seen, whole = seen.any(-1), whole.all(-1)
        parts.append((seen.unflatten(2, (-1, len(steps))).any(3), whole.unflatten(2, (-1, len(steps))).all(3)))
    seen, whole = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
    return Outline(seen, whole & seen)


def with_keys(outline: Outline, tiling: Tiling, key_mask: Bool[Tensor, "b s"]) -> Outline:
    """Returns the blocks that hold a visible key, or a query with its own key; whole are those with visible keys alone.

    key_mask (b, s) is of the padded rows and keys.
    """
    tiles = key_mask.unflatten(1, (-1, TILE))[:, None, None]
    holds_itself = (tiling.query_tiles() - tiling.key_tiles()).abs() < TILE
    seen, whole = (extended_rows(part, key_mask.size(0)) for part in outline)
    return Outline(seen & (tiles.any(-1) | holds_itself), whole & tiles.all(-1))


def extended_rows(blocks: Bool[Tensor, "#b h m n"], rows: int) -> Bool[Tensor, "#b h m n"]:
    """Returns blocks that are of each row for more rows; those that are of all are returned as they are."""
    return blocks if blocks.size(0) == 1 else F.pad(blocks, (0, 0, 0, 0, 0, 0, 0, rows - blocks.size(0)))


def mask_mod(
    pattern: Pattern, tiling: Tiling, key_mask: Bool[Tensor, "b s"] | None
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Returns the mask of pairs. Numbers that differ from call to call are tensors, not constants of a kernel."""
    offset, keys = (
        torch.full((), number, dtype=torch.int32, device=tiling.device) for number in (tiling.offset, tiling.keys)
    )
    has_offset, has_padding = tiling.offset > 0, key_mask is None and tiling.shows_padding(pattern)

    def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        i = i + offset if has_offset else i
        allowed = pattern.sees(b, h, i, j)
        if has_padding:
            allowed = allowed & (j < keys)
        return allowed if key_mask is None else allowed & (key_mask[b, j] | (i == j))

    return mask


def as_block_mask(
    outline: Outline, mask: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], tiling: Tiling
) -> BlockMask:
    """Returns blocks and the mask of pairs in the form of FlexAttention."""
    return BlockMask.from_kv_blocks(
        *listed_blocks(outline.seen & ~outline.whole),
        *listed_blocks(outline.whole),
        BLOCK_SIZE=TILE,
        mask_mod=mask,
        seq_lengths=(tiling.padded_queries, tiling.padded_keys),
    )


def listed_blocks(blocks: Bool[Tensor, "b h m n"]) -> tuple[Int[Tensor, "b h m"], Int[Tensor, "b h m n"]]:
    """Returns how many blocks of keys are marked in each row of blocks, and their indices, before those of others."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.int()
