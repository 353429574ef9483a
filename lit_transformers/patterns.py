"""Which key a query may see, as a pure function of their indices, and the executors that run such patterns.

Indices count keys: query i of a block that follows ``offset`` remembered keys has index offset + i. True means "may
attend". Every query sees itself, so a row of padding stays finite.

Executors take the same arguments and agree to tolerance: ``dense`` is the oracle and builds the whole score matrix;
``blocked`` holds one block of queries at a time, forward and backward; without distances it runs fused kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lit_transformers.encodings.relative import Relative, distance_range

BLOCK = 256
"""Queries in a block. Measured on two CPU cores at length 4,096 (benchmarks/xl_layer.py): 128 to 512 differ by 5 %."""


class Band(NamedTuple):
    """Keys from ``before`` steps back to ``after`` steps ahead of the query; None for no limit."""

    before: int | None
    after: int | None

    def __call__(self, i: Int[Tensor, "*n"], j: Int[Tensor, "*n"]) -> Bool[Tensor, "*n"]:
        seen = torch.ones_like(i - j, dtype=torch.bool)
        if self.before is not None:
            seen &= i - j <= self.before
        if self.after is not None:
            seen &= j - i <= self.after
        return seen

    def reach(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """The half-open range of keys that queries ``first`` to ``last`` (inclusive) may see."""
        start = 0 if self.before is None else max(0, first - self.before)
        return start, keys if self.after is None else min(keys, last + self.after + 1)


class Inputs(NamedTuple):
    """What an executor runs on. q (b, h, t, k), k and v (b, h, s, k or v), ``seen`` (b, s) True at keys that exist."""

    q: Float[Tensor, "b h t k"]
    k: Float[Tensor, "b h s k"]
    v: Float[Tensor, "b h s v"]
    seen: Bool[Tensor, "b s"] | None
    tables: tuple[Tensor, ...] = ()


class Block(NamedTuple):
    """Queries ``first`` to ``stop`` against keys ``start`` to ``end``, half-open; first and stop count queries."""

    first: int
    stop: int
    start: int
    end: int


def blocks(pattern: Band, queries: int, keys: int, offset: int, size: int = BLOCK) -> Iterator[Block]:
    """The blocks of queries with the keys that each needs."""
    for first in range(0, queries, size):
        stop = min(first + size, queries)
        yield Block(first, stop, *pattern.reach(offset + first, offset + stop - 1, keys))


def visible(
    pattern: Band, block: Block, offset: int, seen: Bool[Tensor, "b s"] | None, device: torch.device
) -> Bool[Tensor, "#b 1 t s"]:
    """The mask of one block."""
    i = torch.arange(offset + block.first, offset + block.stop, device=device)[:, None]
    j = torch.arange(block.start, block.end, device=device)[None, :]
    mask = pattern(i, j)[None, None]
    if seen is None:
        return mask
    return (mask & seen[:, None, None, block.start : block.end]) | (i == j)


def attend(
    pattern: Band,
    inputs: Inputs,
    *,
    encoding: Relative | None = None,
    scale: float,
    dropout: float = 0.0,
    size: int = BLOCK,
) -> Float[Tensor, "b h t v"]:
    """Softmax attention over a pattern, block by block; memory grows with length times block.

    The queries are the last t of the s keys (offset s - t), or, across two sequences, unlimited by any band.
    """
    q, k, v, seen, _ = inputs
    queries, keys = q.size(-2), k.size(-2)
    offset = keys - queries
    if (
        encoding is None
        and seen is None
        and (pattern == Band(None, None) or (offset == 0 and pattern == Band(None, 0)))
    ):
        return F.scaled_dot_product_attention(q, k, v, is_causal=pattern.after == 0, scale=scale, dropout_p=dropout)
    run = list(blocks(pattern, queries, keys, offset, size))
    if len(run) == 1:
        return _attend_block(run[0], pattern, inputs, encoding, scale, dropout)
    return torch.cat([_recomputed(block, pattern, inputs, encoding, scale, dropout) for block in run], dim=-2)


def dense(pattern: Band, inputs: Inputs, *, encoding: Relative | None = None, scale: float) -> Float[Tensor, "b h t v"]:
    """The oracle: one block that holds everything."""
    queries, keys = inputs.q.size(-2), inputs.k.size(-2)
    return _attend_block(Block(0, queries, 0, keys), pattern, inputs, encoding, scale, 0.0)


def _recomputed(
    block: Block, pattern: Band, inputs: Inputs, encoding: Relative | None, scale: float, dropout: float
) -> Float[Tensor, "b h t v"]:
    """One block whose scores are computed again in the backward pass instead of being kept."""
    if not torch.is_grad_enabled() or encoding is None:
        return _attend_block(block, pattern, inputs, encoding, scale, dropout)
    return checkpoint(  # type: ignore[no-any-return]
        _attend_block,
        *(block, pattern, inputs, encoding, scale, dropout),
        use_reentrant=False,
        preserve_rng_state=dropout > 0,
    )


def _attend_block(
    block: Block, pattern: Band, inputs: Inputs, encoding: Relative | None, scale: float, dropout: float
) -> Float[Tensor, "b h t v"]:
    q = inputs.q[..., block.first : block.stop, :]
    k, v = inputs.k[..., block.start : block.end, :], inputs.v[..., block.start : block.end, :]
    mask = visible(pattern, block, inputs.k.size(-2) - inputs.q.size(-2), inputs.seen, q.device)
    if encoding is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, dropout_p=dropout)
    highest = inputs.q.size(-2) - block.stop + block.start
    width = q.size(-2) + k.size(-2)
    tables = tuple(table.narrow(-2, highest, width) for table in inputs.tables)
    logits = encoding.scores(q, k, tables, scale)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).masked_fill(~mask, float("-inf"))
    weights = F.dropout(logits.softmax(dim=-1).to(v.dtype), dropout)
    added = encoding.values(weights, tables)
    return weights @ v if added is None else weights @ v + added


def with_tables(encoding: Relative, inputs: Inputs, causal: bool) -> Inputs:
    """The inputs with what the encoding says of every distance between their queries and keys."""
    queries, keys = inputs.q.size(-2), inputs.k.size(-2)
    distances = distance_range(queries, keys, keys - queries, inputs.q.device)
    return inputs._replace(tables=encoding.tables(distances, causal))


def attend_flops(
    pattern: Band, queries: int, keys: int, width: int, encoding: Relative | None = None, size: int = BLOCK
) -> int:
    """Forward FLOPs of ``attend`` for one sequence; ``width`` is heads times the channels of a head.

    A fused kernel counts as all of its block: whether it skips masked tiles is its own affair.
    """
    whole = encoding is None and pattern.before is None and (pattern.after is None or queries == keys)
    run = [Block(0, queries, 0, keys)] if whole else list(blocks(pattern, queries, keys, keys - queries, size))
    total = encoding.table_flops(queries + keys) if encoding else 0
    for first, stop, start, end in run:
        t, s = stop - first, end - start
        total += 2 * t * s * width + (encoding.block_flops(t, s) if encoding else 2 * t * s * width)
    return total
