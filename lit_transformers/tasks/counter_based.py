"""Random numbers that follow from counters alone, of rows, positions and updates (Salmon et al. 2011).

They are the same on all ranks, in any batch and with any padding, where those of a generator depend on who draws first.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["draw", "random_numbers", "scrambled", "uniform"]

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
"""The step between the numbers that are scrambled, as in SplitMix64 (Steele et al. 2014)."""


def scrambled(numbers: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Returns a bijection of 64-bit integers that looks random: the last function of SplitMix64. Products wrap
    around."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64)):
        numbers = (numbers ^ shifted(numbers, shift)) * factor
    return numbers ^ shifted(numbers, 31)


def shifted(numbers: Int[Tensor, "*n"], places: int) -> Int[Tensor, "*n"]:
    """Returns 64-bit integers shifted to the right with zeros from the left, where >> repeats the sign."""
    return (numbers >> places) & ((1 << (64 - places)) - 1)


def random_numbers(example: Int[Tensor, " b"], scored: Bool[Tensor, "b t"], step: int = 0) -> Int[Tensor, "b t"]:
    """Returns a pseudo-random number for each position, which follows from the ordinal of its row, the positions that
    are predicted in it, and ``step``, alone."""
    positions = torch.arange(1, scored.size(1) + 1, device=scored.device)
    row = scrambled(example) + (scrambled(positions) * scored).sum(dim=1)
    row = row + scrambled(torch.full((), step, device=row.device))
    return scrambled(row[:, None] + positions * GOLDEN)


def uniform(numbers: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Returns numbers from 0 to below 1 that are uniform where the 64-bit integers are."""
    return (numbers >> 11).double() * 2.0**-53 + 0.5


def draw(log_probabilities: Float[Tensor, "n v"], chance: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Returns for each row the symbol at which the sum of probabilities passes ``chance``, a number from 0 to below 1:
    a draw from the distribution, without gradient."""
    sums = log_probabilities.detach().double().exp().cumsum(dim=-1)
    symbols = torch.searchsorted(sums, (chance * sums[:, -1])[:, None], right=True)[:, 0]
    return symbols.clamp(max=log_probabilities.size(-1) - 1)  # a product may round up to the sum itself
