"""Ratios of the costs of arms, with intervals where the costs were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.judge.fairness import CHAIN, at_one_place, cost_of, counted_cost, mean_cost
from reports.judge.statistics import ConfidenceInterval, estimate
from reports.read.study import Run

__all__ = ["CostRatio", "cost_ratio", "is_measured"]

_WIDEST = 2.0
"""The largest ratio of the ends of an interval around 1 that is still informative.

A wider one shows neither which arm costs more nor that both cost the same.
"""


@dataclass(frozen=True)
class CostRatio:
    """A cost as a multiple of another.

    ``interval`` is the 95 % interval of a measured cost, None with fewer than two pairs of runs. A cost that is
    computed from a config, such as FLOPs, is exact and has no interval.
    """

    value: float
    measured: bool
    interval: ConfidenceInterval | None = None

    @property
    def informative(self) -> bool:
        """Whether the ratio is worth a sentence: it is exact, or its interval is narrow enough or excludes 1."""
        if self.interval is None:
            return not self.measured
        low, high = self.interval
        return not low <= 1 <= high or high <= _WIDEST * low


def is_measured(runs: Sequence[Run], key: str) -> bool:
    """Returns whether a cost was measured in any of these runs, rather than counted or computed from its config."""
    name = key.removeprefix(CHAIN)
    return any(run.record is not None and counted_cost(run.record, name) is None for run in runs)


def cost_ratio(mine: Sequence[Run], theirs: Sequence[Run], key: str) -> CostRatio | None:
    """Returns the cost of the first runs as a multiple of that of the second; None where either does not record it.

    Measured costs are compared by the logarithms of runs of the same seed, with Student's t over the seeds, and only of
    runs that were done in one place.
    """
    measured = is_measured([*mine, *theirs], key)
    if measured:
        mine, theirs = at_one_place({"mine": mine, "theirs": theirs}).values()
    first_mean, second_mean = mean_cost(mine, key), mean_cost(theirs, key)
    if first_mean is None or not second_mean:
        return None
    if not measured:
        return CostRatio(first_mean / second_mean, measured=False)
    logarithms = _paired_logarithms(mine, theirs, key)
    if len(logarithms) < 2:
        return CostRatio(first_mean / second_mean, measured=True)
    over_seeds = estimate(logarithms)
    # Measurements that are equal for all seeds, as those of memory may be, have no variance and thus no interval.
    low, high = over_seeds.interval or (over_seeds.difference, over_seeds.difference)
    return CostRatio(math.exp(over_seeds.difference), True, ConfidenceInterval(math.exp(low), math.exp(high)))


def _paired_logarithms(mine: Sequence[Run], theirs: Sequence[Run], key: str) -> list[float]:
    """Returns the logarithms of the cost ratios at common finished seeds; empty if any cost is not positive."""
    first_costs, second_costs = (
        {run.seed: cost for run in runs if run.missing is None and (cost := cost_of(run, key)) is not None}
        for runs in (mine, theirs)
    )
    pairs = [(first_costs[seed], second_costs[seed]) for seed in sorted(first_costs.keys() & second_costs.keys())]
    return [math.log(a / b) for a, b in pairs] if all(a > 0 and b > 0 for a, b in pairs) else []
