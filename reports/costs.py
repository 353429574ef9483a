"""What arms cost beside each other: a multiple, and how sure it is where it was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.fairness import cost_of, mean_cost
from reports.records import Run
from reports.statistics import Interval, estimate

__all__ = ["CostRatio", "cost_ratio", "is_measured"]

_WIDEST = 2.0
"""An interval around one whose ends lie further apart tells neither which costs more nor that both cost the same."""


@dataclass(frozen=True)
class CostRatio:
    """A cost as a multiple of another; ``interval`` at 95 % where it was measured, None where in fewer than two pairs.

    What is computed from a config, such as FLOPs, is exact and has no interval.
    """

    value: float
    measured: bool
    interval: Interval | None = None

    @property
    def informative(self) -> bool:
        """Whether it can be said in a sentence: it is exact, or its interval says something."""
        if self.interval is None:
            return not self.measured
        low, high = self.interval
        return not low <= 1 <= high or high <= _WIDEST * low


def is_measured(runs: Sequence[Run], key: str) -> bool:
    """Whether a cost was measured in any of these runs, and not computed from its config."""
    return any(run.record is not None and run.record.cost.get(key) is None for run in runs)


def cost_ratio(mine: Sequence[Run], theirs: Sequence[Run], key: str) -> CostRatio | None:
    """What the first runs cost as a multiple of the second; None where either does not tell.

    What was measured is compared by logarithms of runs of the same seed, with Student's t over the seeds.
    """
    one, other = mean_cost(mine, key), mean_cost(theirs, key)
    if one is None or not other:
        return None
    if not is_measured([*mine, *theirs], key):
        return CostRatio(one / other, measured=False)
    logarithms = _paired_logarithms(mine, theirs, key)
    if len(logarithms) < 2:
        return CostRatio(one / other, measured=True)
    over_seeds = estimate(logarithms)
    # A machine that measures the same every time, as it may of memory, has no variance between seeds.
    low, high = over_seeds.interval or (over_seeds.difference, over_seeds.difference)
    return CostRatio(math.exp(over_seeds.difference), True, Interval(math.exp(low), math.exp(high)))


def _paired_logarithms(mine: Sequence[Run], theirs: Sequence[Run], key: str) -> list[float]:
    """Of the ratios at the seeds that both finished; none where a cost among them is not positive."""
    one, other = (
        {run.seed: cost for run in runs if run.missing is None and (cost := cost_of(run, key)) is not None}
        for runs in (mine, theirs)
    )
    pairs = [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]
    return [math.log(a / b) for a, b in pairs] if all(a > 0 and b > 0 for a, b in pairs) else []
