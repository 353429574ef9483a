"""What the networks of a study forget: what they could do before, measured again after the runs of each arm.

The difference is paired: each run is compared with the weights that its arm starts from, which seeds may share. Where
the study states a limit, an arm gets a verdict only if the interval of what it loses lies within the limit. So an arm
that truly loses more gets a verdict in at most 2.5 % of studies, and an arm that loses nothing may need more seeds. An
arm that is judged by several limits has to keep all of them, for which no correction is needed (intersection-union).
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
    """What an arm can do before and after its runs, as means over seeds, and the paired difference, after minus before.

    missing: the seeds of which a measurement is missing, with the reasons; then the numbers are of the other seeds,
    and None without any.
    """

    retention: PlannedRetention
    arm: str
    before: float | None = None
    after: float | None = None
    difference: PairedDifference | None = None
    missing: str = ""

    @property
    def lost(self) -> float:
        """By how much it gets worse, negative where it gets better; not a number where nothing was measured."""
        if self.difference is None:
            return math.nan
        return self.difference.difference * (1 if self.retention.metric.goal == "minimize" else -1)

    @property
    def interval(self) -> ConfidenceInterval:
        """The interval of ``lost``; without any width of a single seed, or of seeds that all lose the same."""
        around = self.difference.interval if self.difference else None
        half = (around.high - around.low) / 2 if around else 0.0
        return ConfidenceInterval(self.lost - half, self.lost + half)

    @property
    def reason(self) -> str | None:
        """Why the arm gets no verdict, in a line; None where it keeps the limit, or there is none."""
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
        return f"may forget too much: {text}; more seeds may show that it keeps it"


def forgetting(study: Study) -> Iterator[Forgetting]:
    """Yields what each arm forgets of all that the study measures, over all seeds."""
    for retention in study.plan.retention:
        for arm in study.arm_names:
            if arm in retention.arms:
                yield forgetting_of(study, retention, arm)


def forgetting_of(
    study: Study, retention: PlannedRetention, arm: str, seeds: Collection[int] | None = None, level: float = LEVEL
) -> Forgetting:
    """Returns what an arm forgets. seeds: those that count; None for all. level: that of the interval."""
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
    """Returns why these arms get no verdict: which of them forgets more than a limit, or may; None where none does."""
    for retention in study.plan.retention:
        for arm in (name for name in arms if name in retention.arms):
            if retention.limit and (reason := forgetting_of(study, retention, arm, seeds, level).reason):
                return reason
    return None
