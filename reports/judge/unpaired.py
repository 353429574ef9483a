"""Arms whose seeds have nothing in common: two independent samples in place of paired differences.

The variance of the difference is the sum of the variances of both means, with the degrees of freedom of Welch (1947)
and Satterthwaite (1946), so arms may vary differently and have different numbers of seeds. Widening, documents, looks
and Holm's correction are those of paired differences. In place of a permutation of signs, labels are permuted, of the
studentized difference (Janssen 1997), which stays valid where variances differ and many seeds are there.

Arms of several tasks are one sample: a run has a value in every task, and these vary together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from reports.judge.statistics import (
    DRAWN_SIGNS,
    LEVEL,
    Array,
    ConfidenceInterval,
    PairedDifference,
    Resampled,
    Variances,
)

__all__ = ["Samples", "can_permute", "estimate_unpaired", "permutation_p"]

Samples = tuple[Sequence[float], Sequence[float]]
"""The values of both sides of a comparison, one for each seed."""

_MOST_EXACT = 20_000
_LEAST_SPREAD = 1e-12


def estimate_unpaired(
    samples: Samples,
    resampled: Resampled | None = None,
    level: float = LEVEL,
    widening: float = 1.0,
    counted: float = 0,
) -> PairedDifference:
    """Returns the difference of the means of two independent samples with its interval, which is None where a sample
    has one value or no value of both varies. ``seeds`` is the number of the smaller sample.

    Arguments: as of ``estimate``. Raises ValueError where a value is not finite.
    """
    one, other = (np.asarray(sample, dtype=np.float64) for sample in samples)
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise ValueError("a value is not finite, so nothing can be said of how far it varies")
    seeds, mean = min(len(one), len(other)), float(one.mean() - other.mean())
    largest = max(float(np.abs(one).max()), float(np.abs(other).max()), 1.0)
    if seeds < 2 or max(np.ptp(one), np.ptp(other)) <= _LEAST_SPREAD * largest:
        return PairedDifference(mean, seeds)
    parts = [float(sample.var(ddof=1)) / len(sample) for sample in (one, other)]
    total = sum(parts)
    freedom = total**2 / sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, (one, other), strict=True))
    document, document_freedom = Variances.of_documents(resampled, counted)
    variances = Variances(seeds, total * seeds, document, document_freedom, widening, freedom / (seeds - 1))
    half, over_seeds = variances.half_width(level), Variances(seeds, total * seeds, 0.0, 1.0, 1.0, variances.freedoms)
    width = over_seeds.half_width(LEVEL)
    return PairedDifference(
        difference=mean,
        seeds=seeds,
        interval=ConfidenceInterval(mean - half, mean + half),
        over_seeds=ConfidenceInterval(mean - width, mean + width),
        p=variances.p(mean),
        variances=variances,
    )


def can_permute(samples: Samples) -> bool:
    """Returns whether there are enough values that a permutation of labels can decide at 5 %."""
    return 2 / comb(len(samples[0]) + len(samples[1]), len(samples[0])) < LEVEL


def permutation_p(samples: Samples, margin: float | None = None) -> float:
    """Returns the p-value of the permutation of labels: that both samples are alike or, with a margin, that they lie it
    apart. It is exact up to 20,000 permutations; beyond, it takes as many draws."""
    one, other = (np.asarray(sample, dtype=np.float64) for sample in samples)
    if margin is not None:
        return max(_one_sided(one + margin, other), _one_sided(-one + margin, -other))
    return min(1.0, 2 * min(_one_sided(one, other), _one_sided(other, one)))


def _one_sided(larger: Array, smaller: Array) -> float:
    """Returns the share of labels with which the studentized difference is at least as large as observed, which counts
    as drawn."""
    values, first = np.concatenate([larger, smaller]), len(larger)
    chosen = _labels(first, len(smaller))
    statistics = _studentized(values - values.mean(), chosen, first)
    observed = float(_studentized(values - values.mean(), np.arange(len(values))[None] < first, first)[0])
    count = int(np.count_nonzero(statistics >= observed - 1e-9 * abs(observed)))
    is_exact = comb(len(values), first) <= _MOST_EXACT
    return count / len(chosen) if is_exact else (count + 1) / (len(chosen) + 1)


def _studentized(values: Array, chosen: NDArray[np.bool_], first: int) -> Array:
    """Returns the difference of the means of the chosen values and of the others in standard errors [labels]. Where
    neither part varies, it is as large as the smallest spread allows."""
    rest = len(values) - first
    sums, squares = chosen @ values, chosen @ values**2
    others, other_squares = values.sum() - sums, (values**2).sum() - squares
    mean, other_mean = sums / first, others / rest
    variance = np.maximum(squares / first - mean**2, 0) / max(first - 1, 1)
    variance = variance + np.maximum(other_squares / rest - other_mean**2, 0) / max(rest - 1, 1)
    least = _LEAST_SPREAD * float((values**2).mean())
    statistics: Array = (mean - other_mean) / np.sqrt(np.maximum(variance, least or 1.0))
    return statistics


@lru_cache(maxsize=8)
def _labels(first: int, rest: int) -> NDArray[np.bool_]:
    """Returns which values are of the first sample, of all permutations [labels, values] or of drawn ones."""
    total = first + rest
    if comb(total, first) > _MOST_EXACT:
        drawn = np.random.default_rng(4).random((DRAWN_SIGNS, total))
        return np.asarray(np.argsort(np.argsort(drawn, axis=1), axis=1) < first)
    labels = np.zeros((comb(total, first), total), bool)
    for row, indices in enumerate(combinations(range(total), first)):
        labels[row, list(indices)] = True
    return labels
