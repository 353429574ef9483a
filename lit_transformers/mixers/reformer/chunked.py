"""Attention of every query to the keys of its bucket or chunk, in several rounds (arXiv:2001.04451, section 2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.attention.executors import Inputs
from lit_transformers.attention.recompute import Cut, Tensors, TensorSlice, in_order, recomputed
from lit_transformers.attention.relative import Gathered, Relative
from lit_transformers.mixers.reformer.chunks import BucketOrder, rows_of
from lit_transformers.mixers.reformer.shared_qk import ITSELF
from lit_transformers.precision import full_precision

PAIRS = 2**20
"""Pairs of a query and a key in a piece, or their channels where an encoding has a vector for each pair."""
LOG2_E = math.log2(math.e)
HIDDEN = -1e9
"""Added to the scores of masked keys: finite, and of larger size than ITSELF, which is added for a query's own key."""


class Chunked(NamedTuple):
    """How rounds are computed. corrected: whether a key that a query sees in several rounds counts once."""

    order: BucketOrder
    causal: bool
    scale: float
    dropout: float
    corrected: bool
    encoding: Relative | None


class Piece(NamedTuple):
    """Some chunks of one round, as indices of tokens in the sequence; the index t stands for no token."""

    turn: int
    queries: Int[Tensor, "b h c m"]
    keys: Int[Tensor, "b h c w"]


def attend_chunks(chunked: Chunked, inputs: Inputs) -> Float[Tensor, "b h t v"]:
    """o_i = sum_r exp(z_i^r - z_i) o_i^r, with z_i^r the log-sum-exp of the scores of round r (equation 6).

    Memory grows with rounds times length; scores are held for one piece at a time, forward and backward.
    """
    rows, heads, t, _ = inputs.q.shape
    plan = list(pieces(chunked, inputs))
    tensors = {
        "queries": tuple(part.flatten(0, 2) for part in (inputs.q, *inputs.others)),
        "keys": (inputs.k.flatten(0, 2),),
        "values": (inputs.v.flatten(0, 2),),
        "tables": inputs.tables,
    }

    def work(number: int, leaves: Tensors) -> tuple[Tensor, ...]:
        return compute(chunked, plan[number], leaves)

    cuts = [parts_of(piece, inputs) for piece in plan]
    stretches = in_order([piece.queries.numel() for piece in plan])
    y, z = recomputed(work, cuts, stretches, tensors, chunked.dropout > 0)
    rounds = chunked.order.tokens.size(2)
    owners = torch.cat([rows_of(piece.queries, t, fill=rows * heads * t) for piece in plan]).view(rounds, -1)
    output_indices = torch.arange(owners.numel(), device=owners.device).view_as(owners)
    sources = owners.new_empty(rounds, rows * heads * t + 1).scatter_(1, owners, output_indices)[:, :-1].flatten()
    y, z = (part.index_select(0, sources).view(rounds, rows, heads, t, -1) for part in (y, z))
    return (z.softmax(dim=0).to(y.dtype) * y).sum(dim=0)


def pieces(chunked: Chunked, inputs: Inputs) -> Iterator[Piece]:
    """Yields every chunk of every round, as many chunks at a time as PAIRS allows."""
    order, (rows, heads, _, channels) = chunked.order, inputs.q.shape
    pairs = rows * heads * order.chunks.length * order.chunks.width * (channels if inputs.tables else 1)
    size = max(1, PAIRS // pairs)
    for turn in range(order.tokens.size(2)):
        for first in range(0, order.number, size):
            stop = min(first + size, order.number)
            yield Piece(turn, order.queries(turn, first, stop), order.keys(turn, first, stop))


def parts_of(piece: Piece, inputs: Inputs) -> Cut:
    """Returns the slices that a piece reads of queries, their other forms, keys, values and tables."""
    t = inputs.q.size(-2)
    query_rows, key_rows = rows_of(piece.queries, t), rows_of(piece.keys, t)
    parts = {
        "queries": TensorSlice("queries", chosen=query_rows),
        "keys": TensorSlice("keys", chosen=key_rows),
        "values": TensorSlice("values", chosen=key_rows),
        "tables": TensorSlice("tables"),
    }
    if inputs.tables:  # their first row belongs to the last query and the first key
        table_rows = (t - 1 - piece.queries[..., None] + piece.keys[..., None, :]).flatten(2, 3)
        table_rows = table_rows.clamp(0, inputs.tables[0].size(-2) - 1)
        parts["tables"] = TensorSlice("tables", listed=table_rows)
    return parts


def compute(chunked: Chunked, piece: Piece, leaves: Tensors) -> tuple[Tensor, Tensor]:
    """Returns outputs (n, v) and log-sum-exps (n, 1) of a piece."""
    encoding, query_shape = chunked.encoding, piece.queries.shape
    queries = tuple(part.view(*query_shape, -1) for part in leaves["queries"])
    k, v = (part.view(*piece.keys.shape, -1) for part in (*leaves["keys"], *leaves["values"]))
    tables = tuple(Gathered(rows.unflatten(2, query_shape[2:])) for rows in leaves["tables"])
    if encoding is None:
        logits = full_precision((queries[0] * chunked.scale) @ k.mT)
    else:
        logits = full_precision(encoding.scores(queries, k, tables, chunked.scale))
    with torch.no_grad():
        bias, visible_rounds = visibility(chunked, piece)
        logits += bias
        largest = logits.amax(dim=-1, keepdim=True)
    weights = ((logits - largest) * LOG2_E).exp2()  # on a CPU exp takes ten times as long where it underflows
    if visible_rounds is not None:
        weights = weights * visible_rounds.to(weights.dtype).reciprocal()
    total = weights.sum(dim=-1, keepdim=True)
    weights = F.dropout(weights.to(v.dtype), chunked.dropout)
    y = weights @ v
    distance_values = None if encoding is None else encoding.values(weights, tables)
    y = (y if distance_values is None else y + distance_values) / total
    return y.flatten(0, 3), (largest + total.log()).flatten(0, 3)


def visibility(chunked: Chunked, piece: Piece) -> tuple[Tensor, Tensor | None]:
    """Returns the bias of each score, and the number of rounds in which the query sees the key, by which the key's
    weight is divided (the paper's log N, appendix A), or None. Both are numbers, for masked filling is much slower."""
    order, chunks = chunked.order, chunked.order.chunks
    rounds = order.tokens.size(2)
    turns = range(rounds) if chunked.corrected and rounds > 1 else range(piece.turn, piece.turn + 1)
    visible_rounds: Tensor | None = None
    for turn in turns:
        query_codes = of_tokens(order.codes[:, :, turn], piece.queries) - chunks.middle
        visible = pairwise(query_codes, of_tokens(order.key_codes[:, :, turn], piece.keys)).abs_()
        torch.le(visible, chunks.reach, out=visible)
        if turn == piece.turn:
            bias = (visible - 1) * -HIDDEN
        visible_rounds = visible if visible_rounds is None else visible_rounds.add_(visible)
    assert visible_rounds is not None
    distance = pairwise(piece.queries.float(), piece.keys.float())
    comparison = torch.eq(distance, 0, out=torch.empty_like(distance))
    bias.add_(comparison, alpha=ITSELF)
    if chunked.causal and (chunks.by == "by_sort" or chunks.ahead):  # ranks follow the order of positions
        bias.add_(torch.lt(distance, 0, out=comparison), alpha=HIDDEN)
    return bias, None if len(turns) == 1 else visible_rounds.clamp_(min=1)


def of_tokens(codes: Float[Tensor, "b h t"], tokens: Int[Tensor, "b h c m"]) -> Float[Tensor, "b h c m"]:
    """Returns the codes of the tokens in a piece."""
    return codes.gather(-1, tokens.flatten(2)).view_as(tokens)


def pairwise(queries: Float[Tensor, "b h c m"], keys: Float[Tensor, "b h c w"]) -> Float[Tensor, "b h c m w"]:
    """Returns the difference of the query's and the key's number for each pair."""
    return queries[..., None] - keys[..., None, :]
