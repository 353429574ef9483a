"""Whether the seeds of a study vary nearly normally, as Student's t assumes.

Where some seeds of an arm learn late, or differences are skewed, few seeds look alike by chance: those that would show
it are not among them. Their t intervals are then too narrow, and no computation on these seeds alone can tell. So the
normal interval is used only where all differences of a study together show that they are near normal: arms with at
least ``FEWEST`` seeds, and at least ``ENOUGH`` degrees of freedom over all arms. Elsewhere intervals are ``WIDENING``
times as wide, which holds the error of a family at 7 % for normal, t3 and lognormal differences and for one seed in ten
or twenty that lies ten standard deviations off, at 2 to 24 seeds and 1 to 20 comparisons.

The test has three statistics, each at a level of 2 %: the mean square of the skewnesses of arms; the mean of these
skewnesses, for a baseline that all arms share skews all of them alike; and the largest deviation. Their distribution
under normal seeds is simulated for the arms and seeds of the study, with a baseline in common.
``python -m claims measure error_rates`` measures the errors of the whole judgement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from reports.judge.statistics import Array

__all__ = ["ENOUGH", "FEWEST", "WIDENING", "is_near_normal", "seeds_to_show"]

WIDENING = 2.5
"""How many times as wide an interval is where near-normal seeds are not shown."""
FEWEST = 10
"""The fewest seeds of an arm whose differences can show that they are near normal."""
ENOUGH = 50
"""The fewest degrees of freedom of all differences together that can show it."""

_LEVEL = 0.02
_DRAWS = 4000
_ROUNDED = 1e-12


def is_near_normal(differences: Sequence[Sequence[float]], independent: bool = False) -> bool:
    """Returns whether differences are shown to be near normal. differences: of each arm, one for each seed.

    independent: they are the values of arms that have no baseline in common.
    """
    samples = [np.asarray(one, dtype=np.float64) for one in differences if len(one) >= FEWEST]
    samples = [one for one in samples if np.ptp(one) > _ROUNDED * max(1.0, float(np.abs(one).max()))]
    if sum(len(one) - 1 for one in samples) < ENOUGH:
        return False
    limits = _limits(tuple(sorted(map(len, samples))), independent)
    return bool(np.all(_statistics([one[None] for one in samples])[:, 0] <= limits))


def seeds_to_show(arms: int) -> int:
    """Returns how many seeds it takes to show that the differences of this many arms are near normal."""
    return max(FEWEST, -(-ENOUGH // max(arms, 1)) + 1)


def _statistics(samples: Iterable[Array]) -> Array:
    """Returns the three statistics [3, draws] of samples, each [draws, seeds], of which one is in memory at a time."""
    count, squares, skews, largest = 0, np.zeros(1), np.zeros(1), np.zeros(1)
    for sample in samples:
        deviations = sample - sample.mean(axis=1, keepdims=True)
        scores = deviations / sample.std(axis=1, keepdims=True)
        skewness = (scores * scores * scores).mean(axis=1)
        squares, skews = squares + skewness**2, skews + skewness
        count += 1
        largest = np.maximum(largest, np.abs(scores).max(axis=1) / np.sqrt(sample.shape[1] - 1))
    return np.array([squares / count, np.abs(skews) / count, largest])


@lru_cache(maxsize=64)
def _limits(seeds: tuple[int, ...], independent: bool) -> Array:
    """Returns the values that the statistics of normal seeds exceed at the level, each. seeds: of each arm."""
    generator = np.random.default_rng(0)
    baseline = generator.standard_normal((_DRAWS, max(seeds))) * (not independent)
    samples = (generator.standard_normal((_DRAWS, count)) - baseline[:, :count] for count in seeds)
    limits: Array = np.quantile(_statistics(samples), 1 - _LEVEL, axis=1)
    return limits
