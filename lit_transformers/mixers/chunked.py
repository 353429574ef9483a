"""Attention of every query to keys of its own bucket or chunk, in several rounds (arXiv:2001.04451, section 2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.encodings.relative import Gathered, Relative
from lit_transformers.executors import Inputs
from lit_transformers.mixer import full_precision
from lit_transformers.mixers.chunks import Order, rows_of
from lit_transformers.mixers.shared_qk import ITSELF
from lit_transformers.recompute import Cut, Part, in_order, recomputed

PAIRS = 2**20
"""Pairs of a query and a key in a piece, or their channels where an encoding speaks of each pair."""
LOG2_E = math.log2(math.e)
HIDDEN = -1e9
"""Added to the scores of keys that are not seen: finite, and harsher than what is added to a query's own."""


class Chunked(NamedTuple):
    """How rounds are computed. corrected: a key that several rounds show counts once."""

    order: Order
    causal: bool
    scale: float
    dropout: float
    corrected: bool
    encoding: Relative | None


class Piece(NamedTuple):
    """Some chunks of one round, as tokens of the sequence; t stands for none."""

    turn: int
    queries: Int[Tensor, "b h c m"]
    keys: Int[Tensor, "b h c w"]


def attend_chunks(chunked: Chunked, inputs: Inputs) -> Float[Tensor, "b h t v"]:
    """o_i = sum_r exp(z_i^r - z_i) o_i^r, with z_i^r the log-sum-exp of the scores of round r (equation 6).

    Memory grows with rounds times length; pairs are held a piece at a time, forward and backward.
    """
    rows, heads, t, _ = inputs.q.shape
    plan = list(pieces(chunked, inputs))
    flat = [part.flatten(0, 2) for part in (inputs.q, *inputs.others, inputs.k, inputs.v)]

    def work(number: int, leaves: list[Tensor]) -> tuple[Tensor, ...]:
        return compute(chunked, plan[number], leaves, 1 + len(inputs.others))

    cuts = [parts_of(piece, inputs) for piece in plan]
    places = in_order([piece.queries.numel() for piece in plan])
    y, z = recomputed(work, cuts, places, [*flat, *inputs.tables], chunked.dropout > 0)
    rounds = chunked.order.tokens.size(2)
    owners = torch.cat([rows_of(piece.queries, t, fill=rows * heads * t) for piece in plan]).view(rounds, -1)
    every = torch.arange(owners.numel(), device=owners.device).view_as(owners)
    found = owners.new_empty(rounds, rows * heads * t + 1).scatter_(1, owners, every)[:, :-1].flatten()
    y, z = (part.index_select(0, found).view(rounds, rows, heads, t, -1) for part in (y, z))
    return (z.softmax(dim=0).to(y.dtype) * y).sum(dim=0)


def pieces(chunked: Chunked, inputs: Inputs) -> Iterator[Piece]:
    """Every chunk of every round, as many at a time as PAIRS allows."""
    order, (rows, heads, _, channels) = chunked.order, inputs.q.shape
    pairs = rows * heads * order.chunks.length * order.chunks.width * (channels if inputs.tables else 1)
    size = max(1, PAIRS // pairs)
    for turn in range(order.tokens.size(2)):
        for first in range(0, order.number, size):
            stop = min(first + size, order.number)
            yield Piece(turn, order.queries(turn, first, stop), order.keys(turn, first, stop))


def parts_of(piece: Piece, inputs: Inputs) -> Cut:
    """What a piece reads of queries, their other forms, keys, values and tables."""
    t, forms = inputs.q.size(-2), 1 + len(inputs.others)
    asking, asked = rows_of(piece.queries, t), rows_of(piece.keys, t)
    parts = [Part(form, chosen=asking) for form in range(forms)]
    parts += [Part(forms, chosen=asked), Part(forms + 1, chosen=asked)]
    if inputs.tables:  # of which the first row is of the last query and the first key
        listed = (t - 1 - piece.queries[..., None] + piece.keys[..., None, :]).flatten(2, 3)
        listed = listed.clamp(0, inputs.tables[0].size(-2) - 1)
        parts += [Part(forms + 2 + number, listed=listed) for number in range(len(inputs.tables))]
    return parts


def compute(chunked: Chunked, piece: Piece, leaves: Sequence[Tensor], forms: int) -> tuple[Tensor, Tensor]:
    """Outputs and log-sum-exps of a piece, (n, v) and (n, 1); the first ``forms`` leaves are of the queries."""
    encoding, chunk = chunked.encoding, piece.queries.shape
    queries = tuple(part.view(*chunk, -1) for part in leaves[:forms])
    k, v = (part.view(*piece.keys.shape, -1) for part in leaves[forms : forms + 2])
    tables = tuple(Gathered(rows.unflatten(2, chunk[2:])) for rows in leaves[forms + 2 :])
    if encoding is None:
        logits = full_precision((queries[0] * chunked.scale) @ k.mT)
    else:
        logits = full_precision(encoding.scores(queries, k, tables, chunked.scale))
    with torch.no_grad():
        added, times = visibility(chunked, piece)
        logits += added
        largest = logits.amax(dim=-1, keepdim=True)
    weights = ((logits - largest) * LOG2_E).exp2()  # on a CPU exp takes ten times as long over what underflows
    if times is not None:
        weights = weights * times.to(weights.dtype).reciprocal()
    total = weights.sum(dim=-1, keepdim=True)
    weights = F.dropout(weights.to(v.dtype), chunked.dropout)
    y = weights @ v
    further = None if encoding is None else encoding.values(weights, tables)
    y = (y if further is None else y + further) / total
    return y.flatten(0, 3), (largest + total.log()).flatten(0, 3)


def visibility(chunked: Chunked, piece: Piece) -> tuple[Tensor, Tensor | None]:
    """What is added to each score, and the number of rounds that show the key to the query, by which its weight is
    divided (the paper's log N, appendix A), or None. Numbers, for filling by masks takes several times as long."""
    order, chunks = chunked.order, chunked.order.chunks
    rounds = order.tokens.size(2)
    turns = range(rounds) if chunked.corrected and rounds > 1 else range(piece.turn, piece.turn + 1)
    count: Tensor | None = None
    for turn in turns:
        asking = of_tokens(order.codes[:, :, turn], piece.queries) - chunks.middle
        near = pairwise(asking, of_tokens(order.key_codes[:, :, turn], piece.keys)).abs_()
        torch.le(near, chunks.reach, out=near)
        if turn == piece.turn:
            added = (near - 1) * -HIDDEN
        count = near if count is None else count.add_(near)
    assert count is not None
    distance = pairwise(piece.queries.float(), piece.keys.float())
    compared = torch.eq(distance, 0, out=torch.empty_like(distance))
    added.add_(compared, alpha=ITSELF)
    if chunked.causal and (chunks.by == "by_sort" or chunks.ahead):  # ranks are in the order of positions
        added.add_(torch.lt(distance, 0, out=compared), alpha=HIDDEN)
    return added, None if len(turns) == 1 else count.clamp_(min=1)


def of_tokens(codes: Float[Tensor, "b h t"], tokens: Int[Tensor, "b h c m"]) -> Float[Tensor, "b h c m"]:
    """The codes of the tokens that a piece holds."""
    return codes.gather(-1, tokens.flatten(2)).view_as(tokens)


def pairwise(asking: Float[Tensor, "b h c m"], asked: Float[Tensor, "b h c w"]) -> Float[Tensor, "b h c m w"]:
    """Differences of what is said of queries and of keys."""
    return asking[..., None] - asked[..., None, :]
