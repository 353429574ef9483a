"""The positions of rows at which something is predicted, chosen so that no device has to be waited for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from lit_transformers.host import reads_at_once

ROUNDED = 8
"""Predictions of a row on a device are rounded up to a multiple of this, so that few shapes occur."""


class PredictedPositions(NamedTuple):
    """n positions of rows (b, t), among them all at which something is predicted.

    On a CPU there are no others. A device would have to be waited for to count them, so that other positions fill rows
    up to a number that is known before; all that is computed of these is dropped.

    places  (n,) the number of each position, row by row
    scored  (n,) True at those at which something is predicted
    shape   (b, t)
    """

    places: Int[Tensor, " n"]
    scored: Bool[Tensor, " n"]
    shape: torch.Size

    @classmethod
    def of(cls, scored: Bool[Tensor, "b t"], most: int | None = None) -> PredictedPositions:
        """Returns the positions at which ``scored`` is True. most: a number that no row has more of, such as
        ``RowBatch.most_targets``; None where none is known but the length."""
        rows, length = scored.shape
        if reads_at_once(scored):
            index = scored.flatten().nonzero().squeeze(1)
            return cls(index, torch.ones_like(index, dtype=torch.bool), scored.shape)
        if most is None:
            return cls(torch.arange(rows * length, device=scored.device), scored.flatten(), scored.shape)
        first = torch.arange(rows, device=scored.device)[:, None] * length
        index = (at_predictions(scored, most) + first).flatten()
        return cls(index, scored.flatten().index_select(0, index), scored.shape)

    @property
    def row(self) -> Int[Tensor, " n"]:
        """The number of the row of each position."""
        return self.places // self.shape[1]

    def of_rows(self, values: Shaped[Tensor, "b t ..."]) -> Shaped[Tensor, "n ..."]:
        """Returns the values at the positions."""
        return values.flatten(0, 1).index_select(0, self.places)

    def in_rows(self, values: Shaped[Tensor, " n"]) -> Shaped[Tensor, "b t"]:
        """Returns values in their places, 0 or False where nothing is predicted."""
        none = values.new_zeros(self.shape.numel())
        return none.index_copy(0, self.places, values.masked_fill(~self.scored, 0)).view(self.shape)

    def sums(self, values: Float[Tensor, "n c"]) -> Float[Tensor, "b c"]:
        """Returns the sums of the values of each row."""
        none = values.new_zeros(self.shape[0], values.size(1))
        return none.index_add(0, self.row, values.masked_fill(~self.scored[:, None], 0))

    def scored_alone(self, values: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "m ..."]:
        """Returns the values of the positions at which something is predicted, row by row. A device is waited for."""
        return values[self.scored]


def at_predictions(scored: Bool[Tensor, "b t"], most: int | None = None) -> Int[Tensor, "b m"]:
    """Returns the positions of predictions, in order, and after them positions of other symbols, so that
    rows have equally many: on a CPU as many as the row that has the most of them, on a device ``most``."""
    if reads_at_once(scored):
        count = int(scored.sum(dim=1).max())
    else:
        count = scored.size(1) if most is None else min(-(-most // ROUNDED) * ROUNDED, scored.size(1))
    return (~scored).byte().argsort(dim=1, stable=True)[:, :count]
