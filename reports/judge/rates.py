"""The comparisons of a study at other learning rates: whether their verdicts stand at half and at twice the rate.

A few seeds of every arm are trained once more at each of these rates, with the same data and order. A verdict of better
or worse stands at a rate if the difference has its sign there in all of these seeds, and reverses if it has the other
sign in all of them; "equal" stands if all of them are within the margin, and reverses if all are beyond it. Anything
else is mixed: a few seeds are no test, and nothing here changes a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lit_transformers.records.rate_values import RateRun
from reports.judge.comparisons import Comparison
from reports.read.study import Study

__all__ = ["ArmRates", "AtRate", "arm_rates", "at_rates"]

Standing = Literal["stands", "reverses", "mixed"]
_WITHOUT_SIGN = ("identical", "unresolved")


@dataclass(frozen=True)
class AtRate:
    """A comparison at ``factor`` times the learning rate: the ``differences`` of its seeds, in units of the metric or,
    where the metric compares by ratio, of its natural logarithm. missing: the runs that it lacks, with the reasons.
    standing: whether its verdict holds there, None where it has none that could."""

    comparison: Comparison
    factor: float
    differences: tuple[float, ...]
    missing: tuple[str, ...] = ()
    standing: Standing | None = None

    @property
    def difference(self) -> float | None:
        """The mean over seeds; None without any."""
        return sum(self.differences) / len(self.differences) if self.differences else None


@dataclass(frozen=True)
class ArmRates:
    """The mean of an arm by the factor of its learning rate, over the seeds that all its rates have."""

    arm: str
    means: Mapping[float, float]
    seeds: int

    def best(self, minimize: bool) -> float:
        """Returns the factor of the best rate; of equal ones the nearest to the rate of the study."""
        sign = 1 if minimize else -1
        return min(self.means, key=lambda factor: (sign * self.means[factor], abs(math.log(factor))))


def at_rates(study: Study, comparisons: Iterable[Comparison]) -> tuple[AtRate, ...]:
    """Returns each comparison of arms at each of the other rates; none where no rate was measured."""
    rates = study.rates
    if rates is None:
        return ()
    return tuple(
        _at_rate(study, comparison, factor, rates.at(factor))
        for comparison in comparisons
        if comparison.weights
        for factor in rates.factors
    )


def _at_rate(study: Study, comparison: Comparison, factor: float, runs: Mapping[tuple[str, int], RateRun]) -> AtRate:
    seeds = sorted({seed for arm, seed in runs if arm in comparison.weights})
    differences, missing = [], []
    for seed in seeds:
        of_seed = [runs.get((arm, seed)) for arm in comparison.weights]
        values = [run.value if run else None for run in of_seed]
        if None in values:
            missing += [f"{run.arm}, seed {seed}: {run.missing}" for run in of_seed if run and run.value is None]
            continue
        differences.append(_difference(study, comparison, [value for value in values if value is not None]))
    standing = None if missing or not differences else _standing(comparison, differences)
    return AtRate(comparison, factor, tuple(differences), tuple(missing), standing)


def _difference(study: Study, comparison: Comparison, values: Sequence[float]) -> float:
    """Returns the weighted sum over arms, of logarithms where the metric compares by ratio."""
    if study.plan.metric.compare == "ratio":
        values = [math.log(value) for value in values]
    return math.fsum(weight * value for weight, value in zip(comparison.weights.values(), values, strict=True))


def _standing(comparison: Comparison, differences: Sequence[float]) -> Standing | None:
    """Returns whether a verdict holds in these differences; None where it is none that could."""
    if comparison.verdict is None or comparison.verdict in _WITHOUT_SIGN:
        return None
    if comparison.verdict == "equal":
        assert comparison.margin is not None
        within = [abs(difference) <= comparison.margin for difference in differences]
    else:
        assert comparison.estimate is not None
        within = [difference * comparison.estimate.difference > 0 for difference in differences]
    return "stands" if all(within) else "mixed" if any(within) else "reverses"


def arm_rates(study: Study) -> Iterator[ArmRates]:
    """Yields the means of each arm at the rate of the study and at the others, where it has finished at all of them."""
    if study.rates is None:
        return
    own = {(run.arm, run.seed): run.value for run in study.runs if run.missing is None}
    for arm in study.arm_names:
        at = {1.0: own} | {
            factor: {key: run.value for key, run in study.rates.at(factor).items() if run.value is not None}
            for factor in study.rates.factors
        }
        seeds = set.intersection(*({seed for name, seed in values if name == arm} for values in at.values()))
        if seeds:
            means = {
                factor: math.fsum(values[arm, seed] for seed in seeds) / len(seeds) for factor, values in at.items()
            }
            yield ArmRates(arm, dict(sorted(means.items())), len(seeds))
