"""What arms are judged by: the value of every run, and the same value at resampled documents.

A ratio is compared by logarithms, and nought has none. A comparison that needs the logarithm of a value that is not
positive has no estimate, and one that needs it at a single resample has no interval: to leave out those runs or those
resamples would move what is compared. One in 10,000 resamples is enough, for where as many are nought, fewer than ten
documents carry the value, and logarithms of so few are too skewed for the interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reports.measurements import Documents
from reports.measures import Measure, measure_of
from reports.records import Run, Study
from reports.statistics import Array, Resampled, dominates, grouped, resampled_sums

__all__ = ["Evidence", "gather"]

Pair = tuple[str, int]
"""An arm and a seed."""

_AGREEMENT = 1e-3
_AT_A_TIME = 64
_MOST = 4
_SMALL = 1e-4
_LARGEST = 1e100
"""Variances of anything larger may overflow."""


@dataclass(frozen=True)
class Evidence:
    """Values by arm and seed; for the runs whose documents are usable, the same at resampled documents.

    ``documents`` are counted before they are pooled. Where one of them dominates, ``off`` says of each by how much its
    own value lies off that of all. Where ``ratio``, all are logarithms, and not finite where there is none.
    """

    values: Mapping[Pair, float]
    ratio: bool = False
    resampled: Mapping[Pair, Array] = field(default_factory=dict)
    off: Mapping[Pair, Array] = field(default_factory=dict)
    sizes: Array = field(default_factory=lambda: np.ones(0))
    documents: int = 0

    def seeds(self, arms: Sequence[str]) -> list[int]:
        """The seeds that every one of the arms has finished, ascending."""
        common = set.intersection(*({seed for name, seed in self.values if name == arm} for arm in arms))
        return sorted(common)

    def without_value(self, arms: Sequence[str], seeds: Sequence[int]) -> str | None:
        """Why some of these runs cannot be compared, by their names; None where all can."""
        unfit = [f"{arm} (seed {seed})" for arm in arms for seed in seeds if not _usable(self.values[arm, seed])]
        if not unfit:
            return None
        named = ", ".join(unfit[:_MOST]) + (f" and {len(unfit) - _MOST} more" if len(unfit) > _MOST else "")
        why = "is not positive, so it has no ratio; compare by difference" if self.ratio else "is too large to square"
        return f"the value of {named} {why}"

    def without_interval(self, arms: Sequence[str], seeds: Sequence[int]) -> str | None:
        """Why resampled documents tell nothing of how far these runs vary with them; None where they do."""
        runs = [(arm, seed) for arm in arms for seed in seeds if (arm, seed) in self.resampled]
        lacking = {run: int(np.sum(~_usable(self.resampled[run]))) for run in runs}
        most = max(lacking, key=lambda run: lacking[run], default=None)
        if most is None or not lacking[most]:
            return None
        count = f"{lacking[most]:,} of {len(self.resampled[most]):,} resamples of {most[0]} (seed {most[1]})"
        why = "are not positive, so they have no ratio; compare by difference" if self.ratio else "have no value"
        return f"{count} {why}"

    def pairs(self, weights: Mapping[str, float], seeds: Sequence[int]) -> list[float]:
        """The weighted sum over arms, for each seed."""
        return [sum(weight * self.values[arm, seed] for arm, weight in weights.items()) for seed in seeds]

    def at_documents(self, weights: Mapping[str, float], seeds: Sequence[int]) -> Resampled | None:
        """The same at resampled documents; None where a run of them has no documents to use."""
        if not all((arm, seed) in self.resampled for arm in weights for seed in seeds):
            return None
        off = _columns(self.off, weights, seeds) if self.off else None
        return Resampled(_columns(self.resampled, weights, seeds), self.sizes, off)


def _usable(values: float | Array) -> NDArray[np.bool_]:
    """Which are numbers that can be squared."""
    return np.asarray(np.abs(values) < _LARGEST)


def _columns(values: Mapping[Pair, Array], weights: Mapping[str, float], seeds: Sequence[int]) -> Array:
    return np.column_stack([sum(weight * values[arm, seed] for arm, weight in weights.items()) for seed in seeds])


def gather(study: Study, notes: list[str]) -> Evidence:
    """Values and resampled values of all finished runs; notes say which documents could not be used."""
    ratio = study.plan.metric.compare == "ratio"
    change = _logarithm if ratio else np.asarray
    runs = [run for run in study.runs if run.missing is None]
    values = {(run.arm, run.seed): float(change(run.value)) for run in runs}
    measure = measure_of(study.plan.metric.name)
    documented = _documented(runs, study.plan.metric.name, measure, notes) if measure else []
    if measure is None or not documented:
        return Evidence(values, ratio)
    first, sums = documented[0][1], {(run.arm, run.seed): grouped(measure.sums(found)) for run, found in documented}
    sizes = next(iter(sums.values()))[:, -1]
    return Evidence(
        values=values,
        ratio=ratio,
        resampled={pair: change(value) for pair, value in _resampled(sums, measure)},
        off={pair: _off(columns, measure, ratio) for pair, columns in sums.items()} if dominates(sizes) else {},
        sizes=sizes,
        documents=len(first.names),
    )


def _logarithm(values: float | Array) -> Array:
    """Minus infinity of nought, and no number of what is negative."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(values))


def _resampled(sums: Mapping[Pair, Array], measure: Measure) -> Iterator[tuple[Pair, Array]]:
    """The value of every run at resampled documents, some runs at a time, so that memory does not grow with them."""
    pairs = list(sums)
    for start in range(0, len(pairs), _AT_A_TIME):
        some = pairs[start : start + _AT_A_TIME]
        drawn = resampled_sums(np.concatenate([sums[pair] for pair in some], axis=1))
        width = drawn.shape[1] // len(some)
        for place, pair in enumerate(some):
            yield pair, measure.value(drawn[:, place * width : (place + 1) * width])


def _off(columns: Array, measure: Measure, ratio: bool) -> Array:
    """By how much each document's own value lies off that of all: what the value gains by a little more of it."""
    total = columns.sum(axis=0)
    more, less = measure.value(total + _SMALL * columns), measure.value(total - _SMALL * columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = (np.log(more / less) if ratio else more - less) / (2 * _SMALL)
    sizes = columns[:, -1]
    return np.divide(gain * sizes.sum(), sizes, out=np.zeros(len(sizes)), where=sizes > 0)


def _documented(runs: Sequence[Run], metric: str, measure: Measure, notes: list[str]) -> list[tuple[Run, Documents]]:
    """The runs whose per-document sums are of the same documents and give the metric that their record states."""
    usable: list[tuple[Run, Documents]] = []
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
    run: Run, documents: Documents | None, metric: str, measure: Measure, first: Documents | None
) -> str | None:
    if documents is None:
        return "have no losses per document"
    if first and (documents.names != first.names or not np.array_equal(documents.bytes, first.bytes)):
        return "were evaluated on other documents"
    if lacking := [name for name in measure.needs if name not in documents.others]:
        return f"have no {lacking[0]} per document"
    total = measure.sums(documents).sum(axis=0)
    if total[-1] <= 0 or not abs(float(measure.value(total)) - run.value) <= _AGREEMENT * abs(run.value):
        return f"have losses per document that do not sum to {metric}"
    return None
