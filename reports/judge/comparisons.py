"""The comparisons of a study: paired contrasts, main effects and interactions, each with its verdict.

Every comparison is a weighted sum over arms of the same seeds, so one kind of interval serves all of them. It is called
equal where its interval lies within the study's margin, also if the interval excludes zero: nobody would care.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from lit_transformers.records.measure import Goal
from lit_transformers.records.plan import Plan, PlannedArm
from reports.judge.comparability import incomparable
from reports.judge.evidence import Evidence, gather
from reports.judge.fairness import mismatch
from reports.judge.known import LEAST, learned_too_little
from reports.judge.multiplicity import (
    WHOLE,
    Look,
    cost_of_added_looks,
    error_shares,
    looks_ahead,
    looks_taken,
    step_down,
)
from reports.judge.retention import beyond_limit
from reports.judge.statistics import LEVEL, PairedDifference, estimate
from reports.read.study import Study

Kind = Literal["contrast", "main effect", "interaction"]
Verdict = Literal["better", "worse", "equal", "differs", "unresolved"]

_STEPS = 10
"""The parts of an interval at whose ends the seeds that are needed are computed."""


@dataclass(frozen=True)
class Comparison:
    """A weighted sum over arms, with its estimate and verdict.

    ``reason`` says why there is no estimate or no verdict. ``adjusted`` is the p-value after Holm's correction and
    ``level`` the level that the uncorrected p-value has to lie below; ``equality`` and ``equality_level`` are the same
    of the statement that the difference lies within ``margin``, and None without one. ``ahead`` are the looks that may
    decide what is open, with their shares as multiples of that of the present one. ``documents`` is the number of
    documents that the estimate was resampled over, 0 where none were. ``estimate`` and ``margin`` are in units of the
    metric or, where the metric compares by ratio, of its natural logarithm. ``factors`` are those of an effect.
    """

    name: str
    kind: Kind
    weights: Mapping[str, float]
    estimate: PairedDifference | None = None
    documents: int = 0
    adjusted: float | None = None
    level: float = LEVEL
    verdict: Verdict | None = None
    reason: str | None = None
    margin: float | None = None
    equality: float | None = None
    equality_level: float | None = None
    factors: tuple[str, ...] = ()
    ahead: tuple[Look, ...] = ()

    @property
    def detectable(self) -> float | None:
        """The smallest difference that this number of seeds detects with a power of 0.8; None for a single seed."""
        return self.estimate.detectable(self.level) if self.estimate else None

    @property
    def seeds_needed(self) -> int | None:
        """The number of seeds that would detect the observed difference, or that it lies within the margin, with a
        power of 0.8, whichever is smaller; of what is open, at the next look that would.

        None where it cannot be computed or where no number of seeds would.
        """
        if self.estimate is None:
            return None
        if not self.ahead:
            return self._seeds_at(1.0)
        fewest = self.estimate.seeds + 1
        for look in self.ahead:
            needed = self._seeds_at(look.share)
            if needed is not None and (look.seeds is None or needed <= look.seeds):
                return look.seeds or max(needed, fewest)
            fewest = (look.seeds or 0) + 1
        return None

    def _seeds_at(self, share: float) -> int | None:
        """Returns the number of seeds that would decide at a share of the present levels, or None."""
        assert self.estimate is not None
        numbers = [self.estimate.seeds_needed(self.level * share)]
        if self.margin is not None and self.equality_level is not None:
            numbers.append(self.estimate.seeds_within(self.margin, self.equality_level * share))
        return min((number for number in numbers if number is not None), default=None)

    @property
    def seeds_range(self) -> tuple[int | None, int | None]:
        """The smallest and the largest number of seeds that would be needed if the difference were another one within
        its interval; None where no number of seeds would do."""
        if self.estimate is None or self.estimate.interval is None:
            return self.seeds_needed, self.seeds_needed
        low, high = self.estimate.interval
        differences = [low + (high - low) * step / _STEPS for step in range(_STEPS + 1)]
        if low < 0 < high:
            differences.append(0.0)
        needed = [replace(self, estimate=replace(self.estimate, difference=one)).seeds_needed for one in differences]
        numbers = [number for number in needed if number is not None]
        return min(numbers, default=None), None if None in needed else max(numbers)


def compare(study: Study, notes: list[str], unmatched: bool = False) -> tuple[Comparison, ...]:
    """Returns all comparisons of a study in print order, corrected as one family with an error rate of 5 % of studies.

    ``unmatched``: give verdicts also where the budgets of arms do not match.
    """
    evidence = gather(study, notes)
    planned = [*planned_contrasts(study.plan), *planned_effects(study.plan, evidence)]
    looks, margin = looks_taken(study.plan.looks), _margin(study, notes)
    if study.plan.looks and not looks:
        reason = f"the look of {study.plan.looks.planned[0]} seeds is not complete"
        early = (_measure(one, study, evidence, unmatched, WHOLE) for one in planned)
        return tuple(replace(one, margin=margin, reason=one.reason or reason) for one in early)
    if cost := cost_of_added_looks(study.plan.looks):
        notes.append(cost)
    measured = [[_measure(one, study, evidence, unmatched, look) for one in planned] for look in looks]
    judged = _judge(measured, looks, study.plan.metric.goal, margin)
    ahead = tuple(look._replace(share=look.share / looks[-1].share) for look in looks_ahead(study.plan.looks))
    return tuple(replace(one, ahead=ahead) if one.verdict == "unresolved" else one for one in judged)


def estimates(study: Study, notes: list[str]) -> tuple[Comparison, ...]:
    """Returns all comparisons of a study in print order with the estimates of its last look, and without verdicts."""
    evidence = gather(study, notes)
    look = (looks_taken(study.plan.looks) or (WHOLE,))[-1]
    planned = (*planned_contrasts(study.plan), *planned_effects(study.plan, evidence))
    return tuple(_measure(one, study, evidence, unmatched=True, look=look) for one in planned)


def _margin(study: Study, notes: list[str]) -> float | None:
    """Returns the study's margin on the scale of its comparisons, or None without one; adds a note where it is as large
    as the baseline's own value and as what the baseline has learned beyond the floor, and cannot be used.

    A loss near zero is below any margin worth stating, and says nothing of how much there was to learn.
    """
    metric = study.plan.metric
    if metric.margin is None:
        return None
    if metric.compare == "ratio":
        return math.log(metric.margin.size)
    mean = study.mean_of(study.plan.baseline)
    gain = study.gain_over(study.floor) if study.floor else None
    if mean is None or metric.margin.size < max(abs(mean), gain or 0.0):
        return float(metric.margin.size)
    beyond = f" nor below the {gain:.4g} by which it beats the floor" if gain and gain > 0 else ""
    notes.append(
        f"The margin of {metric.margin.size:g} is not below the baseline's own value of {abs(mean):.4g}{beyond}, "
        "so no comparison is called equal; state a smaller one."
    )
    return None


def planned_contrasts(plan: Plan) -> list[Comparison]:
    """Returns the contrasts that the plan names or, where it names neither these nor effects, every arm against the
    baseline."""
    if plan.contrasts is not None or plan.effects is not None:
        return [Comparison(c.name, "contrast", {c.arm: 1.0, c.against: -1.0}) for c in plan.contrasts or ()]
    base = next(arm for arm in plan.arms if arm.name == plan.baseline)
    others = [arm for arm in plan.arms if arm.name != plan.baseline]
    return [
        Comparison(f"{_changed(plan, arm, base)} against the baseline", "contrast", {arm.name: 1.0, base.name: -1.0})
        for arm in others
    ]


def _changed(plan: Plan, arm: PlannedArm, base: PlannedArm) -> str:
    """Returns the levels in which an arm differs from the baseline, or the arm's name where no level differs."""
    if plan.labels.factor:
        return plan.labels.names[arm.name]
    levels = [f"{factor}={level}" for factor, level in arm.levels.items() if base.levels.get(factor) != level]
    return " ".join(levels) or arm.name


def planned_effects(plan: Plan, evidence: Evidence) -> Iterator[Comparison]:
    """Yields the main effects and two-way interactions of a product design, relative to the baseline's levels, or only
    the main effects of the factors that the plan names.

    They are averaged over the cells that have run. Designs with fewer than two varied factors have none.
    """
    varied = [factor for factor in plan.factors if len({arm.levels.get(factor) for arm in plan.arms}) > 1]
    if plan.design != "product" or len(varied) < 2:
        return
    grid = _Grid(plan.arms, frozenset(arm for arm, _ in evidence.values))
    base = next(arm for arm in plan.arms if arm.name == plan.baseline).levels
    for factor in varied if plan.effects is None else plan.effects:
        for level in grid.levels(factor, base):
            name = f"{factor}: {level} against {base[factor]}"
            yield grid.comparison(name, "main effect", {factor: level}, base)
    for first, second in combinations(varied, 2) if plan.effects is None else ():
        for level in grid.levels(first, base):
            for second_level in grid.levels(second, base):
                yield grid.comparison(
                    f"{first}={level} with {second}={second_level}",
                    "interaction",
                    {first: level, second: second_level},
                    base,
                )


@dataclass(frozen=True)
class _Grid:
    """The arms of a product design, and the names of those that have ``run``."""

    arms: Sequence[PlannedArm]
    run: frozenset[str]

    def levels(self, factor: str, base: Mapping[str, str]) -> list[str]:
        """Returns the levels of a factor other than the baseline's, in the order of the arms."""
        all_levels = dict.fromkeys(arm.levels[factor] for arm in self.arms if factor in arm.levels)
        return [level for level in all_levels if factor in base and level != base[factor]]

    def comparison(self, name: str, kind: Kind, changed: Mapping[str, str], base: Mapping[str, str]) -> Comparison:
        """Returns the effect of the changed levels, averaged over the levels of the other factors.

        For two factors this is their interaction, and each term is (both - one) - (other - neither), the alternating
        sum over the changed factors.
        """
        starts = [arm for arm in self.arms if all(arm.levels.get(f) == level for f, level in changed.items())]
        terms = [term for term in (self._term(arm, changed, base) for arm in starts) if term]
        if not terms:
            return Comparison(name, kind, {}, reason="an arm it needs has not finished", factors=tuple(changed))
        weights: defaultdict[str, float] = defaultdict(float)
        for term in terms:
            for arm, sign in term.items():
                weights[arm] += sign
        part = "" if len(terms) == len(starts) else f" (over {len(terms)} of {len(starts)} combinations)"
        averaged = {arm: sign / len(terms) for arm, sign in weights.items()}
        return Comparison(f"{name}{part}", kind, averaged, factors=tuple(changed))

    def _term(self, arm: PlannedArm, changed: Mapping[str, str], base: Mapping[str, str]) -> dict[str, float] | None:
        term: dict[str, float] = {}
        for size in range(len(changed) + 1):
            for restored in combinations(changed, size):
                levels = {**arm.levels, **{factor: base[factor] for factor in restored}}
                partner = next((candidate.name for candidate in self.arms if candidate.levels == levels), None)
                if partner is None or partner not in self.run:
                    return None
                term[partner] = (-1.0) ** size
        return term


def _measure(planned: Comparison, study: Study, evidence: Evidence, unmatched: bool, look: Look) -> Comparison:
    """Returns a planned comparison with its estimate from the seeds of a look, or with the reason why there is none."""
    if not planned.weights:
        return planned
    arms = list(planned.weights)
    first = study.plan.arms[0].runs[0].seed
    seeds = [seed for seed in evidence.seeds(arms) if look.seeds is None or seed < first + look.seeds]
    if not seeds:
        return replace(planned, reason=_why_missing(study, arms))
    other = incomparable(study, planned.weights, seeds)
    # Of records from before they said what they were measured on, the difference stays beside the reason.
    of_old_records = other is not None and any(run.lacks_measurement for arm in arms for run in study.finished(arm))
    if reason := (None if of_old_records else other) or evidence.without_value(arms, seeds):
        return replace(planned, reason=reason)
    pairs = evidence.pairs(planned.weights, seeds)
    if reason := evidence.without_interval(arms, seeds):
        return replace(planned, estimate=PairedDifference(sum(pairs) / len(pairs), len(pairs)), reason=reason)
    resampled = evidence.at_documents(planned.weights, seeds)
    difference = estimate(pairs, resampled, LEVEL * look.share)
    reason = other or (None if unmatched else mismatch(study, arms)) or _why_unknown(study, arms)
    reason = reason or beyond_limit(study, arms, seeds, LEVEL * look.share)
    if reason is None and difference.p is None:
        reason = "one seed: no interval, no verdict" if len(seeds) == 1 else "every seed gives the same difference"
    return replace(planned, estimate=difference, documents=evidence.documents if resampled else 0, reason=reason)


def _why_unknown(study: Study, arms: Sequence[str]) -> str | None:
    """Returns why arms that have learned next to nothing of what can be known have no verdict, or None."""
    shares = learned_too_little(study, arms)
    if not shares:
        return None
    most = max(shares.values())
    return (
        f"trained too little: none has learned more than {most:.1%} of the known optimum, and {LEAST:.0%} is the least"
    )


def _judge(
    measured: Sequence[Sequence[Comparison]], looks: Sequence[Look], goal: Goal | None, margin: float | None
) -> list[Comparison]:
    """Returns every comparison as it is at the look that decides it or, undecided, at the last one, corrected over all
    that may have a verdict. measured: the comparisons at each look."""
    family = {index for comparisons in measured for index, one in enumerate(comparisons) if _p(one) is not None}
    shares = error_shares(len(family), margin)
    judged: list[Comparison] = list(measured[0])
    different: set[int] = set()
    equal: set[int] = set()
    for comparisons, look in zip(measured, looks, strict=True):
        undecided = [index for index in range(len(judged)) if judged[index].verdict in (None, "unresolved")]
        for index in undecided:
            judged[index] = replace(comparisons[index], margin=margin)
        p_values = {index: p for index in undecided if (p := _p(judged[index])) is not None}
        within = {index: p for index in p_values if (p := _p_within(judged[index])) is not None}
        differing = step_down(p_values, len(family) - len(different), shares.difference * look.share)
        alike = step_down(within, len(family) - len(equal), shares.equality * look.share)
        for index, (adjusted, level) in differing.items():
            judged[index] = replace(judged[index], adjusted=adjusted, level=level)
            if index in alike:
                judged[index] = replace(
                    judged[index], equality=alike[index].adjusted, equality_level=alike[index].level
                )
            judged[index] = replace(judged[index], verdict=_verdict(judged[index], goal))
        different |= {index for index, outcome in differing.items() if outcome.adjusted < LEVEL}
        equal |= {index for index, outcome in alike.items() if outcome.adjusted < LEVEL}
    return judged


def _p(comparison: Comparison) -> float | None:
    """Returns the p-value of a comparison that may have a verdict."""
    return comparison.estimate.p if comparison.estimate and comparison.reason is None else None


def _p_within(comparison: Comparison) -> float | None:
    """Returns the level at which a comparison's interval lies within its margin, or None without one."""
    if comparison.estimate is None or comparison.margin is None:
        return None
    return comparison.estimate.p_within(comparison.margin)


def _verdict(comparison: Comparison, goal: Goal | None) -> Verdict:
    if comparison.equality is not None and comparison.equality < LEVEL:
        return "equal"
    if comparison.adjusted is None or comparison.adjusted >= LEVEL or comparison.estimate is None:
        return "unresolved"
    if comparison.kind == "interaction" or goal is None:
        return "differs"
    return "better" if (comparison.estimate.difference < 0) == (goal == "minimize") else "worse"


def _why_missing(study: Study, arms: Sequence[str]) -> str:
    reasons = [
        f"{arm}: {'; '.join(dict.fromkeys(run.missing for run in study.of(arm) if run.missing)) or 'no runs'}"
        for arm in arms
        if not study.finished(arm)
    ]
    return ", ".join(reasons) or "no seed has finished in all of its arms"
