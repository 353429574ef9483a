"""Which seeds of an arm have learned, and how often arms learn within their budget.

A seed has learned if its value has come at least a share of the way from the value without learning to the best value.
Both follow from the data: they are the value of a model that knows nothing and the best possible value where these are
known; else the best floor and the median of the best arm that reads the same data. The study states the share, or it is
``LEAST`` of ``known``. A run that diverged has not learned. A run that was lost, for example with its machine, says
nothing and is to be done again.

Where an arm has learned in some seeds and not in others, a comparison has two answers: how often its arms learn, by
exact binomial intervals (Clopper and Pearson 1934) and McNemar's exact test over seeds, which both arms share (Fisher's
where they do not); and how good they are in the seeds in which all of them have learned. An arm that learns in fewer
than half of its seeds is compared as it is, over all of them: its values in the few seeds that have learned are not its
usual values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import bdtr, betaincinv

from lit_transformers.records.floors import Floors
from lit_transformers.records.reference import Reference
from reports.judge.known import LEAST, share
from reports.judge.statistics import LEVEL, ConfidenceInterval
from reports.read.study import Run, Study

__all__ = ["Bounds", "Frequency", "Learned", "bounds", "learned_runs", "share_interval", "share_not_excluded"]

Learned = Mapping[tuple[str, int], bool]
"""By arm and seed, whether a run has learned."""

_ACCURACY = re.compile(r"accuracy(@\d+)?$")
"""The metrics whose best value is 1 on all data."""


@dataclass(frozen=True)
class Frequency:
    """In how many of the ``seeds`` of a comparison each of its two arms has learned.

    p: of an exact ``test``, that the arms learn equally often: McNemar's where arms share seeds, else Fisher's.
    ``adjusted`` and ``level``: as in ``Comparison``.
    """

    learned: Mapping[str, int]
    seeds: Mapping[str, int]
    p: float
    test: Literal["McNemar", "Fisher"] = "McNemar"
    adjusted: float | None = None
    level: float = LEVEL

    @property
    def is_decided(self) -> bool:
        """Whether one arm is shown to learn more often than the other."""
        return self.adjusted is not None and self.adjusted < LEVEL

    def interval(self, arm: str) -> ConfidenceInterval:
        """Returns the 95 % interval of the share of seeds in which an arm learns."""
        return share_interval(self.learned[arm], self.seeds[arm])

    @classmethod
    def of(cls, learned: Mapping[str, Sequence[bool]]) -> Frequency:
        """Returns the frequency of two arms. learned: of each, whether it has learned, seed by seed."""
        one, other = learned.values()
        more, less = (sum(a and not b for a, b in zip(*pair, strict=True)) for pair in ((one, other), (other, one)))
        p = min(1.0, 2 * float(bdtr(min(more, less), more + less, 0.5))) if more + less else 1.0
        return cls({arm: sum(seeds) for arm, seeds in learned.items()}, dict.fromkeys(learned, len(one)), p)

    @classmethod
    def of_independent(cls, learned: Mapping[str, Sequence[bool]]) -> Frequency:
        """Returns the frequency of two arms that share no seeds. learned: of each, whether it has, in each seed."""
        (one, total), (other, total_of_other) = ((sum(seeds), len(seeds)) for seeds in learned.values())
        seeds = {arm: len(ended) for arm, ended in learned.items()}
        return cls(
            {arm: sum(ended) for arm, ended in learned.items()},
            seeds,
            fisher_p(one, total, other, total_of_other),
            "Fisher",
        )


def fisher_p(one: int, total: int, other: int, total_of_other: int) -> float:
    """Returns the p-value of Fisher's exact test that two shares are equal, of ``one`` of ``total`` and ``other`` of
    ``total_of_other``: of all tables with these sums, those at most as probable as the observed one."""
    both = one + other
    ways = {n: comb(total, n) * comb(total_of_other, both - n) for n in range(both + 1)}
    return sum(count for count in ways.values() if count <= ways[one]) / comb(total + total_of_other, both)


def share_interval(count: int, total: int, level: float = LEVEL) -> ConfidenceInterval:
    """Returns the exact interval of a share of which ``count`` of ``total`` were observed."""
    low = float(betaincinv(count, total - count + 1, level / 2)) if count else 0.0
    high = float(betaincinv(count + 1, total - count, 1 - level / 2)) if count < total else 1.0
    return ConfidenceInterval(low, high)


def share_not_excluded(count: int, total: int) -> float:
    """Returns the largest share that ``count`` of ``total`` runs do not exclude with 95 % confidence."""
    return share_interval(count, total, 2 * LEVEL).high


class Bounds(NamedTuple):
    """The value without learning, and the best possible value; None where they are not known."""

    floor: float | None
    best: float | None


def bounds(study: Study, arm: str) -> Bounds:
    """Returns the bounds of an arm's data: known values, else the best floor and, of accuracies, the perfect score."""
    planned = next(one for one in study.plan.arms if one.name == arm)
    references, floors = planned.references or study.plan.references, _floors_of(study, arm)
    floor = floors.best(study.plan.metric) if floors else None
    value = floor.value if floor else None
    if references:
        known = references[0].value
        return Bounds(known if value is None or _is_better(study, known, value) else value, references[-1].value)
    return Bounds(value, 1.0 if _ACCURACY.search(study.plan.metric.name) else None)


def _way(study: Study, arm: str) -> Sequence[Reference]:
    """Returns the known values of an arm's data, from the value without learning to the best one, or else the best
    floor and the median of the best arm; empty where no value shows whether a seed has learned."""
    planned = next(one for one in study.plan.arms if one.name == arm)
    floors = _floors_of(study, arm)
    floor = floors.best(study.plan.metric) if floors else None
    if (references := planned.references or study.plan.references) or floor is None or floors is None:
        return references
    readers = floors.arms or tuple(study.arm_names)
    medians = [float(np.median([run.value for run in runs])) for name in readers if (runs := study.finished(name))]
    best = (min if study.plan.metric.goal == "minimize" else max)(medians, default=floor.value)
    return (floor, Reference("best arm", best)) if _is_better(study, best, floor.value) else ()


def _floors_of(study: Study, arm: str) -> Floors | None:
    """Returns the floors of the data that an arm reads; None where they were not measured."""
    own = study.floors
    if own is None or not own.arms or arm in own.arms:
        return own
    return next((other for other in own.others if arm in other.arms), None)


def learned_runs(study: Study) -> Learned:
    """Returns by arm and seed whether a run has learned, of every run that has finished or diverged."""
    least = LEAST if study.plan.metric.learned is None else study.plan.metric.learned
    ways = {arm: _way(study, arm) for arm in study.arm_names}

    def has_learned(run: Run) -> bool:
        reached = None if run.diverged else share(ways[run.arm], run.value)
        return not run.diverged and (reached is None or reached >= least)

    return {(run.arm, run.seed): has_learned(run) for run in study.runs if run.missing is None or run.diverged}


def _is_better(study: Study, value: float, other: float) -> bool:
    return value < other if study.plan.metric.goal == "minimize" else value > other
