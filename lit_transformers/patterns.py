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
from lit_transformers.mixer import full_precision

BLOCK = 256
"""Queries in a block. Within 10 % of the fastest of 64 to 1,024, at lengths 1,024 and 4,096 on one CPU core."""


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
    """What an executor runs on. q (b, h, t, k), k and v (b, h, s, k or v), ``seen`` (b, s) True at keys that exist.

    ``crossed``: the keys are of another sequence, so that no query has a key of its own.
    """

    q: Float[Tensor, "b h t k"]
    k: Float[Tensor, "b h s k"]
    v: Float[Tensor, "b h s v"]
    seen: Bool[Tensor, "b s"] | None
    tables: tuple[Tensor, ...] = ()
    crossed: bool = False

    @property
    def offset(self) -> int:
        """The index of the first query among the keys; beyond them all where the keys are of another sequence."""
        return self.k.size(-2) - (0 if self.crossed else self.q.size(-2))


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


def uncertain(pattern: Band, block: Block, offset: int, seen: Bool[Tensor, "b s"] | None) -> Block | None:
    """The part of a block that hides some key from some query: its last keys under a causal band, or all or none."""
    if seen is not None or pattern.before is not None:
        return block
    if pattern.after is None:
        return None
    start = max(block.start, offset + block.first + pattern.after + 1)
    return block._replace(start=start) if start < block.end else None


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
    q, k, v, seen = inputs[:4]
    queries, keys, offset = q.size(-2), k.size(-2), inputs.offset
    if (
        encoding is None
        and seen is None
        and (pattern == Band(None, None) or (offset == 0 and pattern == Band(None, 0)))
    ):
        return F.scaled_dot_product_attention(q, k, v, is_causal=pattern.after == 0, scale=scale, dropout_p=dropout)
    run = list(blocks(pattern, queries, keys, offset, size))
    if len(run) == 1:
        return _attend_block(run[0], pattern, inputs, encoding, scale, dropout)
    # The last block sees the most keys. Taken first, it leaves room that the others fit in; the other way round each
    # outgrows what the one before it left, and at length 8,192 the heap grows to twice as much.
    last_first = [_recomputed(block, pattern, inputs, encoding, scale, dropout) for block in reversed(run)]
    return torch.cat(last_first[::-1], dim=-2)


def dense(pattern: Band, inputs: Inputs, *, encoding: Relative | None = None, scale: float) -> Float[Tensor, "b h t v"]:
    """The oracle: one block that holds everything."""
    queries, keys = inputs.q.size(-2), inputs.k.size(-2)
    return _attend_block(Block(0, queries, 0, keys), pattern, inputs, encoding, scale, 0.0)


def _recomputed(
    block: Block, pattern: Band, inputs: Inputs, encoding: Relative | None, scale: float, dropout: float
) -> Float[Tensor, "b h t v"]:
    """One block whose scores and mask are computed again in the backward pass instead of being kept."""
    if not torch.is_grad_enabled():
        return _attend_block(block, pattern, inputs, encoding, scale, dropout)
    return checkpoint(
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
    offset = inputs.offset
    part = uncertain(pattern, block, offset, inputs.seen)
    if encoding is None:
        mask = None if part is None else visible(pattern, block, offset, inputs.seen, q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, dropout_p=dropout)
    highest = inputs.q.size(-2) - block.stop + block.start
    tables = tuple(
        table.narrow(-2, highest, min(q.size(-2) + k.size(-2), table.size(-2) - highest)) for table in inputs.tables
    )
    logits = full_precision(encoding.scores(q, k, tables, scale))
    if part is not None:
        hidden = ~visible(pattern, part, offset, inputs.seen, q.device)
        with torch.no_grad():  # a weight of zero passes no gradient on, so nothing is recorded
            logits[..., part.start - block.start :].masked_fill_(hidden, float("-inf"))
    weights = F.dropout(logits.softmax(dim=-1).to(v.dtype), dropout)
    added = encoding.values(weights, tables)
    return weights @ v if added is None else weights @ v + added


def with_tables(encoding: Relative, inputs: Inputs, causal: bool) -> Inputs:
    """The inputs with what the encoding says of every distance between their queries and keys.

    Where no later key is seen, none is asked for; ``by_query`` then fills hidden scores with what stands near.
    """
    queries, keys = inputs.q.size(-2), inputs.k.size(-2)
    distances = distance_range(keys - 1, 0 if causal else 1 - queries, inputs.q.device)
    return inputs._replace(tables=encoding.tables(distances, causal))


def attend_flops(
    pattern: Band, queries: int, keys: int, width: int, encoding: Relative | None = None, size: int = BLOCK
) -> int:
    """Forward FLOPs of ``attend`` for one sequence; ``width`` is heads times the channels of a head.

    A fused kernel counts as all of its block: whether it skips masked tiles is its own affair.
    """
    whole = encoding is None and pattern.before is None and (pattern.after is None or queries == keys)
    run = [Block(0, queries, 0, keys)] if whole else list(blocks(pattern, queries, keys, keys - queries, size))
    past = pattern.after == 0  # then no later distance is asked for but the one of the shift
    total = encoding.table_flops(keys + (1 if past else queries)) if encoding else 0
    for first, stop, start, end in run:
        t, s = stop - first, end - start
        scores = encoding.block_flops(t, s, s + (1 if past else t)) if encoding else 2 * t * s * width
        total += scores + 2 * t * s * width
    return total
