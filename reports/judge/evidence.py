"""The evidence that comparisons use: the value of every run, and the same value at resampled documents.

Ratios are compared by logarithms, and zero has none. A comparison that needs the logarithm of a value that is not
positive has no estimate, and one that needs it at a single resample has no interval: leaving out those runs or those
resamples would bias the comparison. One in 10,000 resamples is enough, for where as many are zero, fewer than ten
documents carry the value, and logarithms of so few are too skewed for the interval.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from reports.judge.measures import DocumentMeasure, measure_of
from reports.judge.statistics import Array, Resampled, dominates, grouped, resampled_sums
from reports.judge.unpaired import Samples
from reports.read.measurements import DocumentLosses
from reports.read.study import COUNTED, Run, Study

__all__ = ["Evidence", "gather"]

Pair = tuple[str, int]
"""An arm and a seed."""

_PART = re.compile(r"(@\d+|, (row|symbols|question) .*)$")
"""The end of the name of a part of an origin, which follows the name of the origin."""
_RECORD = re.compile(r":\d+$")
FEWEST_FILES = 20
"""The fewest files whose records are clusters; the records of a single file are documents."""
_AGREEMENT = 1e-3
_AT_A_TIME = 64
_MOST_SUMS = 1024
_MOST_AT_ONCE = 2000
"""The most runs whose values at resampled documents are held at once."""
_ARMS_KEPT = 4
_MOST = 4
_SMALL = 1e-4
_LARGEST = 1e100
"""The largest value that is used; variances of anything larger may overflow."""


@dataclass(frozen=True)
class Evidence:
    """The values of runs by arm and seed and, for runs with usable documents, the same at resampled documents.

    ``documents`` is the number of their clusters before pooling and ``sizes`` are those of the pooled ones. Where one
    document dominates, ``deviations`` holds by how much each document's own value lies off the value of all documents.
    With ``ratio``, all values are logarithms, which are not finite where the value is not positive. ``counted`` holds
    the binomial variance of runs whose values are a share of counted examples.
    """

    values: Mapping[Pair, float]
    ratio: bool = False
    resampled: Mapping[Pair, Array] = field(default_factory=dict)
    deviations: Mapping[Pair, Array] = field(default_factory=dict)
    sizes: Array = field(default_factory=lambda: np.ones(0))
    documents: int = 0
    counted: Mapping[Pair, float] = field(default_factory=dict)

    def seeds(self, arms: Sequence[str]) -> list[int]:
        """Returns the seeds that all of the arms have finished, ascending."""
        return sorted(set.intersection(*(self._seeds.get(arm, set()) for arm in arms)))

    @cached_property
    def _seeds(self) -> Mapping[str, set[int]]:
        seeds: dict[str, set[int]] = {}
        for arm, seed in self.values:
            seeds.setdefault(arm, set()).add(seed)
        return seeds

    @property
    def is_large(self) -> bool:
        """Whether there are too many runs to hold the resampled values of each comparison."""
        return len(self.resampled) > _MOST_AT_ONCE

    def without_value(self, arms: Sequence[str], seeds: Sequence[int]) -> str | None:
        """Returns why some of these runs cannot be compared, with their names, or None where all can."""
        unfit = [f"{arm} (seed {seed})" for arm in arms for seed in seeds if not _usable(self.values[arm, seed])]
        if not unfit:
            return None
        run_names = ", ".join(unfit[:_MOST]) + (f" and {len(unfit) - _MOST} more" if len(unfit) > _MOST else "")
        reason = (
            "is not positive, so it has no ratio; compare by difference" if self.ratio else "is too large to square"
        )
        return f"the value of {run_names} {reason}"

    def without_interval(self, arms: Sequence[str], seeds: Sequence[int]) -> str | None:
        """Returns why the resampled documents give no interval for these runs, or None where they do."""
        runs = [(arm, seed) for arm in arms for seed in seeds if (arm, seed) in self.resampled]
        unusable = {run: int(np.sum(~_usable(self.resampled[run]))) for run in runs}
        worst = max(unusable, key=lambda run: unusable[run], default=None)
        if worst is None or not unusable[worst]:
            return None
        count = f"{unusable[worst]:,} of {len(self.resampled[worst]):,} resamples of {worst[0]} (seed {worst[1]})"
        reason = "are not positive, so they have no ratio; compare by difference" if self.ratio else "have no value"
        return f"{count} {reason}"

    def pairs(self, weights: Mapping[str, float], seeds: Sequence[int]) -> list[float]:
        """Returns the weighted sum over arms, for each seed."""
        return [sum(weight * self.values[arm, seed] for arm, weight in weights.items()) for seed in seeds]

    def sides(self, weights: Mapping[str, float], seeds: Callable[[Sequence[str]], Sequence[int]]) -> Samples:
        """Returns the weighted sums over the arms of each side of a comparison, one for each seed of the side. seeds:
        returns the seeds of arms."""
        one, other = ({arm: sign * weight for arm, weight in weights.items() if sign * weight > 0} for sign in (1, -1))
        return self.pairs(one, seeds([*one])), self.pairs(other, seeds([*other]))

    def counted_variance(self, weights: Mapping[str, float], seeds: Sequence[int]) -> float:
        """Returns the variance of a comparison by the examples that its runs have counted, the same ones in all seeds.
        That arms may share them is not used: this would make it smaller."""
        return sum(
            weight**2 * float(np.mean([self.counted.get((arm, seed), 0.0) for seed in seeds]))
            for arm, weight in weights.items()
        )

    def at_documents(self, weights: Mapping[str, float], seeds: Sequence[int]) -> Resampled | None:
        """Returns the weighted sums at resampled documents, or None where one of the runs has no usable documents."""
        if not all((arm, seed) in self.resampled for arm in weights for seed in seeds):
            return None
        deviations = _columns(self.deviations, weights, seeds) if self.deviations else None
        return Resampled(_columns(self.resampled, weights, seeds), self.sizes, deviations)


def _usable(values: float | Array) -> NDArray[np.bool_]:
    """Returns which values are finite and small enough to be squared."""
    return np.asarray(np.abs(values) < _LARGEST)


def _columns(values: Mapping[Pair, Array], weights: Mapping[str, float], seeds: Sequence[int]) -> Array:
    return np.column_stack([sum(weight * values[arm, seed] for arm, weight in weights.items()) for seed in seeds])


def gather(study: Study, notes: list[str]) -> Evidence:
    """Returns the values and resampled values of all finished runs; adds notes on documents that cannot be used."""
    ratio = study.plan.metric.compare == "ratio"
    transform = _logarithm if ratio else np.asarray
    runs = [run for run in study.runs if run.missing is None]
    values = {(run.arm, run.seed): float(transform(run.value)) for run in runs}
    documents = next((documents for run in runs if (documents := run.documents()) is not None), None)
    measure = measure_of(study.plan.metric.name, documents.others if documents else ())
    is_expected = documents is not None or study.knows_configs
    documented = _documented(runs, study.plan.metric.name, measure, notes) if measure and is_expected else []
    if measure is None or not documented:
        return Evidence(values, ratio, counted=_counted(runs, ratio))
    first = documented[0][1]
    measured = np.flatnonzero(~np.isnan(measure.sums(first)[:, -1]))
    clusters = clusters_of([first.names[place] for place in measured])
    sums = {(run.arm, run.seed): grouped(added(measure.sums(losses)[measured], clusters)) for run, losses in documented}
    sizes = next(iter(sums.values()))[:, -1]
    return Evidence(
        values=values,
        ratio=ratio,
        resampled=_Resamples(sums, measure, transform)
        if len(sums) > _MOST_AT_ONCE
        else {pair: transform(value) for pair, value in _resampled(sums, measure)},
        deviations={pair: _deviations(columns, measure, ratio) for pair, columns in sums.items()}
        if dominates(sizes)
        else {},
        sizes=sizes,
        documents=int(clusters.max()) + 1,
    )


def _counted(runs: Sequence[Run], ratio: bool) -> dict[Pair, float]:
    """Returns the binomial variance of the value of each run that says how many examples it has counted."""
    variances = {}
    for run in runs:
        total = run.record.measured.get(COUNTED) if run.record else None
        if total:
            variance = max(run.value * (1 - run.value), 0.0) / total
            variances[run.arm, run.seed] = variance / run.value**2 if ratio and run.value > 0 else variance
    return variances


def clusters_of(names: Sequence[str]) -> NDArray[np.int64]:
    """Returns the number of the cluster of each document [documents], in the order of their first documents. names: as
    in ``DocumentLosses``, an ordinal and the name of the document."""
    origins = [_PART.sub("", name.partition(" ")[2]) for name in names]
    files = [_RECORD.sub("", origin) for origin in origins]
    if len({file for file in files if not file.isdigit()}) >= FEWEST_FILES:
        origins = [origin if file.isdigit() else file for origin, file in zip(origins, files, strict=True)]
    numbers: dict[str, int] = {}
    keys = (origin or name for origin, name in zip(origins, names, strict=True))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def added(columns: Array, clusters: NDArray[np.int64]) -> Array:
    """Returns the sums of ``columns`` [documents, k] over the documents of each cluster [clusters, k]."""
    if len(columns) == clusters.max() + 1:
        return columns
    sums = np.zeros((int(clusters.max()) + 1, columns.shape[1]))
    np.add.at(sums, clusters, columns)
    return sums


def _logarithm(values: float | Array) -> Array:
    """Returns the natural logarithm: minus infinity for zero and NaN for negative values, without warnings."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(values))


def _resampled(sums: Mapping[Pair, Array], measure: DocumentMeasure) -> Iterator[tuple[Pair, Array]]:
    """Yields the value of every run at resampled documents, 64 runs at a time, and fewer where each has many sums, to
    bound the memory."""
    pairs = list(sums)
    at_a_time = max(1, min(_AT_A_TIME, _MOST_SUMS // max(len(columns[0]) for columns in sums.values())))
    for start in range(0, len(pairs), at_a_time):
        chunk = pairs[start : start + at_a_time]
        totals = resampled_sums(np.concatenate([sums[pair] for pair in chunk], axis=1))
        width = totals.shape[1] // len(chunk)
        for index, pair in enumerate(chunk):
            yield pair, measure.value(totals[:, index * width : (index + 1) * width])


class _Resamples(Mapping[Pair, Array]):
    """The values of many runs at resampled documents. The values of an arm are computed on access, and stored for the
    last arms alone."""

    def __init__(
        self, sums: Mapping[Pair, Array], measure: DocumentMeasure, transform: Callable[[Array], Array]
    ) -> None:
        self._sums, self._measure, self._transform = sums, measure, transform
        self._pairs: dict[str, list[Pair]] = {}
        for pair in sums:
            self._pairs.setdefault(pair[0], []).append(pair)
        self._of_arm = lru_cache(maxsize=_ARMS_KEPT)(self._resample)

    def _resample(self, arm: str) -> dict[Pair, Array]:
        own = {pair: self._sums[pair] for pair in self._pairs[arm]}
        return {pair: self._transform(value) for pair, value in _resampled(own, self._measure)}

    def __getitem__(self, pair: Pair) -> Array:
        return self._of_arm(pair[0])[pair]

    def __contains__(self, pair: object) -> bool:
        return pair in self._sums

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._sums)

    def __len__(self) -> int:
        return len(self._sums)


def _deviations(columns: Array, measure: DocumentMeasure, ratio: bool) -> Array:
    """Returns by how much each document's own value lies off the value of all documents [documents].

    It is the derivative of the value with respect to the document's weight, by a central difference.
    """
    total = columns.sum(axis=0)
    more, less = measure.value(total + _SMALL * columns), measure.value(total - _SMALL * columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = (np.log(more / less) if ratio else more - less) / (2 * _SMALL)
    sizes = columns[:, -1]
    return np.divide(gain * sizes.sum(), sizes, out=np.zeros(len(sizes)), where=sizes > 0)


def _documented(
    runs: Sequence[Run], metric: str, measure: DocumentMeasure, notes: list[str]
) -> list[tuple[Run, DocumentLosses]]:
    """Returns the runs whose per-document sums are of the same documents and give the metric of their record.

    Adds a note on every reason for which runs are left out.
    """
    usable: list[tuple[Run, DocumentLosses]] = []
    unusable: Counter[str] = Counter()
    for run in runs:
        documents = run.documents()
        reason = _unusable(run, documents, metric, measure, usable[0][1] if usable else None)
        if reason:
            unusable[reason] += 1
        elif documents:
            usable.append((run, documents))
    for reason, count in unusable.items():
        notes.append(f"{count} of {len(runs)} runs {reason}; intervals that need them are over seeds only")
    return usable


def _unusable(
    run: Run, documents: DocumentLosses | None, metric: str, measure: DocumentMeasure, first: DocumentLosses | None
) -> str | None:
    if documents is None:
        return "have no losses per document"
    if first and (documents.names != first.names or not np.array_equal(documents.bytes, first.bytes)):
        return "were evaluated on other documents"
    if missing := [name for name in measure.needs if name not in documents.others]:
        return f"have no {missing[0]} per document"
    total = np.nansum(measure.sums(documents), axis=0)
    if total[-1] <= 0 or not abs(float(measure.value(total)) - run.value) <= _AGREEMENT * abs(run.value):
        return f"have losses per document that do not sum to {metric}"
    return None
