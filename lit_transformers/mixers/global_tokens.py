"""Tokens that see all tokens and are seen by all (arXiv:2004.05150, section 3.1, "global attention")."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lit_transformers.host import HOST
from lit_transformers.mixer import Context


class GlobalTokens(NamedTuple):
    """The first ``number`` tokens of a document, one in ``number``, or those that the data marks."""

    kind: Literal["first", "marked", "periodic"]
    number: int

    def marks(self, ctx: Context) -> Bool[Tensor, "b t"]:
        """Returns which tokens of the segment are global; padding never is."""
        marked = ctx.marked if self.kind == "marked" else self.by_place(ctx.positions)
        if marked is None:
            return torch.zeros_like(ctx.positions, dtype=torch.bool)
        return marked if ctx.padding_mask is None else marked & ctx.padding_mask

    def columns(self, ctx: Context) -> tuple[int, ...] | None:
        """Returns the places of global tokens in a segment, padding included, where the host knows them without waiting
        for a device; else None."""
        if ctx.start is None:
            return None
        marks = self.by_place(torch.arange(ctx.start, ctx.start + ctx.positions.size(1), device=HOST))
        return None if marks is None else tuple(marks.nonzero().flatten().tolist())

    def by_place(self, positions: Int[Tensor, "*b t"]) -> Bool[Tensor, "*b t"] | None:
        """Returns which positions are global, or None where the data mark them."""
        match self.kind:
            case "first":
                return positions < self.number
            case "periodic":
                return positions % self.number == 0
            case "marked":
                return None
