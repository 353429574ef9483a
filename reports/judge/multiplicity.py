"""Which statements about the comparisons of a study hold, at a family-wise error of 5 % over all of them together.

A comparison may be called different, or equal: within plus and minus the study's margin. Both may be true, of a
difference that is small, or false. Holm's procedure raises the level of the other comparisons with each hypothesis that
it rejects, because that one can no longer be true. Whoever shows by it that a comparison is equal has rejected that its
difference is large, not that it is zero, and the other error is still to be made: one family for both kinds of
statement would err in up to 5 % · (1 + 1/2 + ... + 1/n) of studies. So each kind is a family of its own with a share of
the error, and Holm's procedure within it: the two errors add up (Bonferroni). A comparison by itself cannot have both
errors, for no difference is both zero and large, so of a single comparison each kind has the whole 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reports.judge.statistics import holm, levels

__all__ = ["ErrorShares", "Tested", "error_shares", "step_down"]


class ErrorShares(NamedTuple):
    """The levels of both kinds of statement as shares of 5 %. ``equality`` is that of two-sided intervals, so that half
    of it is the error of calling a comparison equal: its difference can be too large at one end alone."""

    difference: float
    equality: float


class Tested(NamedTuple):
    """The outcome of a hypothesis: its adjusted p-value, rejected below 5 %, and the level that its own p-value has to
    lie below."""

    adjusted: float
    level: float


def error_shares(comparisons: int, margin: float | None) -> ErrorShares:
    """Returns the shares of a study with this many comparisons; without a margin differences have the whole error.

    Of several comparisons, differences have 3 % and equality 2 %. With more for differences, fewer comparisons of
    simulated studies were decided by three to sixteen seeds; with less, differences took more seeds.
    """
    if margin is None:
        return ErrorShares(1.0, 0.0)
    return ErrorShares(1.0, 1.0) if comparisons == 1 else ErrorShares(0.6, 0.8)


def step_down(p_values: Mapping[int, float], standing: int, share: float) -> dict[int, Tested]:
    """Tests hypotheses by Holm's procedure at a share of 5 %.

    p_values: those of the hypotheses that are tested now, by comparison. standing: how many hypotheses of the family
    have not been rejected before, those that are not tested now among them.
    """
    absent = [float("inf")] * (standing - len(p_values))
    shared = [p / share for p in p_values.values()] + absent
    outcomes = zip(p_values, holm(shared), levels(shared), strict=False)
    return {index: Tested(adjusted, level * share) for index, adjusted, level in outcomes}
