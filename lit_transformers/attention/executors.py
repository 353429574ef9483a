"""Executors of patterns: dense attention (the oracle), blocks of queries (any device), FlexAttention (CUDA).

Executors take the same arguments and agree to tolerance. ``dense`` builds the whole score matrix; ``attend`` holds one
block at a time, forward and backward, and uses fused kernels where no encoding enters the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.attention import flash
from lit_transformers.attention.flex import flex, flexible
from lit_transformers.attention.kernels import sdpa
from lit_transformers.attention.masks import Hidden, hidden_from, indices, listed, one_mask, steady
from lit_transformers.attention.patterns import BLOCK, NARROW, Band, Pattern, QueryBlock, Without, stacked, visible
from lit_transformers.attention.recompute import (
    Cut,
    Stretch,
    Tensors,
    TensorSlice,
    folded,
    in_order,
    leaves_of,
    product,
    recomputed,
)
from lit_transformers.attention.relative import Gathered, Relative, Table, at_least, distance_range
from lit_transformers.named_tuples import with_fields
from lit_transformers.precision import full_precision

ALIGNED = 16
"""Numbers of which the rows of a matrix should be multiples."""


class Inputs(NamedTuple):
    """The inputs of an executor. q (b, h, t, k), k and v (b, h, s, k or v). ``key_mask`` (b, s) is True at keys that
    exist and False at those that every query ignores.

    others: further forms of the queries that an encoding scores with; tables: the encoding's values for each distance.
    crossed: whether the keys are of another sequence, so that no query has a key at its own position.
    """

    q: Float[Tensor, "b h t k"]
    k: Float[Tensor, "b h s k"]
    v: Float[Tensor, "b h s v"]
    key_mask: Bool[Tensor, "b s"] | None
    tables: tuple[Tensor, ...] = ()
    others: tuple[Tensor, ...] = ()
    crossed: bool = False

    @property
    def offset(self) -> int:
        """The index of the first query among the keys; the number of keys where they are of another sequence."""
        return self.k.size(-2) - (0 if self.crossed else self.q.size(-2))

    def of_heads(self, heads: slice) -> Inputs:
        """Returns the inputs of some of the heads."""
        q, k, v, *others = (part[:, heads] for part in (self.q, self.k, self.v, *self.others))
        tables = tuple(table if table.dim() == 2 else table[heads] for table in self.tables)
        return with_fields(self, q=q, k=k, v=v, others=tuple(others), tables=tables)


class AttentionWeighting(NamedTuple):
    """Turns scores into weights in place of the softmax: ``apply(logits, i, j, *tensors)``.

    logits (b, h, t, s), minus infinity where hidden; i (t, 1) and j (s,), or (b, h, 1, s), the indices of queries and
    keys. ``tensors`` must list every tensor that gradients flow through, because blocks are computed twice.
    """

    apply: Callable[..., Tensor]
    tensors: tuple[Tensor, ...] = ()

    def of_heads(self, heads: slice) -> AttentionWeighting:
        """Returns the weighting of some heads; the second dimension of each tensor is the heads, or 1 for all."""
        return with_fields(self, tensors=tuple(part if part.size(1) == 1 else part[:, heads] for part in self.tensors))


Keys = list[tuple[Float[Tensor, "b h s k"], tuple[Table, ...]]]
"""The keys of a range and listed ones, each with the tables that they are scored with."""


class Scores(Protocol):
    """An encoding that scores queries and keys in place of their product; ``Relative`` documents these methods."""

    def scores(
        self,
        queries: tuple[Float[Tensor, "b h t k"], ...],
        k: Float[Tensor, "b h s k"],
        tables: tuple[Table, ...],
        scale: float,
    ) -> Float[Tensor, "b h t s"]: ...

    def values(
        self, weights: Float[Tensor, "b h t s"], tables: tuple[Table, ...]
    ) -> Float[Tensor, "b h t k"] | None: ...


class Scoring(NamedTuple):
    """How blocks turn queries and keys into outputs; ``sums``: return the log-sum-exp of each row too."""

    pattern: Pattern
    encoding: Scores | None
    scale: float
    dropout: float = 0.0
    weigh: AttentionWeighting | None = None
    sums: bool = False

    @property
    def fused(self) -> bool:
        """Whether a fused kernel computes the outputs, without visible scores."""
        return self.encoding is None and self.softmax_of_sums

    @property
    def softmax_of_sums(self) -> bool:
        """Whether outputs are values weighed by a softmax. Its inputs are the scaled products of queries and keys, plus
        the scores that an encoding may add."""
        is_added = self.encoding is None or (isinstance(self.encoding, Relative) and not self.encoding.adds_values)
        return is_added and self.weigh is None and not self.sums


def attend(
    pattern: Pattern,
    inputs: Inputs,
    *,
    encoding: Scores | None = None,
    scale: float,
    dropout: float = 0.0,
    weigh: AttentionWeighting | None = None,
    size: int = BLOCK,
) -> Float[Tensor, "b h t v"]:
    """Softmax attention over a pattern, block by block; memory grows with length times block.

    The queries are the last t of the s keys (offset s - t), or, across two sequences, unlimited by any band. A pattern
    that covers only some queries returns those, in order. The output of a query that sees nothing is zero.
    """
    q, k, v, key_mask = inputs[:4]
    is_plain = encoding is None and weigh is None
    if is_plain and fused(pattern, inputs) and (key_mask is None or not dropout):
        mask, causal = one_mask(key_mask, inputs.crossed), pattern.triangular and bool(q.size(-2) > 1)
        return sdpa(q, k, v, mask, dropout, causal, scale)
    if is_plain and not dropout and flexible(q) and pattern.complete:
        y = flex(pattern, q, k, v, key_mask, inputs.offset, scale)
        if y is not None:
            return y
    return run(Scoring(pattern, encoding, scale, dropout, weigh), inputs, size)[0]


def fused(pattern: Pattern, inputs: Inputs) -> bool:
    """Whether one fused kernel supports the pattern, with one mask for all queries where there is a mask."""
    is_last_token = inputs.q.size(-2) == 1 and not inputs.crossed
    is_supported = pattern.full or (pattern.triangular and (inputs.offset == 0 or is_last_token))
    return is_supported and (inputs.key_mask is None or is_last_token or inputs.crossed)


def attend_union(
    parts: Sequence[Band],
    inputs: Inputs,
    *,
    encoding: Scores | None = None,
    scale: float,
    dropout: float = 0.0,
    size: int = BLOCK,
) -> Float[Tensor, "b h t v"]:
    """Softmax attention over the union of several bands, each of which runs in separate blocks.

    o = sum_p exp(z_p - z) o_p with z_p the log-sum-exp of part p: no key is counted twice or fetched needlessly.
    """
    outputs, sums = [], []
    for pattern in disjoint(parts):
        y, total = run(Scoring(pattern, encoding, scale, dropout, sums=True), inputs, size)
        outputs.append(y)
        sums.append(total)
    dtype = outputs[0].dtype  # autocast would have a GPU sum in float32, and return that
    part_weights = torch.stack(sums).softmax(dim=0)
    return (part_weights.to(dtype) * torch.stack(outputs)).sum(dim=0, dtype=dtype)


def disjoint(bands: Sequence[Band]) -> Iterator[Pattern]:
    """Yields the bands, each without the keys that those before it see."""
    for number, band in enumerate(bands):
        yield Without(band, tuple(bands[:number])) if number else band


def attend_heads(
    patterns: Sequence[Pattern],
    inputs: Inputs,
    *,
    encoding: Scores | None = None,
    scale: float,
    dropout: float = 0.0,
    weigh: AttentionWeighting | None = None,
) -> Float[Tensor, "b h t v"]:
    """Runs one pattern for each head; neighbouring heads with equal patterns run together."""
    outputs, first = [], 0
    for head in range(1, len(patterns) + 1):
        if head == len(patterns) or patterns[head] != patterns[first]:
            heads = slice(first, head)
            head_inputs, head_weigh = inputs.of_heads(heads), weigh.of_heads(heads) if weigh else None
            y = attend(patterns[first], head_inputs, encoding=encoding, scale=scale, dropout=dropout, weigh=head_weigh)
            outputs.append(y)
            first = head
    return torch.cat(outputs, dim=1)


def dense(
    pattern: Pattern,
    inputs: Inputs,
    *,
    encoding: Scores | None = None,
    scale: float,
    weigh: AttentionWeighting | None = None,
) -> Float[Tensor, "b h t v"]:
    """Computes attention in one block with the whole score matrix: the oracle of the other executors."""
    scoring = Scoring(pattern, encoding, scale, weigh=weigh)
    block = QueryBlock(0, inputs.q.size(-2), 0, inputs.k.size(-2))
    leaves = leaves_of(parts_of(block, inputs), learning(inputs, weigh))
    return compute(scoring, inputs, block, leaves)[0]


def run(scoring: Scoring, inputs: Inputs, size: int) -> tuple[Tensor, ...]:
    """Computes every block of the pattern, and returns the outputs in the order of the queries."""
    if torch.compiler.is_exporting():
        return at_any_length(scoring, inputs)
    rows, heads, queries = inputs.q.shape[:3]
    blocks = plan_of(scoring.pattern, queries, inputs.k.size(-2), inputs.offset, size)
    stacked_blocks = stacked(blocks, partial(at_once, scoring, inputs))
    plan = [block.on(inputs.q.device, rows, heads) for block in stacked_blocks]

    def work(number: int, leaves: Tensors) -> tuple[Tensor, ...]:
        return compute(scoring, inputs, plan[number], leaves)

    def hidden(number: int) -> Hidden | None:
        return hidden_in(scoring.pattern, inputs, plan[number])

    cuts = [parts_of(block, inputs) for block in plan]
    places = [Stretch(block.first, block.stop, block.step, block.times, block.stride) for block in plan]
    if sum(place.length * place.times for place in places) < queries:
        places = in_order([place.length for place in places])
    tensors = learning(inputs, scoring.weigh)
    if by_flash(scoring, inputs, plan):
        flash_blocks = flash.Blocks(cuts, places, hidden, scoring.scale, partial(added_scores, scoring))
        return (flash.in_blocks(flash_blocks, tensors),)
    stored = [light(scoring, inputs, block) for block in plan]
    return recomputed(work, cuts, places, tensors, scoring.dropout > 0, stored)


def at_any_length(scoring: Scoring, inputs: Inputs) -> tuple[Tensor, ...]:
    """Computes a pattern in one block of all queries and keys, whose numbers an export leaves open. The host computes
    no other block then, and no list of keys."""
    (rows, heads, queries), device = inputs.q.shape[:3], inputs.q.device
    i = torch.arange(queries, device=device)[:, None] + inputs.offset
    j = torch.arange(inputs.k.size(-2), device=device)
    if scoring.pattern.full and inputs.key_mask is not None:
        is_empty = ~inputs.key_mask.any(dim=1, keepdim=True)  # rows of padding alone, whose softmax stays finite
        mask = (inputs.key_mask | is_empty)[:, None, None]
    else:
        mask = visible(scoring.pattern, i, j, inputs.key_mask, rows, heads)
    if scoring.fused:
        return (sdpa(inputs.q, inputs.k, inputs.v, mask, scoring.dropout, False, scoring.scale),)
    keys: Keys = [(inputs.k, inputs.tables)]
    weigh_arguments = (i, j, *scoring.weigh.tensors) if scoring.weigh else ()
    return weighed(scoring, (inputs.q, *inputs.others), keys, inputs.v, Hidden(0, ~mask), weigh_arguments)


def hidden_in(pattern: Pattern, inputs: Inputs, block: QueryBlock) -> Hidden | None:
    """Returns the keys of a block that it must not read; None where it may read all of them."""
    rows, heads = inputs.q.shape[:2]
    return hidden_from(pattern, block, inputs.key_mask, inputs.offset, rows, heads, inputs.q.device)


def by_flash(scoring: Scoring, inputs: Inputs, plan: Sequence[QueryBlock]) -> bool:
    """Whether the fused kernel of a CPU computes the blocks. A single block needs it only where an encoding adds scores
    and no gradients are recorded. The kernel does not compute blocks without keys."""
    if not scoring.softmax_of_sums or scoring.dropout:
        return False
    if not scoring.fused and full_precision(inputs.v) is not inputs.v:
        return False
    is_single = len(plan) == 1 and plan[0].times == 1
    if is_single and (scoring.fused or torch.is_grad_enabled() or torch.compiler.is_compiling()):
        return False
    return all(key_count(block) for block in plan) and flash.supports(*inputs[:3])


def key_count(block: QueryBlock) -> int:
    """Returns how many keys a block reads."""
    return len(block.keys) + (0 if block.further is None else block.further.size(-1))


def plan_of(pattern: Pattern, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
    """Yields the pattern's blocks. Those of a narrow one are shorter: a block reads more than a query sees."""
    return pattern.blocks(queries, keys, offset, min(size, NARROW) if pattern.narrow else size)


def at_once(scoring: Scoring, inputs: Inputs, block: QueryBlock) -> int:
    """Returns how many blocks of this shape may run as one: as many as have no more scores than BLOCK queries with
    4 * BLOCK keys, or any number where a fused kernel runs them under one mask or none."""
    if scoring.weigh is not None:  # a weighting may read its tensors by the index of a query
        return 1
    if any(part.size(0) < inputs.q.size(0) for part in inputs.others):  # blocks are stacked as rows, which have parts
        return 1
    if scoring.fused and block.further is None and steady(scoring.pattern, inputs.key_mask):
        return inputs.q.size(-2)
    return max(1, 4 * BLOCK * BLOCK // (len(block.queries) * key_count(block)))


def light(scoring: Scoring, inputs: Inputs, block: QueryBlock) -> bool:
    """Whether a fused kernel stores little of a block for its backward pass: one mask, no larger than the outputs, and,
    for several rows, whose overlapping blocks are copied, no more than four keys for each query."""
    if not scoring.fused or block.further is not None or not steady(scoring.pattern, inputs.key_mask):
        return False
    (rows, heads, _, _), queries, keys = inputs.q.shape, len(block.queries), len(block.keys)
    is_copied = rows > 1 and block.times > 1
    return keys <= block.times * heads * inputs.v.size(-1) and (not is_copied or keys <= 4 * queries)


def learning(inputs: Inputs, weigh: AttentionWeighting | None) -> Tensors:
    """Returns all tensors that gradients flow through, by the names that ``parts_of`` slices them by."""
    return {
        "queries": (inputs.q, *inputs.others),
        "keys": (inputs.k,),
        "values": (inputs.v,),
        "tables": inputs.tables,
        "weighing": weigh.tensors if weigh else (),
    }


def parts_of(block: QueryBlock, inputs: Inputs) -> Cut:
    """Returns the slices of tensors that a block reads, by the names that ``compute`` expects: "further" stands for the
    keys that the block lists."""
    key_rows = Stretch(block.start, block.end, block.step, block.times, block.stride)
    query_rows = Stretch(block.first, block.stop, block.step, block.times, block.stride)
    queries, weighing = TensorSlice("queries", rows=query_rows), TensorSlice("weighing")
    if fetched_whole(block, inputs):
        _, key_indices = indices(block, inputs.offset, inputs.k.device, inputs.q.size(0))
        chosen = key_indices.squeeze(-2).clamp(min=0)
        keys, values = TensorSlice("keys", chosen=chosen), TensorSlice("values", chosen=chosen)
        return {
            "queries": queries,
            "keys": keys,
            "values": values,
            "tables": TensorSlice("tables"),
            "weighing": weighing,
        }
    last, far = inputs.q.size(-2) - 1, block.further  # the tables' first row is of the last query and the first key
    first_row = last - block.queries[-1] + block.start
    width = (len(block.queries) + len(block.keys)) * block.step
    parts = {
        "queries": queries,
        "keys": TensorSlice("keys", rows=key_rows),
        "values": TensorSlice("values", rows=key_rows),
        "tables": TensorSlice("tables", rows=Stretch(first_row, first_row + width, block.step)),
    }
    if far is not None:
        chosen = (far if far.dim() == 1 else folded(far)).clamp(min=0)
        parts |= {
            "further keys": TensorSlice("keys", chosen=chosen),
            "further values": TensorSlice("values", chosen=chosen),
            "further tables": TensorSlice("tables"),
        }
        if inputs.tables:
            i, _ = indices(with_fields(block, further=None), 0, far.device, inputs.q.size(0))
            distances = (last - i + listed(far).clamp(min=0)).clamp(max=inputs.tables[0].size(-2) - 1)
            parts["further tables"] = TensorSlice("tables", listed=distances)
    return parts | {"weighing": weighing}


def fetched_whole(block: QueryBlock, inputs: Inputs) -> bool:
    """Whether the keys of the range are fetched together with the listed ones, which saves a copy. With an encoding
    they are not: it scores listed keys pair by pair."""
    return block.further is not None and block.further.dim() > 1 and not inputs.tables


def compute(scoring: Scoring, inputs: Inputs, block: QueryBlock, leaves: Tensors) -> tuple[Tensor, ...]:
    """Returns the outputs of one block, given the slices that it read, and the log-sum-exp of its rows if required."""
    queries, k, v = flash.read(leaves)
    mask = hidden_in(scoring.pattern, inputs, block)
    if scoring.fused:
        attn_mask = None if mask is None else mask.visible()
        return (sdpa(queries, k, v, attn_mask, scoring.dropout, False, scoring.scale),)
    weigh_arguments = (*indices(block, inputs.offset, v.device), *leaves["weighing"]) if scoring.weigh else ()
    return weighed(scoring, leaves["queries"], keys_of(leaves), v, mask, weigh_arguments)


def keys_of(leaves: Tensors) -> Keys:
    """Returns the keys that a block read."""
    (k,) = leaves["keys"]
    keys: Keys = [(k, tuple(at_least(table, k.size(-2) + 1) for table in leaves["tables"]))]
    if "further keys" in leaves:
        (far_k,) = leaves["further keys"]
        keys.append((far_k, tuple(Gathered(table) for table in leaves["further tables"])))
    return keys


def added_scores(scoring: Scoring, leaves: Tensors) -> Float[Tensor, "#b h t s"] | None:
    """Returns the scores that an encoding adds to the scaled products of a block, in a new tensor; None if it adds
    none."""
    if not isinstance(scoring.encoding, Relative):
        return None
    keys, queries = keys_of(leaves), leaves["queries"]
    parts = [scoring.encoding.added_scores(queries, k, tables, scoring.scale) for k, tables in keys]
    added = [part for part in parts if part is not None]
    if len(added) < 2:
        return next(iter(added), None)
    leading = torch.broadcast_shapes(*(part.shape[:-1] for part in added))
    return torch.cat([part.expand(*leading, -1) for part in added], dim=-1)


def weighed(
    scoring: Scoring,
    queries: tuple[Tensor, ...],
    keys: Keys,
    v: Float[Tensor, "b h s v"],
    mask: Hidden | None,
    weigh_arguments: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """Computes scores, weights and outputs without a fused kernel, for requirements that no fused kernel supports."""
    logits = full_precision(scores(scoring, queries, keys))
    sees_nothing = None
    if mask is not None:
        if mask.start == 0 and not scoring.pattern.sees_itself:
            sees_nothing = mask.hidden.all(dim=-1, keepdim=True)
        with torch.no_grad():  # a weight of zero passes no gradient on, so nothing is recorded
            logits[..., mask.start :].masked_fill_(mask.hidden, float("-inf"))
            if sees_nothing is not None:
                logits.masked_fill_(sees_nothing, 0.0)
    weights = logits.softmax(dim=-1) if scoring.weigh is None else scoring.weigh.apply(logits, *weigh_arguments)
    if sees_nothing is not None:
        weights = weights.masked_fill(sees_nothing, 0.0)
    weights = F.dropout(weights.to(v.dtype), scoring.dropout)
    y = product(weights, v)
    if scoring.encoding is not None:
        for part, (_, tables) in zip(weights.split([part.size(-2) for part, _ in keys], dim=-1), keys, strict=True):
            encoding_values = scoring.encoding.values(part, tables)
            y = y if encoding_values is None else y + encoding_values
    if not scoring.sums:
        return (y,)
    total = logits.logsumexp(dim=-1, keepdim=True)
    return y, total if sees_nothing is None else total.masked_fill(sees_nothing, float("-inf"))


def scores(scoring: Scoring, queries: tuple[Tensor, ...], keys: Keys) -> Float[Tensor, "b h t s"]:
    """Returns scaled logits in a new tensor, which may be changed in place."""
    if scoring.encoding is None:
        logits = [(queries[0] * scoring.scale) @ k.mT for k, _ in keys]
    else:
        logits = [scoring.encoding.scores(queries, k, tables, scoring.scale) for k, tables in keys]
    return logits[0] if len(logits) == 1 else torch.cat(logits, dim=-1)


def with_tables(
    encoding: Relative,
    inputs: Inputs,
    causal: bool,
    segments: Int[Tensor, "b t"] | None = None,
    backward: bool = False,
) -> Inputs:
    """Returns the inputs with the query forms that the encoding scores with, its tables of every distance, and its
    channels for segments. segments: the number of each query's segment; None if all are of the first. backward: whether
    queries and keys stand in reverse.

    Where no later key is seen, the tables have a row of later keys, which are hidden, and rows of zeros so that
    products have aligned rows: with s + 1 columns these take half as long again.
    """
    queries, keys = inputs.q.size(-2), inputs.k.size(-2)
    distances = distance_range(keys - 1, 0 if causal else 1 - queries, inputs.q.device)
    q, *others = encoding.queries(inputs.q)
    tables = encoding.tables(-distances if backward else distances, causal)
    if causal:
        tables = tuple(F.pad(table, (0, 0, 0, ALIGNED - 1)) for table in tables)
    scored = with_fields(inputs, q=q, others=tuple(others), tables=tables)
    if segments is None:
        segments = torch.zeros(inputs.q.size(0), queries, dtype=torch.long, device=inputs.q.device)
    by_segment = encoding.by_segment(inputs.q, F.pad(segments, (keys - queries, 0)))
    if by_segment is None:
        return scored
    return with_fields(
        scored,
        q=torch.cat([q, by_segment[0]], dim=-1),
        k=torch.cat([inputs.k, by_segment[1].to(inputs.k.dtype)], dim=-1),
    )


def encoding_flops(encoding: Relative | None, queries: int, keys: int, causal: bool) -> int:
    """FLOPs of ``with_tables`` for one sequence; of no encoding none."""
    if encoding is None:
        return 0
    return encoding.table_flops(keys + (1 if causal else queries)) + encoding.segment_flops(queries)


def attend_flops(
    pattern: Pattern,
    queries: int,
    keys: int,
    width: int,
    *,
    causal: bool = True,
    encoding: Relative | None = None,
    weighed: bool = False,
    size: int = BLOCK,
) -> int:
    """Forward FLOPs of ``attend`` for one sequence, tables included; ``width`` is heads times the channels of a head,
    ``weighed`` says that an AttentionWeighting replaces the softmax, which no fused kernel supports.

    A fused kernel counts as the whole of its block, whether or not it skips masked tiles.
    """
    return heads_flops([pattern], queries, keys, width, causal=causal, encoding=encoding, weighed=weighed, size=size)


def heads_flops(
    patterns: Sequence[Pattern],
    queries: int,
    keys: int,
    width: int,
    *,
    causal: bool = True,
    encoding: Relative | None = None,
    weighed: bool = False,
    size: int = BLOCK,
) -> int:
    """Forward FLOPs of ``attend_heads``: one pattern for each head, or for each of as many equal groups of heads."""
    total = encoding_flops(encoding, queries, keys, causal)
    for pattern in patterns:
        fusible = pattern.full or (pattern.triangular and queries == keys)
        is_fused = fusible and encoding is None and not weighed
        plan = [QueryBlock(0, queries, 0, keys)] if is_fused else plan_of(pattern, queries, keys, keys - queries, size)
        for block in plan:
            t, near = len(block.queries), len(block.keys)
            far = 0 if block.further is None else block.further.size(-1)
            products = 4 * t * (near + far) * width
            if encoding is not None:
                first_row = queries - 1 - block.queries[-1] + block.start
                rows = range(first_row, keys + (ALIGNED if causal else queries), block.step)
                products = 2 * t * (near + far) * width + encoding.listed_flops(t, far)
                products += encoding.block_flops(t, near, max(near + 1, min(t + near, len(rows))))
            total += products // len(patterns)
    return total


def union_flops(bands: Sequence[Band], queries: int, width: int, encoding: Relative | None) -> int:
    """Forward FLOPs of ``attend_union`` over a segment without memory."""
    total = sum(heads_flops([part], queries, queries, width, encoding=encoding) for part in disjoint(bands))
    return total - (len(bands) - 1) * encoding_flops(encoding, queries, queries, causal=True)
