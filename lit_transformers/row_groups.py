"""Rows of a batch without their padding: real tokens end to end, rows of equal length next to each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from lit_transformers.host import HOST, sent

__all__ = ["RowGroup", "Unpadding", "mean_losses"]


class RowGroup(NamedTuple):
    """Rows of equal length among tokens that stand end to end. first: the place of their first token; rows: their
    number; length: tokens of each."""

    first: int
    rows: int
    length: int

    def of(self, tokens: Shaped[Tensor, "1 n *d"]) -> Shaped[Tensor, "r t *d"]:
        """Returns the rows of this group, given all tokens."""
        return tokens[0, self.first : self.first + self.tokens].unflatten(0, (self.rows, self.length))

    @property
    def tokens(self) -> int:
        """The number of its tokens."""
        return self.rows * self.length


class Unpadding(NamedTuple):
    """The real tokens of padded rows, in the order of their groups (padding removal, arXiv:2210.03052).

    places (n,): the place of each token in the flattened batch; groups: in ascending order of length; shape: rows and
    tokens of the batch, padding included.
    """

    places: Int[Tensor, " n"]
    groups: tuple[RowGroup, ...]
    shape: tuple[int, int]

    @classmethod
    def of(cls, padding_mask: Bool[Tensor, "b t"]) -> Self | None:
        """Returns the real tokens of rows whose padding stands at their end; None if there are none. The host waits
        once for a device."""
        lengths = padding_mask.sum(dim=1).tolist()
        order = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: lengths[row])
        if not order:
            return None
        width = padding_mask.size(1)
        places = [torch.arange(row * width, row * width + lengths[row], device=HOST) for row in order]
        groups = tuple(groups_of([lengths[row] for row in order]))
        return cls(sent(torch.cat(places), padding_mask.device), groups, (len(lengths), width))

    def taken(self, rows: Shaped[Tensor, "b t *d"]) -> Shaped[Tensor, "1 n *d"]:
        """Returns the real tokens of rows."""
        return rows.flatten(0, 1).index_select(0, self.places)[None]

    def restored(self, tokens: Shaped[Tensor, "1 n *d"]) -> Shaped[Tensor, "b t *d"]:
        """Returns padded rows, given their real tokens. Padding becomes zeros."""
        rows, width = self.shape
        empty = tokens.new_zeros(rows * width, *tokens.shape[2:])
        return empty.index_copy(0, self.places, tokens[0]).unflatten(0, self.shape)


def groups_of(lengths: Sequence[int]) -> Iterator[RowGroup]:
    """Yields the groups of rows whose lengths are in ascending order."""
    first = 0
    for length, rows in groupby(lengths):
        group = RowGroup(first, sum(1 for _ in rows), length)
        yield group
        first += group.tokens


def mean_losses(groups: Sequence[RowGroup], losses: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the losses of groups of rows by name, each the mean over the tokens of all groups."""
    count = sum(group.tokens for group in groups)
    totals: dict[str, Tensor] = {}
    for group, part in zip(groups, losses, strict=True):
        for name, loss in part.items():
            share = loss * (group.tokens / count)
            totals[name] = totals[name] + share if name in totals else share
    return totals
