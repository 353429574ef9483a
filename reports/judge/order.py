"""Whether the levels of a factor have the same order in two studies: the order of mixers on one battery of tasks and on
text, or of pretraining objectives before and after fine-tuning.

Spearman's rank correlation is over levels, which are a sample of those that one could have tried. Its interval is that
of Bonett and Wright (2000, doi:10.1007/BF02294183); its p-value is of permutations. Seeds that vary draw it towards 0.
Pairs of levels that both studies decide say the same without ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy import stats

from lit_transformers.config import nearest
from reports.judge.evidence import Evidence, gather
from reports.judge.statistics import LEVEL, Array, ConfidenceInterval, estimate
from reports.read.study import ReportError, Study

__all__ = ["LevelMeans", "LevelOrder", "order_of"]

_FEWEST = 4
"""The fewest levels whose ranks are correlated."""
_RESAMPLES = 9999
"""The number of permutations of more levels than can be permuted in every way."""


@dataclass(frozen=True)
class LevelMeans:
    """The means of a study at the levels of a factor.

    weights: by level, the arms over which its mean is taken. means: by level, over the seeds that all of its arms have
    finished, as in the study: smaller is better where ``minimize``.
    """

    evidence: Evidence
    minimize: bool
    weights: Mapping[str, Mapping[str, float]]
    means: Mapping[str, float]

    def renamed(self, match: Mapping[str, str]) -> LevelMeans:
        """Returns the means with other names of levels. match: the names here, by the new ones."""
        names = {level: level for level in self.means if level not in match.values()} | dict(match)
        present = {new: level for new, level in names.items() if level in self.means}
        weights = {new: self.weights[level] for new, level in present.items()}
        return replace(self, weights=weights, means={new: self.means[level] for new, level in present.items()})

    def decided(self, one: str, other: str) -> int:
        """Returns 1 where a level is shown to be better than another one at 95 % confidence, -1 where it is shown to be
        worse, and 0 where neither is shown."""
        weights = dict(self.weights[one])
        for arm, weight in self.weights[other].items():
            weights[arm] = weights.get(arm, 0.0) - weight
        seeds = self.evidence.seeds([*weights])
        if not seeds or self.evidence.without_value([*weights], seeds):
            return 0
        interval = estimate(self.evidence.pairs(weights, seeds), self.evidence.at_documents(weights, seeds)).interval
        if interval is None or interval.low <= 0 <= interval.high:
            return 0
        return -1 if (interval.low > 0) == self.minimize else 1


class AgreedPairs(NamedTuple):
    """The number of pairs of levels, of those that both studies decide, and of those that they decide alike."""

    pairs: int
    decided: int
    alike: int


@dataclass(frozen=True)
class LevelOrder:
    """The levels of a factor that two studies have in common, from the best in the first study to the worst, and the
    means of both."""

    factor: str
    levels: tuple[str, ...]
    one: LevelMeans
    other: LevelMeans

    def ranks(self, side: LevelMeans) -> dict[str, float]:
        """Returns the rank of each level in a study, 1 for the best one; levels with equal means share a rank."""
        return dict(zip(self.levels, map(float, stats.rankdata(self._losses(side))), strict=True))

    def _losses(self, side: LevelMeans) -> list[float]:
        return [side.means[level] * (1 if side.minimize else -1) for level in self.levels]

    @cached_property
    def _units(self) -> tuple[Array, Array] | None:
        """The ranks of both studies as vectors of mean 0 and length 1; None where all levels of one share a rank."""
        centred = [
            np.array([*self.ranks(side).values()]) - (len(self.levels) + 1) / 2 for side in (self.one, self.other)
        ]
        first, second = (ranks / length if (length := np.linalg.norm(ranks)) else None for ranks in centred)
        return None if first is None or second is None else (first, second)

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation of the two studies; None where all levels of one have the same mean."""
        return float(self._units[0] @ self._units[1]) if self._units else None

    @property
    def interval(self) -> ConfidenceInterval | None:
        """The 95 % interval of the correlation; None where it is not known, and of ranks that are all equal or all
        opposite, for which the interval is not defined."""
        rho = self.correlation
        if rho is None or abs(rho) > 1 - 1e-12:
            return None
        error = math.sqrt((1 + rho**2 / 2) / (len(self.levels) - 3))
        middle, half = math.atanh(rho), float(stats.norm.ppf(1 - LEVEL / 2)) * error
        return ConfidenceInterval(math.tanh(middle - half), math.tanh(middle + half))

    @cached_property
    def p(self) -> float | None:
        """The p-value that the orders are unrelated: the share of permutations of levels whose correlation is as far
        from 0, all of them where they are few; None without a correlation."""
        if self._units is None:
            return None
        first, second = self._units
        tested = stats.permutation_test(
            (first,),
            lambda permuted: float(permuted @ second),
            permutation_type="pairings",
            n_resamples=_RESAMPLES,
            rng=np.random.default_rng(0),
        )
        return float(tested.pvalue)

    @cached_property
    def agreed(self) -> AgreedPairs:
        """The pairs of levels that both studies decide, each at 95 % confidence without correction."""
        pairs = [*combinations(self.levels, 2)]
        products = [self.one.decided(*pair) * self.other.decided(*pair) for pair in pairs]
        return AgreedPairs(len(pairs), sum(map(abs, products)), products.count(1))


def order_of(
    one: Study,
    other: Study,
    factor: str | None = None,
    other_factor: str | None = None,
    match: Mapping[str, str] | None = None,
) -> LevelOrder:
    """Returns the order of the levels of a factor in two studies, by default of the first one that both have.

    other_factor: its name in the second study, if it differs. match: the names in the second study of levels of the
    first one, if they differ. Raises ReportError where a study has no such factor or level, or fewer than four levels
    have finished in both.
    """
    names = f"{one.plan.study} and {other.plan.study}"
    chosen = factor or next((name for name in one.plan.factors if name in other.plan.factors), None)
    if chosen is None:
        remedy = "name one of each: --factor ONE=OTHER"
        raise ReportError(f"{names} have no factor in common: {_listed(one)} and {_listed(other)}; {remedy}")
    matched, match = other_factor or chosen, match or {}
    for study, name, levels in ((one, chosen, [*match]), (other, matched, [*match.values()])):
        if name not in study.plan.factors:
            raise ReportError(f"{study.plan.study} has no factor {name!r}; its factors: {_listed(study)}")
        if unknown := [level for level in levels if level not in study.plan.factors[name]]:
            known = nearest(unknown[0], study.plan.factors[name])
            raise ReportError(f"{name} of {study.plan.study} has no level {unknown[0]!r}; {known}")
    first, second = level_means(one, chosen), level_means(other, matched).renamed(match)
    common = [level for level in first.means if level in second.means]
    if len(common) < _FEWEST:
        finished = ", ".join(common) or "none"
        reason = f"fewer than {_FEWEST} levels of {chosen} with finished runs in both: {finished}"
        raise ReportError(f"{names} have {reason}; pair levels of different names: --match LEVEL=LEVEL")
    common.sort(key=lambda level: first.means[level], reverse=not first.minimize)
    return LevelOrder(chosen, tuple(common), first, second)


def _listed(study: Study) -> str:
    return ", ".join(study.plan.factors) or "none"


def level_means(study: Study, factor: str) -> LevelMeans:
    """Returns the means at the levels of a factor. In a product they are over the levels of the other factors, which
    every level must have; in another design they are of arms whose other levels are the baseline's."""
    plan = study.plan
    baseline = next(arm for arm in plan.arms if arm.name == plan.baseline)
    arms: dict[str, dict[frozenset[tuple[str, str]], str]] = {}
    for arm in plan.arms:
        others = frozenset((name, level) for name, level in arm.levels.items() if name != factor)
        if factor in arm.levels and (plan.design == "product" or others <= {*baseline.levels.items()}):
            arms.setdefault(arm.levels[factor], {}).setdefault(others, arm.name)
    most = max((len(of_level) for of_level in arms.values()), default=0)
    whole = {level: [*of_level.values()] for level, of_level in arms.items() if len(of_level) == most}
    evidence = gather(study, [])
    finished = {level: names for level, names in whole.items() if _has_values(evidence, names)}
    weights = {level: dict.fromkeys(names, 1 / len(names)) for level, names in finished.items()}
    means = {level: float(np.mean(evidence.pairs(of, evidence.seeds([*of])))) for level, of in weights.items()}
    return LevelMeans(evidence, plan.metric.goal == "minimize", weights, means)


def _has_values(evidence: Evidence, arms: Sequence[str]) -> bool:
    """Whether there is a seed that all of these arms have finished, and their values can be used."""
    seeds = evidence.seeds(arms)
    return bool(seeds) and evidence.without_value(arms, seeds) is None
