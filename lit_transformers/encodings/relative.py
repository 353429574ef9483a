"""Encodings that enter the scores as a function of the distance i - j between query i and key j."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F


class Gathered(NamedTuple):
    """What an encoding says of each pair of a query and a key, where keys are listed and stand in no order."""

    rows: Float[Tensor, "*h t s k"]


Table = Tensor | Gathered
"""What is said of distances: descending from the last query and the first key, in the last but one dimension; or of
pairs. An encoding looks into neither: ``for_queries``, ``for_keys`` and ``of_weights`` do."""


class Relative(nn.Module, ABC):
    """Scores and outputs that depend on distances.

    ``tables`` is computed once a pass for all distances, in descending order; an executor cuts from it the slice that a
    block of queries and keys needs, so that no tensor grows with the square of the length. What ``scores`` learns from
    it is given: it reads no parameter of its own.
    """

    @abstractmethod
    def queries(self, q: Float[Tensor, "b h t k"]) -> tuple[Float[Tensor, "b h t k"], ...]:
        """The forms of the queries that ``scores`` takes, the one that meets the content of the keys first."""

    @abstractmethod
    def tables(self, distances: Int[Tensor, " w"], causal: bool) -> tuple[Tensor, ...]:
        """What this encoding says of each distance; every tensor has the distances in its last but one dimension."""

    @abstractmethod
    def scores(
        self,
        queries: tuple[Float[Tensor, "b h t k"], ...],
        k: Float[Tensor, "b h s k"],
        tables: tuple[Table, ...],
        scale: float,
    ) -> Float[Tensor, "b h t s"]:
        """Logits, scaled, in a tensor of their own: executors hide keys in place.

        Row w of the tables is the distance w below that of the last query to the first key. There are t + s rows, or,
        where no later key is seen, s + 1: scores of later keys may then be anything finite.
        """

    @abstractmethod
    def values(self, weights: Float[Tensor, "b h t s"], tables: tuple[Table, ...]) -> Float[Tensor, "b h t k"] | None:
        """What distances add to the output, or None."""

    @abstractmethod
    def table_flops(self, distances: int) -> int:
        """FLOPs of ``tables`` for so many distances."""

    @abstractmethod
    def block_flops(self, queries: int, keys: int, distances: int) -> int:
        """FLOPs of ``scores`` and ``values`` for one sequence, all heads, the content product q . k included."""

    @abstractmethod
    def listed_flops(self, queries: int, keys: int) -> int:
        """The same where keys are listed."""


def distance_range(highest: int, lowest: int, device: torch.device) -> Int[Tensor, " w"]:
    """Distances from ``highest`` down to ``lowest``, and one more for the shift of ``by_query``."""
    return torch.arange(highest, lowest - 2, -1, device=device)


def for_queries(q: Float[Tensor, "b h t k"], table: Table, keys: int) -> Float[Tensor, "b h t s"]:
    """q_i . a_(i-j) for every query i and key j."""
    match table:
        case Gathered(rows):
            return (q.unsqueeze(-2) @ rows.to(q.dtype).mT).squeeze(-2)
        case _:
            return by_query(q @ table.to(q.dtype).mT, keys)


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
    """The table with as many rows; those added are of later keys that nobody sees."""
    short = rows - table.size(-2)
    return F.pad(table, (0, 0, 0, short)) if short > 0 else table


def by_query(scores: Float[Tensor, "*b t w"], keys: int) -> Float[Tensor, "*b t s"]:
    """Turns columns that stand for distances into columns that stand for keys.

    scores (..., t, w), w > s, with distances descending; row i starts its s columns at t - 1 - i. A view, no gather:
    reading the flattened rows with a stride shorter by one moves each row one column to the left. Where w < t + s a row
    reads on into the next: those of its columns mean nothing and must be hidden.
    """
    queries, width = scores.shape[-2:]
    flat = scores.flatten(-2)[..., queries - 1 : queries - 1 + queries * (width - 1)]
    return flat.unflatten(-1, (queries, width - 1))[..., :keys]


def by_key(k: Float[Tensor, "*b s k"], table: Float[Tensor, "*h w k"], queries: int) -> Float[Tensor, "*b t s"]:
    """k_j . a_(i-j) for every query i and key j, in time queries x keys; zero for distances below the table's.

    Keys are taken in tiles as long as the block of queries; a tile needs a window of twice that many distances.
    """
    keys = k.size(-2)
    short = -keys % queries
    tiles = F.pad(k, (0, 0, 0, short)).unflatten(-2, (-1, queries))
    width = queries + max(keys + short, queries)  # a window even where there is no tile, for keys that are all listed
    table = F.pad(table, (0, 0, 0, width - table.size(-2)))
    windows = table.unfold(-2, 2 * queries, queries)  # (*h, tiles, k, 2t)
    products = tiles @ windows  # row a of a tile wants its columns a to a + t - 1, for the queries from last to first
    skewed = F.pad(products.flatten(-2), (0, queries)).unflatten(-1, (queries, 2 * queries + 1))[..., :queries]
    return skewed.flip(-1).movedim(-1, -3).flatten(-2)[..., :keys]


def by_distance(weights: Float[Tensor, "b h t s"], table: Float[Tensor, "*h w k"]) -> Float[Tensor, "b h t k"]:
    """The sum over keys j of weight_ij a_(i-j): ``by_query`` undone, then one product."""
    queries, keys = weights.shape[-2:]
    spread = F.pad(weights, (0, queries - 1)).flatten(-2)  # rows of t + s - 1
    spread = F.pad(spread, (queries - 1, 1)).unflatten(-1, (queries, queries + keys))
    return spread[..., : table.size(-2)] @ table
