"""Encodings that change the scores as a function of the distance i - j between query i and key j."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.attention.workspace import empty


class Gathered(NamedTuple):
    """Rows of a table gathered for each pair of a query and a key, for keys that are listed in no particular order."""

    rows: Float[Tensor, "*h t s k"]


Table = Tensor | Gathered
"""Vectors of distances, descending from that of the last query and the first key, in the last but one dimension; or
vectors of pairs. Only ``for_queries``, ``for_keys`` and ``of_weights`` depend on which of the two it is."""


class Relative(nn.Module, ABC):
    """Scores and outputs that depend on distances.

    ``tables`` is computed once a pass for all distances, in descending order; an executor cuts from it the slice that a
    block of queries and keys needs, so that no tensor grows with the square of the length. ``scores`` reads no
    parameters directly: all that it uses is in its arguments.
    """

    @abstractmethod
    def queries(self, q: Float[Tensor, "b h t k"]) -> tuple[Float[Tensor, "b h t k"], ...]:
        """Returns the forms of the queries that ``scores`` takes; the first is multiplied with the keys."""

    @abstractmethod
    def tables(self, distances: Int[Tensor, " w"], causal: bool) -> tuple[Tensor, ...]:
        """Returns the tables of this encoding; each tensor has one row per distance in its last but one dimension."""

    def by_segment(
        self, q: Float[Tensor, "b h t k"], segments: Int[Tensor, "b s"]
    ) -> tuple[Float[Tensor, "b h t n"], Float[Tensor, "b h s n"]] | None:
        """Hook: returns channels of queries and of keys. Their product, scaled like the product of the other channels,
        is the score that segments add for each pair. None, the default, where segments add no scores.

        segments (b, s): the number of each key's segment, from 0; the queries are the last t of them.
        """
        return None

    def segment_flops(self, queries: int) -> int:
        """Hook: FLOPs of ``by_segment`` for one sequence. By default none."""
        return 0

    @abstractmethod
    def added_scores(
        self,
        queries: tuple[Float[Tensor, "b h t k"], ...],
        k: Float[Tensor, "b h s k"],
        tables: tuple[Table, ...],
        scale: float,
    ) -> Float[Tensor, "#b h t s"] | None:
        """Returns the scores that are added to the scaled product of queries and keys, in a new tensor, which may be
        changed in place; None for no scores.

        Row w of the tables is the distance w below that of the last query to the first key. There are t + s rows, or,
        where no later key is seen, s + 1: scores of later keys may then be any finite number.
        """

    def scores(
        self,
        queries: tuple[Float[Tensor, "b h t k"], ...],
        k: Float[Tensor, "b h s k"],
        tables: tuple[Table, ...],
        scale: float,
    ) -> Float[Tensor, "b h t s"]:
        """Returns scaled logits in a new tensor, for executors mask keys in place; see ``added_scores``."""
        logits = (queries[0] * scale) @ k.mT
        added = self.added_scores(queries, k, tables, scale)
        return logits if added is None else logits.add_(added)

    @property
    def adds_values(self) -> bool:
        """Hook: whether ``values`` adds something to the outputs. By default not."""
        return False

    def values(self, weights: Float[Tensor, "b h t s"], tables: tuple[Table, ...]) -> Float[Tensor, "b h t k"] | None:
        """Hook: returns the values that distances add to the output, or None, the default, if they add none."""
        return None

    @abstractmethod
    def table_flops(self, distances: int) -> int:
        """FLOPs of ``tables`` for the given number of distances."""

    @abstractmethod
    def block_flops(self, queries: int, keys: int, distances: int) -> int:
        """FLOPs of ``scores`` and ``values`` for one sequence, all heads, the content product q . k included."""

    @abstractmethod
    def listed_flops(self, queries: int, keys: int) -> int:
        """FLOPs of ``scores`` and ``values`` as in ``block_flops``, for keys that are listed (``Gathered``)."""


def distance_range(highest: int, lowest: int, device: torch.device) -> Int[Tensor, " w"]:
    """Returns the distances from ``highest`` down to ``lowest``, and one more for the shift in ``by_query``."""
    return torch.arange(highest, lowest - 2, -1, device=device)


def for_queries(q: Float[Tensor, "b h t k"], table: Table, keys: int) -> Float[Tensor, "b h t s"]:
    """q_i . a_(i-j) for every query i and key j."""
    match table:
        case Gathered(rows):
            return (q.unsqueeze(-2) @ rows.to(q.dtype).mT).squeeze(-2)
        case _:
            return by_query(q, table.to(q.dtype), keys)


def for_keys(k: Float[Tensor, "b h s k"], table: Table, queries: int) -> Float[Tensor, "b h t s"]:
    """k_j . a_(i-j) for every query i and key j."""
    match table:
        case Gathered(rows):
            return (rows.to(k.dtype).transpose(-3, -2) @ k.unsqueeze(-1)).squeeze(-1).mT
        case _:
            return by_key(k, table.to(k.dtype), queries)


def of_weights(weights: Float[Tensor, "b h t s"], table: Table) -> Float[Tensor, "b h t k"]:
    """The sum over keys j of weight_ij a_(i-j)."""
    match table:
        case Gathered(rows):
            return (weights.unsqueeze(-2) @ rows.to(weights.dtype)).squeeze(-2)
        case _:
            return by_distance(weights, table.to(weights.dtype))


def at_least(table: Float[Tensor, "*h w k"], rows: int) -> Float[Tensor, "*h w k"]:
    """Pads the table to at least ``rows`` rows; the added ones belong to later keys, which no query sees."""
    missing = rows - table.size(-2)
    return F.pad(table, (0, 0, 0, missing)) if missing > 0 else table


def by_query(q: Float[Tensor, "b h t k"], table: Float[Tensor, "*h w k"], keys: int) -> Float[Tensor, "b h t s"]:
    """q_i . a_(i-j) for every query i and key j: one product with all w distances, w > s, and a view of it. Where
    w < t + s, the scores of later keys are meaningless and must be masked."""
    if torch.compiler.is_compiling():  # which does not trace the place of a view in its storage
        scores = q @ table.mT
        queries, width = scores.shape[-2:]
        flat = scores.flatten(-2)[..., queries - 1 : queries - 1 + queries * (width - 1)]
        return flat.unflatten(-1, (queries, width - 1))[..., :keys]
    product: Callable[..., Tensor] = ShiftedProduct.apply
    return product(q, table, keys)


def shifted(scores: Float[Tensor, "*b t w"], keys: int) -> Float[Tensor, "*b t s"]:
    """Converts contiguous scores with one column per distance into scores with one column per key.

    Distances descend; the s columns of row i start at t - 1 - i. The result is a view, not a gather: reading the
    flattened rows with a stride shorter by one moves each row one column to the left. Where w < t + s a row reads on
    into the next.
    """
    queries, width = scores.shape[-2:]
    strides = (*scores.stride()[:-2], width - 1, 1)
    return scores.as_strided((*scores.shape[:-1], keys), strides, scores.storage_offset() + queries - 1)


class ShiftedProduct(torch.autograd.Function):
    """The product of ``by_query``, in the memory of a ``workspace``. The gradient of the view is written once: autograd
    would fill all of it with zeros first."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, table: Tensor, keys: int) -> Tensor:
        ctx.save_for_backward(q, table)
        leading = torch.broadcast_shapes(q.shape[:-2], table.shape[:-2])
        scores = empty(q, *leading, q.size(-2), table.size(-2))
        if table.dim() == 2:
            torch.mm(q.flatten(0, -2), table.mT, out=scores.flatten(0, -2))
        else:
            batches = (part.expand(*leading, -1, -1).flatten(0, -3) for part in (q, table.mT))
            torch.bmm(*batches, out=scores.flatten(0, -3))
        return shifted(scores, keys)

    @staticmethod
    def backward(ctx: Any, gradient: Float[Tensor, "b h t s"]) -> tuple[Tensor | None, Tensor | None, None]:
        q, table = ctx.saved_tensors
        queries, keys = gradient.shape[-2:]
        scores = empty(gradient, *gradient.shape[:-1], table.size(-2))
        shifted(scores, keys).copy_(gradient)
        shifted(scores, table.size(-2) - 1)[..., keys:].zero_()
        flat = scores.flatten(-2)
        flat[..., : queries - 1].zero_()  # these and the last number lie outside of the view
        flat[..., -1].zero_()
        of_q = (scores @ table).sum_to_size(q.shape) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return of_q, None, None
        if table.dim() == 2:
            return of_q, scores.flatten(0, -2).mT @ q.expand(*scores.shape[:-1], -1).flatten(0, -2), None
        return of_q, (scores.mT @ q).sum_to_size(table.shape), None


def by_key(k: Float[Tensor, "*b s k"], table: Float[Tensor, "*h w k"], queries: int) -> Float[Tensor, "*b t s"]:
    """k_j . a_(i-j) for every query i and key j, in time queries x keys; zero for distances below the table's.

    Keys are taken in tiles as long as the block of queries; a tile needs a window of twice that many distances.
    """
    keys = k.size(-2)
    missing = -keys % queries
    tiles = F.pad(k, (0, 0, 0, missing)).unflatten(-2, (-1, queries))
    width = queries + max(keys + missing, queries)  # a window even where there is no tile, for keys that are all listed
    table = F.pad(table, (0, 0, 0, width - table.size(-2)))
    windows = table.unfold(-2, 2 * queries, queries)  # (*h, tiles, k, 2t)
    products = tiles @ windows  # row a of a tile needs its columns a to a + t - 1, for the queries from last to first
    skewed = F.pad(products.flatten(-2), (0, queries)).unflatten(-1, (queries, 2 * queries + 1))[..., :queries]
    return skewed.flip(-1).movedim(-1, -3).flatten(-2)[..., :keys]


def by_distance(weights: Float[Tensor, "b h t s"], table: Float[Tensor, "*h w k"]) -> Float[Tensor, "b h t k"]:
    """The sum over keys j of weight_ij a_(i-j): the inverse of ``by_query``, then one product."""
    queries, keys = weights.shape[-2:]
    spread = F.pad(weights, (0, queries - 1)).flatten(-2)  # rows of t + s - 1
    spread = F.pad(spread, (queries - 1, 1)).unflatten(-1, (queries, queries + keys))
    return spread[..., : table.size(-2)] @ table
