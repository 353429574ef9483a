"""How sure a difference is, given a few seeds and many documents.

Every run of a study is evaluated on the same documents, so seeds and documents are crossed: of a paired difference at
seed s and document d, ``difference + seed[s] + document[d] + rest[s, d]``, the second part is shared by all seeds and
does not shrink with more of them. Documents are therefore resampled once for all seeds and arms (the pigeonhole
bootstrap, Owen 2007, doi:10.1214/07-AOAS122), not anew within each seed, which would count a document once per seed.

A percentile bootstrap over two to five seeds is too narrow, whatever the number of resamples: at three seeds it
covers the truth about three times in four. The interval that decides a verdict takes its quantile from Student's t
instead, for the sum of two variances: ``seed`` of the mean over seeds (seeds - 1 degrees of freedom) and ``document``
(documents - 1). Its half-width is the larger of

    t(freedom) · sqrt(seed + document)       with the degrees of freedom of Welch and Satterthwaite (1946)
    t(seeds - 1) · sqrt(seed)                which takes the documents as fixed

for the first alone is too narrow where a small variance between documents joins a larger one between three seeds: it
covers 92.2 % there. The larger covers 94.2 to 96.7 % for three seeds or more, normal parts and any share of the two
(the tests hold it to 93 to 97 % through the whole chain of resampling); at two seeds up to 98.4 %. Few documents whose
differences are skewed cover less, as any small sample does: 92 % with 20 of an exponential distribution.

The variance ``seed`` holds the rest too; ``document`` is the mean covariance of two seeds' differences over resampled
documents, which holds the shared part alone: nothing counts twice.

Where documents are of unequal size and their own values vary alike, resampling makes ``document`` too small, by
``1 - 2 sum(share³) / sum(share²) + sum(share²)``, which it is divided by; for equal shares that is the known
(documents - 1) / documents. A document that holds a quarter or more of all cannot tell by resampling how far its own
value may lie off, and the interval would hold the truth 98 % of the time and more. There ``document`` is the variance
between the documents' own values, all documents alike, times the sum of squared shares: the large one is taken to vary
as the others do. Where short documents vary more than it, that is too careful.
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
MOST_SEEDS = 1000
MOST_GROUPS = 512
DOMINANT = 1 / 4
"""The share of all that makes a document one that resampling is no guide to."""
_CHUNK = 1024
_LEAST_P = 1e-12


class Interval(NamedTuple):
    """Both ends of an interval, in units of the metric."""

    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A paired difference, in units of the metric, and what is known of it.

    ``interval`` decides; ``over_seeds`` (Student's t, documents fixed) and ``bootstrap`` (percentiles over seeds and
    documents) stand beside it. All three and ``p`` are None for a single seed, and where no seed differs from another.
    """

    difference: float
    seeds: int
    interval: Interval | None = None
    over_seeds: Interval | None = None
    bootstrap: Interval | None = None
    p: float | None = None
    variances: Variances | None = None

    def detectable(self, level: float = LEVEL) -> float | None:
        """The smallest difference that this many seeds show at a level, four times out of five."""
        return self.variances.detectable(self.seeds, level) if self.variances else None

    def seeds_needed(self, level: float = LEVEL) -> int | None:
        """How many seeds would show the observed one as often; None where none would, for want of documents."""
        return self.variances.seeds_needed(self.difference, level) if self.variances else None


@dataclass(frozen=True)
class Resampled:
    """A difference at resampled documents, ``values`` [resamples, seeds], and the documents' ``sizes`` [documents].

    ``off`` [documents, seeds], by how much each document's own difference lies off that of all, is needed only where
    one of them dominates. Raises ValueError for what is not finite: it has no variance.
    """

    values: Array
    sizes: Array
    off: Array | None = None

    def __post_init__(self) -> None:
        for numbers in (self.values, self.sizes, *([] if self.off is None else [self.off])):
            _require_finite(numbers, "a difference at resampled documents")

    def variance(self) -> float:
        """The variance, of the mean over documents, of what seeds share."""
        squared = float((self.shares**2).sum())
        if self.off is not None:
            return _shared(self.off[self.sizes > 0]) * squared
        return _shared(self.values) / (1 - 2 * float((self.shares**3).sum()) / squared + squared)

    @property
    def freedom(self) -> float:
        """Its degrees of freedom."""
        count = effective_count(self.sizes) if self.off is None else float((self.sizes > 0).sum())
        return max(1.0, count - 1)

    @property
    def shares(self) -> Array:
        """What part of all each document is."""
        return self.sizes / self.sizes.sum()


def dominates(sizes: Array) -> bool:
    """Whether one document is so large that its size decides."""
    return bool(sizes.max() >= DOMINANT * sizes.sum())


def _require_finite(numbers: Array, what: str) -> None:
    """Python's ``max(0.0, nan)`` is 0.0, and ``nan > 1`` is False: what is not finite must not get that far."""
    if not np.isfinite(numbers).all():
        raise ValueError(f"{what} is not finite, so nothing can be said of how far it varies")


def _shared(values: Array) -> float:
    """The mean covariance of two seeds' values [n, seeds], or zero where it is negative."""
    off = values - values.mean(axis=0)
    products = off.T @ off / (len(values) - 1)
    _require_finite(products, "a covariance of two seeds")
    seeds = len(products)
    return max(0.0, float(products.sum() - np.trace(products)) / (seeds * (seeds - 1)))


def estimate(differences: Sequence[float] | Array, resampled: Resampled | None = None) -> Estimate:
    """The mean of paired differences, one per seed, with its intervals; without documents it speaks of seeds only.

    Raises ValueError: a difference is not finite.
    """
    pairs = np.asarray(differences, dtype=np.float64)
    _require_finite(pairs, "a paired difference")
    seeds = len(pairs)
    mean = float(pairs.mean())
    if seeds < 2 or np.ptp(pairs) <= 1e-12 * max(1.0, float(np.abs(pairs).max())):
        return Estimate(mean, seeds)
    variances = Variances.measure(pairs, resampled)
    over_seeds = variances.half_width(LEVEL, documents=False)
    return Estimate(
        difference=mean,
        seeds=seeds,
        interval=_around(mean, variances.half_width(LEVEL)),
        over_seeds=_around(mean, over_seeds),
        bootstrap=_percentiles(pairs, resampled),
        p=variances.p(mean),
        variances=variances,
    )


@dataclass(frozen=True)
class Variances:
    """What a mean difference varies by: ``seed`` for one seed (n of them divide it), ``document`` for all of them."""

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
        """Half of the interval at a level such as 0.05; without documents, of Student's t over seeds."""
        return self._reach(self.seeds, lambda freedom: _quantile(freedom, level), documents)

    def _reach(self, seeds: int, factor: Callable[[float], float], documents: bool = True) -> float:
        """``factor`` of the degrees of freedom times the standard error of the mean over so many seeds."""
        seed = self.seed / seeds
        fixed = factor(seeds - 1) * math.sqrt(seed)
        if not (documents and self.document):
            return fixed
        total = seed + self.document
        freedom = total**2 / (seed**2 / (seeds - 1) + self.document**2 / self.document_freedom)
        return max(factor(freedom) * math.sqrt(total), fixed)

    def p(self, difference: float) -> float:
        """The level at which the interval just touches zero; at least 1e-12."""
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

    def detectable(self, seeds: int, level: float = LEVEL) -> float:
        """The smallest difference that the interval of so many seeds excludes zero for, four times out of five."""
        return self._reach(seeds, lambda freedom: _shift(freedom, level))

    def seeds_needed(self, difference: float, level: float = LEVEL) -> int | None:
        """The fewest seeds to which ``difference`` is detectable; None above 1,000."""
        if self.detectable(MOST_SEEDS, level) > abs(difference):
            return None
        few, enough = 1, MOST_SEEDS
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if self.detectable(middle, level) <= abs(difference) else (middle, enough)
        return enough


def resampled_sums(columns: Array, resamples: int = RESAMPLES, seed: int = 0) -> Array:
    """Column sums of ``columns`` [documents, k] over documents drawn with replacement, the same ones for all columns.

    Returns [resamples, k]; the draws depend on ``seed`` and the number of documents only.
    """
    found: Array = _times_drawn(len(columns), resamples, seed) @ columns
    return found


@lru_cache(maxsize=1)
def _times_drawn(documents: int, resamples: int, seed: int) -> Array:
    """How often each document is drawn [resamples, documents]; kept, because every run of a study asks for the same."""
    generator = np.random.default_rng(seed)
    counts = np.empty((resamples, documents))
    for start in range(0, resamples, _CHUNK):
        rows = min(_CHUNK, resamples - start)
        drawn = generator.integers(0, documents, (rows, documents)) + documents * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * documents)
        counts[start : start + rows] = times.reshape(rows, documents)
    return counts


def grouped(columns: Array, seed: int = 0) -> Array:
    """At most 512 rows: more documents than that are pooled at random.

    511 degrees of freedom are as good as any number of them, and resampling costs no more for a larger corpus.
    """
    if len(columns) <= MOST_GROUPS:
        return columns
    order = np.random.default_rng(seed).permutation(len(columns))
    starts = np.linspace(0, len(columns), MOST_GROUPS, endpoint=False).astype(np.intp)
    return np.add.reduceat(columns[order], starts, axis=0)


def effective_count(weights: Array) -> float:
    """How many documents of equal size carry as much as these: (sum w)² / sum w²."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def holm(values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given (Holm 1979): reject those below the level, whatever their number."""
    order = np.argsort(values, kind="stable")
    adjusted = [0.0] * len(values)
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = highest
    return adjusted


def levels(values: Sequence[float]) -> list[float]:
    """What Holm's correction asks each p-value to lie below; of those not rejected, as if each were the next to be."""
    rejected = sum(p < LEVEL for p in holm(values))
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return [LEVEL / (len(values) - min(int(rank), rejected)) for rank in ranks]


def _around(middle: float, half_width: float) -> Interval:
    return Interval(middle - half_width, middle + half_width)


def _percentiles(pairs: Array, resampled: Resampled | None) -> Interval:
    values = np.broadcast_to(pairs, (RESAMPLES, len(pairs))) if resampled is None else resampled.values
    means = np.take_along_axis(values, _seeds_drawn(values.shape), axis=1).mean(axis=1)
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
    return Interval(float(low), float(high))


@lru_cache(maxsize=8)
def _seeds_drawn(shape: tuple[int, int]) -> NDArray[np.int64]:
    """Which seeds each resample holds; kept, because every comparison asks for the same."""
    return np.random.default_rng(1).integers(0, shape[1], shape)


def _quantile(freedom: float, level: float) -> float:
    return abs(float(stdtrit(freedom, level / 2)))


@cache
def _shift(freedom: float, level: float) -> float:
    """How many standard errors off zero a mean must lie to be found at the level with the power: noncentral t."""
    return float(nctdtrinc(min(freedom, 1e6), 1 - POWER, _quantile(freedom, level)))
