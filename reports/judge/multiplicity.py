"""Which statements about the comparisons of a study hold, at a family-wise error of 5 % over all of them together.

A comparison may be called different, or equal: within plus and minus the study's margin. Both may be true, of a
difference that is small, or false. Holm's procedure raises the level of the other comparisons with each hypothesis that
it rejects, because that one can no longer be true. Whoever shows by it that a comparison is equal has rejected that its
difference is large, not that it is zero, and the other error is still to be made: one family for both kinds of
statement would err in up to 5 % · (1 + 1/2 + ... + 1/n) of studies. So each kind is a separate family with a share of
the error, and Holm's procedure within it: the two errors add up (Bonferroni). A comparison by itself cannot have both
errors, for no difference is both zero and large, so of a single comparison each kind has the whole 5 %.

Where seeds are added after a look at the results, each look has a share of the error that was fixed beforehand, and a
hypothesis is rejected at a look if Holm's procedure at that share rejects it, those rejected before counting as such.
This is a group-sequential Holm procedure (Maurer and Bretz 2013; Tamhane et al. 2021, doi:10.1002/sim.9128). The shares
follow the error spending of Hwang, Shih and DeCani (1990) with the parameter -1, and add up to one: the levels are
those of Bonferroni over looks, not those that normal tests with known correlations would have. At three seeds the
statistic has two degrees of freedom, and documents are shared by all looks, so that no correlation is known that would
hold. Because the sum of the shares bounds the error of a hypothesis, it is at most 5 % whenever and why ever one stops,
and an interval at the level of its look covers the truth at all looks together: repeated confidence intervals (Jennison
and Turnbull 1989).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from lit_transformers.records.plan import LookPlan
from reports.judge.statistics import LEVEL, holm, levels, quantile

__all__ = [
    "WHOLE",
    "ErrorShares",
    "Look",
    "Tested",
    "added_looks",
    "cost_of_added_looks",
    "error_shares",
    "look_shares",
    "looks_ahead",
    "looks_taken",
    "spent",
    "step_down",
]

SPENDING = -1.0
"""The parameter of the error spending: below -1 the first looks decide less, above it all looks together do."""


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


class Look(NamedTuple):
    """A look at the results: the number of ``seeds`` that an arm has at it at most, None for all, and its ``share`` of
    the error."""

    seeds: int | None
    share: float


WHOLE = Look(None, 1.0)
"""The look of a study that is judged once."""


def spent(fraction: float) -> float:
    """Returns the share of the error that is spent by a fraction of the seeds, by Hwang, Shih and DeCani (1990,
    doi:10.1002/sim.4780091207)."""
    return math.expm1(-SPENDING * fraction) / math.expm1(-SPENDING)


def look_shares(looks: LookPlan) -> dict[int, float]:
    """Returns the share of the error of each look, planned or taken, by its number of seeds.

    The planned ones share the error by its spending. Each one that was added by hand takes as much as it would have if
    all looks had equal shares, and the planned ones become smaller in proportion.
    """
    ends = [spent(seeds / looks.planned[-1]) for seeds in looks.planned]
    added = added_looks(looks)
    count = len(ends) + len(added)
    planned = zip(looks.planned, [0.0, *ends], ends, strict=False)
    shares = {seeds: (end - start) * len(ends) / count for seeds, start, end in planned}
    return shares | dict.fromkeys(added, 1 / count)


def looks_taken(looks: LookPlan | None) -> tuple[Look, ...]:
    """Returns the looks that a study has taken, with their shares of the error; without a plan of looks, the one."""
    if looks is None:
        return (WHOLE,)
    shares = look_shares(looks)
    return tuple(Look(seeds, shares[seeds]) for seeds in looks.taken)


def looks_ahead(looks: LookPlan | None) -> tuple[Look, ...]:
    """Returns the looks that a study can take next: those that are left of the planned ones, each with its share of the
    error, and then one that is added by hand, at any number of seeds."""
    if looks is None:
        return (Look(None, 1 / 2),)
    shares, last = look_shares(looks), max(looks.taken, default=0)
    left = tuple(Look(seeds, shares[seeds]) for seeds in looks.planned if seeds > last)
    return (*left, Look(None, 1 / (len(shares) + 1)))


def added_looks(looks: LookPlan) -> list[int]:
    """Returns the looks that were added by hand, each by its number of seeds."""
    return [seeds for seeds in looks.taken if seeds not in looks.planned]


def cost_of_added_looks(looks: LookPlan | None) -> str | None:
    """Returns a sentence on the cost of seeds that were added by hand, or None where none were."""
    if looks is None or not (added := added_looks(looks)):
        return None
    last = looks_taken(looks)[-1]
    assert last.seeds is not None
    width = quantile(last.seeds - 1, LEVEL * last.share) / quantile(last.seeds - 1, LEVEL)
    share = (
        f"this one has {last.share:.0%} of the error, and its intervals are {width:.2f} times as wide as with "
        f"{last.seeds} seeds from the start."
    )
    earlier = " and ".join(map(str, looks.taken[:-1]))
    if not earlier:
        planned = " and ".join(map(str, looks.planned))
        return (
            f"The looks were planned at {planned} seeds, and the first one was taken by hand at {last.seeds}: {share}"
        )
    both = LEVEL * (1 + sum(1 / (len(looks.planned) + number) for number in range(1, len(added) + 1)))
    return (
        f"Seeds were added by hand after a report of {earlier}, which counts as a look: {share} "
        "Verdicts of an earlier report that are not among these no longer hold; those of all reports together err in "
        f"up to {both:.1%} of studies."
    )


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
