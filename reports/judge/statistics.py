"""Intervals and p-values of paired differences over a few seeds and many documents.

Every run of a study is evaluated on the same documents, so seeds and documents are crossed: of a paired difference at
seed s and document d, ``difference + seed[s] + document[d] + rest[s, d]``, the document's part is shared by all seeds
and does not shrink with more of them. Documents are therefore resampled once for all seeds and arms (the pigeonhole
bootstrap, Owen 2007, doi:10.1214/07-AOAS122), not anew within each seed, which would count a document once per seed.

A percentile bootstrap over two to five seeds is too narrow for any number of resamples: at three seeds it covers the
truth about three times in four. The interval that decides a verdict takes its quantile from Student's t instead, for
the sum of two variances: ``seed`` of the mean over seeds (seeds - 1 degrees of freedom) and ``document``
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

All of this takes seeds as near normal. Where that is not shown (``normality``), the standard error over seeds is
multiplied by a ``widening``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, nctdtrinc, stdtr, stdtrit

Array = NDArray[np.float64]

RESAMPLES = 10_000
LEVEL = 0.05
POWER = 0.8
MOST_SEEDS = 1000
FUTURES = 2000
"""The number of draws from the predictive distribution of more seeds."""
MOST_GROUPS = 512
DOMINANT = 1 / 4
"""The share of the total size from which on a single document is too large for resampling."""
MOST_EXACT, DRAWN_SIGNS = 14, 20_000
_CHUNK = 1024
_LEAST_P = 1e-12


class ConfidenceInterval(NamedTuple):
    """The ends of a confidence interval, in units of the metric."""

    low: float
    high: float


class Chances(NamedTuple):
    """With which probability seeds show that there is a difference, that it lies within the margin, and one of both."""

    different: float
    equal: float
    either: float


@dataclass(frozen=True)
class PairedDifference:
    """A paired difference, in units of the metric, with its intervals and p-value.

    ``interval`` decides verdicts; ``over_seeds`` (Student's t, documents fixed) and ``bootstrap`` (percentiles over
    seeds and documents) are for comparison. All three and ``p`` are None for a single seed and where all seeds give the
    same difference. ``pairs`` and ``resampled`` are the values from which they are computed.
    """

    difference: float
    seeds: int
    interval: ConfidenceInterval | None = None
    over_seeds: ConfidenceInterval | None = None
    p: float | None = None
    variances: Variances | None = None
    pairs: Array | None = field(default=None, compare=False, repr=False)
    resampled: Resampled | None = field(default=None, compare=False, repr=False)

    @cached_property
    def bootstrap(self) -> ConfidenceInterval | None:
        """The percentiles over seeds and documents, computed only on access, since they decide nothing."""
        return None if self.pairs is None else _percentiles(self.pairs, self.resampled)

    def as_if_normal(self, level: float) -> PairedDifference:
        """Returns the same with the interval of near-normal seeds at a level."""
        if self.variances is None or self.variances.widening == 1:
            return self
        variances = replace(self.variances, widening=1.0)
        interval = _interval_around(self.difference, variances.half_width(level))
        return replace(self, interval=interval, p=variances.p(self.difference), variances=variances)

    def p_within(self, margin: float) -> float | None:
        """Returns the level at which the interval just lies within plus and minus a margin: 1 if the difference does
        not, None where there is no interval. Half of it is the p-value of two one-sided tests (Schuirmann 1987)."""
        room = margin - abs(self.difference)
        return None if self.variances is None else self.variances.p(room) if room > 0 else 1.0

    def decided(self, seeds: int, level: float, margin: float | None, within: float, widening: float) -> Chances:
        """Returns with which probability this many seeds, the present ones among them, show that there is a difference,
        and that it lies within the margin.

        It is the mean over the posterior of mean and variance, given the present seeds and a flat prior. level, within:
        the levels of the two statements. widening: the widening of these intervals. Both are 0 without an interval.
        """
        if self.variances is None or seeds <= self.seeds:
            return Chances(0.0, 0.0, 0.0)
        means, variances = self._future(seeds)
        widened = replace(self.variances, widening=widening)
        different = np.abs(means) > widened.half_widths(seeds, variances, level)
        equal = np.zeros(len(means), bool)
        if margin is not None:
            equal = np.abs(means) + widened.half_widths(seeds, variances, within) < margin
        return Chances(*(float(np.mean(one)) for one in (different, equal, different | equal)))

    def _future(self, seeds: int) -> tuple[Array, Array]:
        """Returns the mean and the variance over seeds that this many seeds may have [draws] each."""
        assert self.variances is not None
        now, new, freedoms = self.seeds, seeds - self.seeds, self.variances.freedoms
        generator = np.random.default_rng(3)
        squares = freedoms * (now - 1) * self.variances.seed
        variance = squares / generator.chisquare(freedoms * (now - 1), FUTURES)
        deviation = np.sqrt(variance)
        true = self.difference + deviation * generator.standard_normal(FUTURES) / math.sqrt(now)
        mean = true + deviation * generator.standard_normal(FUTURES) / math.sqrt(new)
        more = variance * generator.chisquare(freedoms * (new - 1), FUTURES) if new > 1 else 0.0
        total = squares + more + now * new / seeds * (self.difference - mean) ** 2
        return (now * self.difference + new * mean) / seeds, total / (freedoms * (seeds - 2) + 1)

    def detectable(self, level: float = LEVEL) -> float | None:
        """Returns the smallest difference that this many seeds detect at a level with a power of 0.8."""
        return self.variances.detectable(self.seeds, level) if self.variances else None


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
    differences: Sequence[float] | Array,
    resampled: Resampled | None = None,
    level: float = LEVEL,
    widening: float = 1.0,
    counted: float = 0.0,
) -> PairedDifference:
    """Returns the mean of paired differences, one per seed, with intervals; without documents they cover seeds only.

    level: the level of the interval that decides verdicts. widening: the factor that multiplies its part over seeds.
    counted: the variance of examples that are known as counts alone, which all seeds share. Raises ValueError where a
    difference is not finite.
    """
    pairs = np.asarray(differences, dtype=np.float64)
    _require_finite(pairs, "a paired difference")
    seeds = len(pairs)
    mean = float(pairs.mean())
    if seeds < 2 or np.ptp(pairs) <= 1e-12 * max(1.0, float(np.abs(pairs).max())):
        return PairedDifference(mean, seeds)
    variances = Variances.measure(pairs, resampled, widening, counted)
    over_seeds = replace(variances, widening=1.0).half_width(LEVEL, documents=False)
    return PairedDifference(
        difference=mean,
        seeds=seeds,
        interval=_interval_around(mean, variances.half_width(level)),
        over_seeds=_interval_around(mean, over_seeds),
        p=variances.p(mean),
        variances=variances,
        pairs=pairs,
        resampled=resampled,
    )


@dataclass(frozen=True)
class MedianDifference(PairedDifference):
    """The median of paired differences, with the interval between two of them, for any distribution.

    ``bounds`` holds of each pair of order statistics its level (the sign test's), the ends, and ``document``, the
    standard error of the documents, which widens them by its t quantile.
    """

    bounds: tuple[tuple[float, float, float], ...] = ()
    document: float = 0.0
    freedom: float = math.inf

    def p_within(self, margin: float) -> float | None:
        if not self.bounds:
            return None
        rooms = ((level, min(margin - high, low + margin)) for level, low, high in self.bounds)
        return self._level(rooms)

    def p_of_zero(self) -> float | None:
        """Returns the level at which the interval just touches zero; None without an interval."""
        return self._level((level, max(low, -high)) for level, low, high in self.bounds) if self.bounds else None

    def half_widened(self, level: float) -> float:
        """Returns the amount that documents add to each end at a level."""
        return quantile(self.freedom, level) * self.document if self.document else 0.0

    def _level(self, rooms: Iterable[tuple[float, float]]) -> float:
        """Returns the lowest level at which a bound keeps its room. rooms: levels, and the room beyond an end."""
        levels = [max(level, self._document_level(room)) for level, room in rooms if room > 0]
        return min(levels, default=1.0)

    def _document_level(self, room: float) -> float:
        return 2 * float(stdtr(min(self.freedom, 1e6), -room / self.document)) if self.document else 0.0


def estimate_median(
    differences: Sequence[float] | Array, resampled: Resampled | None = None, level: float = LEVEL
) -> PairedDifference:
    """Returns the median of paired differences, one per seed, with the interval of the sign test: its ends are observed
    differences, and six seeds bound it at 5 %. Raises ValueError where a difference is not finite.

    level: that of the interval, which is None where it takes more seeds.
    """
    pairs = np.sort(np.asarray(differences, dtype=np.float64))
    _require_finite(pairs, "a paired difference")
    count = len(pairs)
    bounds = tuple(
        (2 * float(bdtr(k, count, 0.5)), float(pairs[k]), float(pairs[count - 1 - k])) for k in range(count // 2)
    )
    has_documents = resampled is not None and (resampled.sizes > 0).sum() >= 2
    document = math.sqrt(resampled.variance()) if resampled is not None and has_documents else 0.0
    freedom = resampled.freedom if resampled is not None and has_documents else math.inf
    median = MedianDifference(float(np.median(pairs)), count, bounds=bounds, document=document, freedom=freedom)
    if count < 2:
        return median
    within = [(low, high) for one, low, high in bounds if one <= level]
    wider = median.half_widened(level)
    interval = ConfidenceInterval(within[-1][0] - wider, within[-1][1] + wider) if within else None
    return replace(median, interval=interval, p=median.p_of_zero())


@dataclass(frozen=True)
class Variances:
    """The variances of a mean difference.

    ``seed`` is that of a single seed, which is divided by the number of seeds; ``document`` is that of the documents,
    which all seeds share. ``widening``: the factor that multiplies the standard error over seeds. ``freedoms``: the
    degrees of freedom of each seed beyond the first, which are more than one where two arms vary independently.
    """

    seeds: int
    seed: float
    document: float
    document_freedom: float
    widening: float = 1.0
    freedoms: float = 1.0

    @classmethod
    def measure(
        cls, pairs: Array, resampled: Resampled | None, widening: float = 1.0, counted: float = 0.0
    ) -> Variances:
        return cls(len(pairs), float(pairs.var(ddof=1)), *cls.of_documents(resampled, counted), widening)

    @staticmethod
    def of_documents(resampled: Resampled | None, counted: float = 0.0) -> tuple[float, float]:
        """Returns the variance between documents, with its degrees of freedom."""
        if resampled is None or (resampled.sizes > 0).sum() < 2:
            return counted, math.inf
        return resampled.variance(), resampled.freedom

    def half_width(self, level: float, documents: bool = True) -> float:
        """Returns half of the interval at a level such as 0.05; without documents, of Student's t over seeds."""
        return float(self._scaled_error(self.seeds, self.seed, lambda freedom: quantile(freedom, level), documents))

    def half_widths(self, seeds: int, variances: Array, level: float) -> Array:
        """Returns the half-widths of intervals of this many seeds with other variances of a single seed [n]."""
        return np.asarray(self._scaled_error(seeds, variances, lambda freedom: np.abs(stdtrit(freedom, level / 2))))

    def _scaled_error(
        self, seeds: int, variance: float | Array, factor: Callable[[Any], Any], documents: bool = True
    ) -> Any:
        """Returns the standard error of the mean over this many seeds times ``factor`` of its degrees of freedom.
        variance: of a single seed, or several of them, each with its own error.

        It is the larger of the two half-widths of the module's docstring.
        """
        seed = self.widening**2 * variance / seeds
        seed_freedom = self.freedoms * (seeds - 1)
        fixed = factor(seed_freedom) * np.sqrt(seed)
        if not (documents and self.document):
            return fixed
        total = seed + self.document
        freedom = total**2 / (seed**2 / seed_freedom + self.document**2 / self.document_freedom)
        return np.maximum(factor(freedom) * np.sqrt(total), fixed)

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
        shift = partial(_detectable_shift, level=level, power=power)
        return float(self._scaled_error(seeds, self.seed, lambda freedom: shift(float(freedom))))

    def seeds_needed(self, difference: float, level: float = LEVEL, power: float = POWER) -> int | None:
        """Returns the smallest number of seeds that detects a difference of this size with this power, or None above
        1,000, as with too few documents."""
        return fewest_seeds(lambda seeds: self.detectable(seeds, level, power) <= abs(difference), beyond=1)


def fewest_seeds(is_enough: Callable[[int], bool], beyond: int) -> int | None:
    """Returns the smallest number of seeds beyond one that is too small which is enough, or None above 1,000."""
    if not is_enough(MOST_SEEDS):
        return None
    few, enough = beyond, MOST_SEEDS
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if is_enough(middle) else (middle, enough)
    return enough


def sign_flip_p(differences: Sequence[float] | Array, margin: float | None = None) -> float:
    """Returns the p-value of the permutation of signs: that differences are symmetric around zero or, with a margin,
    around its nearer end. It assumes no normality, and is exact up to 14 seeds; beyond, it takes 20,000 draws.

    Its smallest value is 2 / 2**seeds (half of it with a margin): below 5 % from six seeds on.
    """
    pairs = np.asarray(differences, dtype=np.float64)
    if margin is not None:
        return max(_one_sided(margin - pairs), _one_sided(margin + pairs))
    return min(1.0, 2 * min(_one_sided(pairs), _one_sided(-pairs)))


def _one_sided(pairs: Array) -> float:
    """Returns the share of signs with which the sum is at least as large as observed, which counts as drawn."""
    sums = _signs(len(pairs)) @ np.abs(pairs)
    larger = int(np.count_nonzero(sums >= pairs.sum() - 1e-9 * np.abs(pairs).sum()))
    return larger / len(sums) if len(pairs) <= MOST_EXACT else (larger + 1) / (len(sums) + 1)


@lru_cache(maxsize=4)
def _signs(seeds: int) -> Array:
    """Returns all signs of the differences of these seeds [2**seeds, seeds], or 20,000 drawn ones."""
    if seeds > MOST_EXACT:
        drawn: Array = np.random.default_rng(2).choice(np.array([-1.0, 1.0]), (DRAWN_SIGNS, seeds))
        return drawn
    bits: NDArray[np.int64] = (np.arange(2**seeds)[:, None] >> np.arange(seeds)) & 1
    signs: Array = 1.0 - 2.0 * bits.astype(np.float64)
    return signs


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
