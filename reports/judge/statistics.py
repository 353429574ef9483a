"""Intervals and p-values of paired differences over a few seeds and many documents.

Every run of a study is evaluated on the same documents, so seeds and documents are crossed: of a paired difference at
seed s and document d, ``difference + seed[s] + document[d] + rest[s, d]``, the document's part is shared by all seeds
and does not shrink with more of them. Documents are therefore resampled once for all seeds and arms (the pigeonhole
bootstrap, Owen 2007, doi:10.1214/07-AOAS122), not anew within each seed, which would count a document once per seed.

A percentile bootstrap over two to five seeds is too narrow, whatever the number of resamples: at three seeds it
covers the truth about three times in four. The interval that decides a verdict takes its quantile from Student's t
instead, for the sum of two variances: ``seed`` of the mean over seeds (seeds - 1 degrees of freedom) and ``document``
(documents - 1). Its half-width is the larger of

    t(freedom) · sqrt(seed + document)       with the degrees of freedom of Welch and Satterthwaite (1946)
    t(seeds - 1) · sqrt(seed)                which takes the documents as fixed

because the first alone is too narrow where a small variance between documents is added to a larger one between three
seeds: it covers 92.2 % there. The larger covers 94.2 to 96.7 % for three seeds or more, with normal parts and any share
of the two (the tests require 93 to 97 % through the whole chain of resampling); at two seeds it covers up to 98.4 %.
Few documents whose differences are skewed cover less, as any small sample does: 92 % with 20 of an exponential
distribution.

The variance ``seed`` includes that of the rest; ``document`` is the mean covariance of two seeds' differences over
resampled documents, which includes the shared part alone, so nothing counts twice.

Where documents differ in size and their own values vary equally, resampling makes ``document`` too small by the factor
``1 - 2 sum(share³) / sum(share²) + sum(share²)``, by which it is divided; for equal shares this is the known
(documents - 1) / documents. For a document that holds a quarter or more of the total size, resampling cannot show how
far its own value may vary, and the interval would cover the truth 98 % of the time or more. In that case ``document``
is the variance between the documents' own values, all weighted equally, times the sum of squared shares: the large
document is assumed to vary as the others do. Where short documents vary more than it, the interval is too wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtrinc, stdtrit

Array = NDArray[np.float64]

RESAMPLES = 10_000
LEVEL = 0.05
POWER = 0.8
POWER_OF_AN_END = (1 + POWER) / 2
"""The power for one end of an interval with which both ends together have a power of 0.8."""
MOST_SEEDS = 1000
MOST_GROUPS = 512
DOMINANT = 1 / 4
"""The share of the total size from which on a single document is too large for resampling."""
_CHUNK = 1024
_LEAST_P = 1e-12


class ConfidenceInterval(NamedTuple):
    """The ends of a confidence interval, in units of the metric."""

    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference:
    """A paired difference, in units of the metric, with its intervals and p-value.

    ``interval`` decides verdicts; ``over_seeds`` (Student's t, documents fixed) and ``bootstrap`` (percentiles over
    seeds and documents) are for comparison. All three and ``p`` are None for a single seed and where all seeds
    give the same difference.
    """

    difference: float
    seeds: int
    interval: ConfidenceInterval | None = None
    over_seeds: ConfidenceInterval | None = None
    bootstrap: ConfidenceInterval | None = None
    p: float | None = None
    variances: Variances | None = None

    def p_within(self, margin: float) -> float | None:
        """Returns the level at which the interval just lies within plus and minus a margin: 1 if the difference does
        not, None where there is no interval. Half of it is the p-value of two one-sided tests (Schuirmann 1987)."""
        room = margin - abs(self.difference)
        return None if self.variances is None else self.variances.p(room) if room > 0 else 1.0

    def seeds_within(self, margin: float, level: float = LEVEL) -> int | None:
        """Returns how many seeds would show with a power of 0.8 that the observed difference lies within a margin.

        None where up to 1,000 would not.
        """
        room = margin - abs(self.difference)
        return self.variances.seeds_needed(room, level, POWER_OF_AN_END) if self.variances and room > 0 else None

    def detectable(self, level: float = LEVEL) -> float | None:
        """Returns the smallest difference that this many seeds detect at a level with a power of 0.8."""
        return self.variances.detectable(self.seeds, level) if self.variances else None

    def seeds_needed(self, level: float = LEVEL) -> int | None:
        """Returns how many seeds would detect the observed difference with a power of 0.8.

        None where up to 1,000 would not, as with too few documents.
        """
        return self.variances.seeds_needed(self.difference, level) if self.variances else None


@dataclass(frozen=True)
class Resampled:
    """A difference at resampled documents, ``values`` [resamples, seeds], and the documents' ``sizes`` [documents].

    ``deviations`` [documents, seeds] holds by how much each document's own difference lies off that of all documents;
    it is needed only where one document dominates. Raises ValueError for values that are not finite, which have no
    variance.
    """

    values: Array
    sizes: Array
    deviations: Array | None = None

    def __post_init__(self) -> None:
        for numbers in (self.values, self.sizes, *([] if self.deviations is None else [self.deviations])):
            _require_finite(numbers, "a difference at resampled documents")

    def variance(self) -> float:
        """Returns the variance between documents that all seeds share, of the mean over documents."""
        squared = float((self.shares**2).sum())
        if self.deviations is not None:
            return _shared_covariance(self.deviations[self.sizes > 0]) * squared
        return _shared_covariance(self.values) / (1 - 2 * float((self.shares**3).sum()) / squared + squared)

    @property
    def freedom(self) -> float:
        """The degrees of freedom of the variance."""
        count = effective_count(self.sizes) if self.deviations is None else float((self.sizes > 0).sum())
        return max(1.0, count - 1)

    @property
    def shares(self) -> Array:
        """The share of each document in the total size [documents]."""
        return self.sizes / self.sizes.sum()


def dominates(sizes: Array) -> bool:
    """Returns whether one document holds a quarter or more of the total size."""
    return bool(sizes.max() >= DOMINANT * sizes.sum())


def _require_finite(numbers: Array, what: str) -> None:
    """Raises ValueError for numbers that are not finite.

    They would go unnoticed later: Python's ``max(0.0, nan)`` is 0.0, and ``nan > 1`` is False.
    """
    if not np.isfinite(numbers).all():
        raise ValueError(f"{what} is not finite, so nothing can be said of how far it varies")


def _shared_covariance(values: Array) -> float:
    """Returns the mean covariance between two seeds of values [n, seeds], or zero where it is negative."""
    deviations = values - values.mean(axis=0)
    products = deviations.T @ deviations / (len(values) - 1)
    _require_finite(products, "a covariance of two seeds")
    seeds = len(products)
    return max(0.0, float(products.sum() - np.trace(products)) / (seeds * (seeds - 1)))


def estimate(
    differences: Sequence[float] | Array, resampled: Resampled | None = None, level: float = LEVEL
) -> PairedDifference:
    """Returns the mean of paired differences, one per seed, with intervals; without documents they cover seeds only.

    level: that of the interval which decides verdicts. Raises ValueError where a difference is not finite.
    """
    pairs = np.asarray(differences, dtype=np.float64)
    _require_finite(pairs, "a paired difference")
    seeds = len(pairs)
    mean = float(pairs.mean())
    if seeds < 2 or np.ptp(pairs) <= 1e-12 * max(1.0, float(np.abs(pairs).max())):
        return PairedDifference(mean, seeds)
    variances = Variances.measure(pairs, resampled)
    over_seeds = variances.half_width(LEVEL, documents=False)
    return PairedDifference(
        difference=mean,
        seeds=seeds,
        interval=_interval_around(mean, variances.half_width(level)),
        over_seeds=_interval_around(mean, over_seeds),
        bootstrap=_percentiles(pairs, resampled),
        p=variances.p(mean),
        variances=variances,
    )


@dataclass(frozen=True)
class Variances:
    """The variances of a mean difference.

    ``seed`` is that of a single seed, which is divided by the number of seeds; ``document`` is that of the documents,
    which all seeds share.
    """

    seeds: int
    seed: float
    document: float
    document_freedom: float

    @classmethod
    def measure(cls, pairs: Array, resampled: Resampled | None) -> Variances:
        seed = float(pairs.var(ddof=1))
        if resampled is None or (resampled.sizes > 0).sum() < 2:
            return cls(len(pairs), seed, 0.0, math.inf)
        return cls(len(pairs), seed, resampled.variance(), resampled.freedom)

    def half_width(self, level: float, documents: bool = True) -> float:
        """Returns half of the interval at a level such as 0.05; without documents, of Student's t over seeds."""
        return self._scaled_error(self.seeds, lambda freedom: quantile(freedom, level), documents)

    def _scaled_error(self, seeds: int, factor: Callable[[float], float], documents: bool = True) -> float:
        """Returns the standard error of the mean over this many seeds times ``factor`` of its degrees of freedom.

        It is the larger of the two half-widths of the module's docstring.
        """
        seed = self.seed / seeds
        fixed = factor(seeds - 1) * math.sqrt(seed)
        if not (documents and self.document):
            return fixed
        total = seed + self.document
        freedom = total**2 / (seed**2 / (seeds - 1) + self.document**2 / self.document_freedom)
        return max(factor(freedom) * math.sqrt(total), fixed)

    def p(self, difference: float) -> float:
        """Returns the p-value: the level at which the interval just touches zero, at least 1e-12."""
        low, high = math.log(_LEAST_P), 0.0
        if self.half_width(_LEAST_P) <= abs(difference):
            return _LEAST_P
        for _ in range(60):
            middle = (low + high) / 2
            if self.half_width(math.exp(middle)) > abs(difference):
                low = middle
            else:
                high = middle
        return math.exp(high)

    def detectable(self, seeds: int, level: float = LEVEL, power: float = POWER) -> float:
        """Returns the smallest difference whose interval over this many seeds excludes zero with this power."""
        return self._scaled_error(seeds, lambda freedom: _detectable_shift(freedom, level, power))

    def seeds_needed(self, difference: float, level: float = LEVEL, power: float = POWER) -> int | None:
        """Returns the smallest number of seeds that detects ``difference`` with this power, or None above 1,000."""
        if self.detectable(MOST_SEEDS, level, power) > abs(difference):
            return None
        few, enough = 1, MOST_SEEDS
        while enough - few > 1:
            middle = (few + enough) // 2
            is_enough = self.detectable(middle, level, power) <= abs(difference)
            few, enough = (few, middle) if is_enough else (middle, enough)
        return enough


def resampled_sums(columns: Array, resamples: int = RESAMPLES, seed: int = 0) -> Array:
    """Returns sums of ``columns`` [documents, k] over documents drawn with replacement, the same ones for all columns.

    The result is [resamples, k]; the draws depend on ``seed`` and the number of documents only.
    """
    sums: Array = _draw_counts(len(columns), resamples, seed) @ columns
    return sums


@lru_cache(maxsize=1)
def _draw_counts(documents: int, resamples: int, seed: int) -> Array:
    """Returns how often each document is drawn [resamples, documents]; cached, for all runs of a study use the same."""
    generator = np.random.default_rng(seed)
    counts = np.empty((resamples, documents))
    for start in range(0, resamples, _CHUNK):
        rows = min(_CHUNK, resamples - start)
        indices = generator.integers(0, documents, (rows, documents)) + documents * np.arange(rows)[:, None]
        times = np.bincount(indices.ravel(), minlength=rows * documents)
        counts[start : start + rows] = times.reshape(rows, documents)
    return counts


def grouped(columns: Array, seed: int = 0) -> Array:
    """Pools the rows of ``columns`` [documents, k] at random into at most 512.

    More than 511 degrees of freedom bring nothing, and resampling costs no more for a larger corpus.
    """
    if len(columns) <= MOST_GROUPS:
        return columns
    order = np.random.default_rng(seed).permutation(len(columns))
    starts = np.linspace(0, len(columns), MOST_GROUPS, endpoint=False).astype(np.intp)
    return np.add.reduceat(columns[order], starts, axis=0)


def effective_count(weights: Array) -> float:
    """Returns the effective number of documents, the number of equal ones that carry as much: (sum w)² / sum w²."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def holm(values: Sequence[float]) -> list[float]:
    """Returns Holm's adjusted p-values (Holm 1979) in the order given: reject those below the level, however many."""
    order = np.argsort(values, kind="stable")
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = highest
    return adjusted


def levels(values: Sequence[float]) -> list[float]:
    """Returns the level that each p-value has to lie below by Holm's correction.

    For p-values that are not rejected it is the level of the next one to be rejected.
    """
    rejected = sum(p < LEVEL for p in holm(values))
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return [LEVEL / (len(values) - min(int(rank), rejected)) for rank in ranks]


def _interval_around(middle: float, half_width: float) -> ConfidenceInterval:
    return ConfidenceInterval(middle - half_width, middle + half_width)


def _percentiles(pairs: Array, resampled: Resampled | None) -> ConfidenceInterval:
    values = np.broadcast_to(pairs, (RESAMPLES, len(pairs))) if resampled is None else resampled.values
    means = np.take_along_axis(values, _draw_seeds(values.shape), axis=1).mean(axis=1)
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
    return ConfidenceInterval(float(low), float(high))


@lru_cache(maxsize=8)
def _draw_seeds(shape: tuple[int, int]) -> NDArray[np.int64]:
    """Returns the seeds in each resample [resamples, seeds]; cached, for all comparisons use the same."""
    return np.random.default_rng(1).integers(0, shape[1], shape)


def quantile(freedom: float, level: float) -> float:
    """Returns the half-width of Student's two-sided interval at a level such as 0.05, in standard errors."""
    return abs(float(stdtrit(freedom, level / 2)))


@cache
def _detectable_shift(freedom: float, level: float, power: float) -> float:
    """Returns how many standard errors from zero a mean must lie to be detected at the level with this power.

    It is the noncentrality of a noncentral t distribution.
    """
    return float(nctdtrinc(min(freedom, 1e6), 1 - power, quantile(freedom, level)))
