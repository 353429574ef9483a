"""Divides rows of two texts into two sequences and joins them again, for networks whose lower layers read two texts
apart (arXiv:2005.00697)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.host import reads_at_once
from lit_transformers.mixer import Context
from lit_transformers.named_tuples import with_fields
from lit_transformers.stacks import StackOutput

__all__ = ["Division", "joined_masks", "mean_losses"]


class Division(NamedTuple):
    """The division of rows of ``length`` tokens into two texts.

    first, second: tokens of the first and of the second text, padding included. starts (b,): the place of the second
    text in each row; None: at ``first`` in all rows.
    """

    length: int
    first: int
    second: int
    starts: Int[Tensor, " b"] | None = None

    @classmethod
    def of(cls, segments: Int[Tensor, "b t"]) -> Self:
        """Returns the division of rows at the beginning of their second segment (b, t). A row without a second segment
        is a first text. On a device, both texts are as wide as the rows: reading the widths would wait for it."""
        is_second, length = segments == 1, segments.size(1)
        starts = torch.where(is_second.any(dim=1), is_second.long().argmax(dim=1), length)
        if not reads_at_once(starts):
            return cls(length, length, length, starts)
        return cls(length, max(1, int(starts.max())), max(1, length - int(starts.min())), starts)

    def places(self, number: int) -> tuple[Int[Tensor, "b s"], Bool[Tensor, "b s"]]:
        """Returns the place in its row of each token (b, s) of text 0 or 1, and a mask (b, s): True for tokens of the
        text, False for its padding."""
        assert self.starts is not None
        starts = self.starts[:, None]
        if number == 0:
            places = torch.arange(self.first, device=starts.device).expand(len(starts), -1)
            return places, places < starts
        places = starts + torch.arange(self.second, device=starts.device)
        return places.clamp(max=self.length - 1), places < self.length

    def part(self, number: int, row: Tensor) -> Tensor:
        """Returns the part (b, s, ...) of rows (b, t, ...) that belongs to text 0 or 1."""
        if self.starts is None:
            return row[:, : self.first] if number == 0 else row[:, self.first :]
        places, _ = self.places(number)
        return row.gather(1, places) if row.dim() == 2 else row.gather(1, places[..., None].expand(-1, -1, row.size(2)))

    def context(self, number: int, ctx: Context) -> Context:
        """Returns the context of text 0 or 1, given the context of the rows."""
        positions, mask, marked, segments = (
            None if part is None else self.part(number, part)
            for part in (ctx.positions, ctx.padding_mask, ctx.marked, ctx.segments)
        )
        start, last = ctx.start, ctx.last_position
        if self.starts is not None:
            _, real = self.places(number)
            mask = real if mask is None else mask & real
            start = ctx.start if number == 0 else None
        elif number == 1 and start is not None:
            start += self.first
        assert positions is not None
        return with_fields(
            ctx,
            positions=positions,
            padding_mask=mask,
            marked=marked,
            segments=segments,
            start=start,
            last=last,
            padding_last=True,
        )

    def joined(self, first: Float[Tensor, "b s d"], second: Float[Tensor, "b r d"]) -> Float[Tensor, "b t d"]:
        """Returns the rows (b, t, d) that two texts (b, s, d) and (b, r, d) form. Inverse of ``part``."""
        both = torch.cat([first, second], dim=1)
        if self.starts is None:
            return both
        places, starts = torch.arange(self.length, device=both.device), self.starts[:, None]
        sources = torch.where(places < starts, places, self.first + places - starts)
        return both.gather(1, sources[..., None].expand(-1, -1, both.size(2)))


def mean_losses(outputs: Sequence[StackOutput], contexts: Sequence[Context]) -> Mapping[str, Tensor]:
    """Returns the losses of several texts by name, each the mean over the real tokens of all texts."""
    if not outputs[0].aux:
        return {}
    masks = [torch.ones_like(ctx.positions) if ctx.padding_mask is None else ctx.padding_mask for ctx in contexts]
    counts = torch.stack([mask.sum() for mask in masks])
    losses = {name: torch.stack([output.aux[name] for output in outputs]) for name in outputs[0].aux}
    return {name: (loss * counts).sum() / counts.sum().clamp(min=1) for name, loss in losses.items()}


def joined_masks(*texts: tuple[Tensor, Bool[Tensor, "b s"] | None]) -> Bool[Tensor, "b t"] | None:
    """Returns the padding mask (b, t) of rows that consist of texts (b, s, ...) with masks (b, s); None if no text has
    a mask."""
    if all(mask is None for _, mask in texts):
        return None
    masks = [text.new_ones(text.shape[:2], dtype=torch.bool) if mask is None else mask for text, mask in texts]
    return torch.cat(masks, dim=1)
