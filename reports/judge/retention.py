"""Measures forgetting: the score of an arm's networks on another task, before and after its runs.

The difference is paired: each run is compared with the weights that its arm starts from, which seeds may share. If the
study states a limit, an arm gets a verdict only if the whole interval of its loss is within the limit. An arm that
truly loses more gets a verdict in at most 2.5 % of studies; an arm that loses nothing may need more seeds. An arm with
several limits must keep all of them, which needs no correction (intersection-union test).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from lit_transformers.records.plan import PlannedRetention
from reports.judge.statistics import LEVEL, ConfidenceInterval, PairedDifference, estimate
from reports.read.study import Study

__all__ = ["Forgetting", "beyond_limit", "forgetting", "forgetting_of"]


@dataclass(frozen=True)
class Forgetting:
    """The means over seeds of an arm's score before and after its runs, and the paired difference, after minus before.

    missing: the seeds without a measurement, with the reasons. The numbers are of the other seeds; None if there are
    none.
    """

    retention: PlannedRetention
    arm: str
    before: float | None = None
    after: float | None = None
    difference: PairedDifference | None = None
    missing: str = ""

    @property
    def lost(self) -> float:
        """The loss, after against before: positive if the score gets worse, negative if it gets better; NaN if
        unmeasured."""
        if self.difference is None:
            return math.nan
        return self.difference.difference * (1 if self.retention.metric.goal == "minimize" else -1)

    @property
    def interval(self) -> ConfidenceInterval:
        """The interval of ``lost``; its width is 0 for a single seed, or if all seeds lose the same."""
        around = self.difference.interval if self.difference else None
        half = (around.high - around.low) / 2 if around else 0.0
        return ConfidenceInterval(self.lost - half, self.lost + half)

    @property
    def reason(self) -> str | None:
        """The reason that the arm gets no verdict, in a line; None if it keeps the limit, or has none."""
        limit, what = self.retention.limit, f"{self.retention.name} after {self.arm}"
        if limit is None:
            return None
        if self.missing:
            return f"{what} has a limit and was not measured: {self.missing}"
        if self.interval.high <= limit.size:
            return None
        low, high = self.interval
        text = f"{what} is worse by {self.lost:.3g} ({low:.3g} to {high:.3g}), and the limit is {limit.size:g}"
        if self.lost > limit.size:
            return f"forgets too much: {text}"
        return f"may forget too much: {text}; more seeds may show that it keeps the limit"


def forgetting(study: Study) -> Iterator[Forgetting]:
    """Yields the forgetting of each arm in each measurement of the study, over all seeds."""
    for retention in study.plan.retention:
        for arm in study.arm_names:
            if arm in retention.arms:
                yield forgetting_of(study, retention, arm)


def forgetting_of(
    study: Study, retention: PlannedRetention, arm: str, seeds: Collection[int] | None = None, level: float = LEVEL
) -> Forgetting:
    """Returns the forgetting of an arm. seeds: the seeds to use; None for all. level: the confidence of the
    interval."""
    pairs, missing = [], dict[str, list[str]]()
    for planned in retention.arms[arm]:
        if seeds is not None and planned.seed not in seeds:
            continue
        runs = [study.retention[one.key] for one in (planned.before, planned.after)]
        if reason := next((run.missing for run in runs if run.missing), None):
            missing.setdefault(reason, []).append(str(planned.seed))
        else:
            pairs.append([run.value for run in runs])
    reasons = "; ".join(f"seed {', '.join(of)} {reason}" for reason, of in missing.items())
    if not pairs:
        return Forgetting(retention, arm, missing=reasons or "no seed")
    before, after = np.array(pairs).T
    difference = estimate(after - before, level=level)
    return Forgetting(retention, arm, float(before.mean()), float(after.mean()), difference, reasons)


def beyond_limit(study: Study, arms: Iterable[str], seeds: Collection[int], level: float = LEVEL) -> str | None:
    """Returns the reason that these arms get no verdict, if one of them forgets, or may forget, more than a limit."""
    for retention in study.plan.retention:
        for arm in (name for name in arms if name in retention.arms):
            if retention.limit and (reason := forgetting_of(study, retention, arm, seeds, level).reason):
                return reason
    return None
