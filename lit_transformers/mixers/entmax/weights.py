"""alpha-entmax of rows of scores, exact, the faster the fewer keys have weight (arXiv:1905.05702).

p = [(alpha - 1) s - tau]_+ ^ (1 / (alpha - 1)), and tau is where the sum of p is one. Over some of the keys tau is
smaller than over all of them. So one pass over the scores, which keeps the largest of each group of keys, leads to a
lower bound of tau, and everything else is computed of the candidates above it, forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.host import reads_at_once

GROUP = 16
"""Keys of which the lower bound of tau takes only the largest score."""
SHORT = 8 * GROUP
"""Rows up to this length are all candidates."""
CHUNK = 2**19
"""The number of scores that a CPU processes at a time: intermediate results then stay in a cache."""
CHUNK_ELSEWHERE = 2**26
"""As many as keep another device busy."""
STEPS = 60
"""The most steps of Newton's method, which needs a handful."""
STEPS_ELSEWHERE = 10
"""The steps on a device, where the host does not see whether they are enough. In rows of up to 8,192 keys, of normal
scores, equal ones, and powers of uniform ones, the largest of each group need up to 10, and all keys after them 5."""
Alpha = float | Float[Tensor, "g 1 1"]
"""One alpha, or one of each group of rows on their device."""


class EntmaxWeights(torch.autograd.Function):
    """Weights of logits (b, h, t, s), minus infinity where hidden, with the derivatives of exact weights; that of alpha
    is proposition 1 of arXiv:1909.00015. alpha is (h, 1, 1), or (1, 1, 1) for all heads. iterations: halvings of an
    interval that contains tau; None for exact weights."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, alpha: Tensor, iterations: int | None) -> Tensor:
        rows = by_alpha(logits, alpha)
        weights = rows.new_zeros(rows.shape)
        ctx.pieces, ctx.shapes = [], (logits.shape, alpha.shape)
        for part, number in parts(rows, alpha):
            piece = weights_of(rows[part], number, iterations)
            piece.places.write(piece.p, weights[part])
            ctx.pieces.append((part, number, piece))
        return like(logits.shape, weights)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        shape, alpha_shape = ctx.shapes
        alpha_gradient = gradient.new_zeros(alpha_shape)
        rows = by_alpha(gradient, alpha_gradient)
        logit_gradient = rows.new_zeros(rows.shape)
        for part, alpha, (places, p, slopes) in ctx.pieces:
            received = places.read(rows[part])
            received = received - (slopes * received).sum(-1, keepdim=True) / slopes.sum(-1, keepdim=True)
            places.write(slopes * received, logit_gradient[part])
            if ctx.needs_input_grad[1]:
                log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log()
                of_groups = (received * p * (1 / (alpha - 1) - log_p)).sum((-2, -1), keepdim=True) / (alpha - 1)
                alpha_gradient[part[0]] += of_groups.view_as(alpha_gradient[part[0]])
        return like(shape, logit_gradient), alpha_gradient if ctx.needs_input_grad[1] else None, None


def by_alpha(x: Float[Tensor, "b h t s"], alpha: Float[Tensor, "g 1 1"]) -> Float[Tensor, "g n s"]:
    """Returns the rows of scores that have the same alpha side by side."""
    return (x.flatten(0, 2)[None] if alpha.numel() == 1 else x.transpose(0, 1).flatten(1, 2)).contiguous()


def like(shape: torch.Size, rows: Float[Tensor, "g n s"]) -> Float[Tensor, "b h t s"]:
    """Returns the output of ``by_alpha`` in the given shape."""
    b, h, t, s = shape
    return rows.view(shape) if rows.size(0) == 1 else rows.view(h, b, t, s).transpose(0, 1)


Part = tuple[int | slice, slice]
"""The indices of a group of rows, or of all groups, and of rows in it."""


def parts(rows: Float[Tensor, "g n s"], alpha: Float[Tensor, "g 1 1"]) -> Iterator[tuple[Part, Alpha]]:
    """Yields the indices of parts of the rows, and the alpha of each. The host reads no alpha from a device: there the
    rows of all groups are computed with at once."""
    chunk = CHUNK if reads_at_once(rows) else CHUNK_ELSEWHERE
    if reads_at_once(alpha):
        size = max(1, chunk // rows.size(-1))
        for group, number in enumerate(alpha.flatten().tolist()):
            for first in range(0, rows.size(1), size):
                yield (group, slice(first, first + size)), number
    else:
        size = max(1, chunk // (rows.size(0) * rows.size(-1)))
        for first in range(0, rows.size(1), size):
            yield (slice(None), slice(first, first + size)), alpha


class Places(NamedTuple):
    """Where the candidates of rows are in a table (n, w), whose rows are as long as the longest list of candidates.
    of_rows: their indices among all scores; of_table: among all cells. Both None: every key is a candidate."""

    shape: tuple[int, int]
    of_rows: Int[Tensor, " c"] | None = None
    of_table: Int[Tensor, " c"] | None = None

    def read(self, rows: Float[Tensor, "n s"], fill: float = 0.0) -> Float[Tensor, "n w"]:
        """Returns the table with the values of the candidates, and ``fill`` in other cells."""
        if self.of_rows is None or self.of_table is None:
            return rows
        cells = rows.new_full((self.shape[0] * self.shape[1],), fill)
        return cells.index_copy_(0, self.of_table, rows.view(-1).index_select(0, self.of_rows)).view(self.shape)

    def write(self, table: Float[Tensor, "n w"], rows: Float[Tensor, "n s"]) -> None:
        """Writes the candidates of a table into ``rows``, which are zero."""
        if self.of_rows is None or self.of_table is None:
            rows.copy_(table)
        else:
            rows.view(-1).index_copy_(0, self.of_rows, table.view(-1).index_select(0, self.of_table))


class Weights(NamedTuple):
    """Weights p of the candidates of rows, and p^(2 - alpha), of which their derivatives consist."""

    places: Places
    p: Float[Tensor, "*g n w"]
    slopes: Float[Tensor, "*g n w"]


def weights_of(rows: Float[Tensor, "*g n s"], alpha: Alpha, iterations: int | None) -> Weights:
    """Returns the weights of rows of scores; with ``iterations``, by that many halvings. NaN stays NaN."""
    everywhere = Places((rows.size(-2), rows.size(-1)))
    if iterations is not None:
        shifted = (alpha - 1) * (rows - rows.amax(-1, keepdim=True))
        return normalised(everywhere, shifted, bisected(shifted, alpha, iterations), alpha)
    largest = maxima(rows)
    top = largest.amax(-1, keepdim=True)
    places, tau = everywhere, torch.full_like(top, -1)
    if rows.size(-1) > SHORT:
        tau = solved((alpha - 1) * (largest - top), alpha, tau)
        tau = tau - 4 * torch.finfo(tau.dtype).eps
        places = above(rows, top + tau / (alpha - 1)) if reads_at_once(rows) else everywhere
    shifted = (alpha - 1) * (places.read(rows, -torch.inf) - top)
    return normalised(places, shifted, solved(shifted, alpha, tau), alpha)


def maxima(rows: Float[Tensor, "*g n s"]) -> Float[Tensor, "*g n m"]:
    """Returns the largest scores of groups of keys, and those of the keys of no group."""
    groups = rows.size(-1) // GROUP
    grouped, others = rows.tensor_split([groups * GROUP], dim=-1)
    return torch.cat([grouped.unflatten(-1, (GROUP, groups)).amax(-2), others], dim=-1) if groups else rows


def above(rows: Float[Tensor, "n s"], bound: Float[Tensor, "n 1"]) -> Places:
    """Returns the places of the scores above a bound, those of NaN, and those that rounding puts below."""
    count, length = rows.shape
    bound = bound - 4 * torch.finfo(rows.dtype).eps * bound.abs()
    is_above = (rows <= bound).logical_not_()
    if 4 * is_above.count_nonzero() > rows.numel():  # to compute with all is then faster
        return Places((count, length))
    of_rows = is_above.view(-1).nonzero()[:, 0]
    row = of_rows.div(length, rounding_mode="floor")
    lengths = torch.bincount(row, minlength=count)
    width = int(lengths.max())
    shifts = torch.arange(count, device=rows.device) * width - (lengths.cumsum(0) - lengths)
    of_table = torch.arange(len(of_rows), device=rows.device) + shifts[row]
    return Places((count, width), of_rows, of_table)


def solved(shifted: Float[Tensor, "*g n w"], alpha: Alpha, tau: Float[Tensor, "*g n 1"]) -> Float[Tensor, "*g n 1"]:
    """Returns tau of scores that are multiplied with alpha - 1 and whose largest is zero, by Newton's method from a
    lower bound. It steps along the norm (sum of [s - tau]_+ ^ e) ^ (1 / e), e = 1 / (alpha - 1): that is convex
    in tau, so that no step leads beyond the root, and nearly linear.

    Where the norm is off by r, the step leaves an error of about r ^ min(e, 2), and no further one is needed. On a
    device, for which the host would have to wait, the number of steps is fixed.
    """
    exponent, eps = 1 / (alpha - 1), torch.finfo(shifted.dtype).eps
    stops = isinstance(exponent, float) and reads_at_once(shifted)
    enough = eps ** (1 / min(exponent, 2)) / 4 if isinstance(exponent, float) else 0.0
    for _ in range(STEPS if stops else STEPS_ELSEWHERE):
        distances = (shifted - tau).clamp_(min=0)
        slopes = powers(distances, exponent - 1)
        total = (slopes * distances).sum(-1, keepdim=True)
        off = 1 - total ** (-1 / exponent)
        step = off * total / slopes.sum(-1, keepdim=True)
        tau = tau + step
        if stops and not ((off.abs() > enough) & (step.abs() > eps)).any():
            break
    return tau


def bisected(shifted: Float[Tensor, "*g n s"], alpha: Alpha, iterations: int) -> Float[Tensor, "*g n 1"]:
    """Returns a lower bound of tau, by halvings of an interval that is as wide as the number of visible keys requires;
    the authors' code counts hidden keys too, so that padding changes its weights."""
    keys = shifted.isfinite().sum(-1, keepdim=True).to(shifted.dtype)
    tau, width = torch.full_like(keys, -1), 1 - keys ** (1 - alpha)
    for _ in range(iterations):
        width = width / 2
        total = ((shifted - tau - width).clamp(min=0) ** (1 / (alpha - 1))).sum(-1, keepdim=True)
        tau = torch.where(total >= 1, tau + width, tau)
    return tau


def normalised(places: Places, shifted: Float[Tensor, "*g n w"], tau: Float[Tensor, "*g n 1"], alpha: Alpha) -> Weights:
    """Returns weights that sum to one, which takes the rest of the error from those of tau."""
    exponent = 1 / (alpha - 1)
    distances = (shifted - tau).clamp_(min=0)
    slopes = powers(distances, exponent - 1)
    p = slopes * distances
    total = p.sum(-1, keepdim=True)
    return Weights(places, p / total, slopes * total ** (alpha - 2))


def powers(x: Float[Tensor, "*g n w"], exponent: float | Float[Tensor, "g 1 1"]) -> Float[Tensor, "*g n w"]:
    """Returns x^exponent where x is above zero, and zero elsewhere."""
    match exponent:
        case Tensor():
            return (x**exponent).masked_fill(x <= 0, 0.0)
        case 0.0:
            return (x > 0).to(x.dtype)
        case 1.0:
            return x
    return x**exponent
