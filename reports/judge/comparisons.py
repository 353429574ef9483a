"""The comparisons of a study: paired contrasts, main effects and interactions, each with its verdict.

Every comparison is a weighted sum over arms of the same seeds, so one kind of interval serves all of them. It is called
equal where its interval lies within the study's margin, also if the interval excludes zero: nobody would care.

Intervals are wider where the seeds of a study do not show that they are near normal (``normality``). A verdict is taken
back in two cases: a permutation of signs, which assumes no normality, does not confirm it (from six seeds on); or, of
"equal", more than a tenth of all seeds that have finished lie beyond the margin, seeds after the decision included.

There is no verdict on how good an arm is where one of its seeds is lost, where one diverged, unless the study asks for
the seeds that have learned, and where all arms know all there is or none has learned anything. Where an arm has learned
in some seeds and not in others, how often it learns is a separate question (``learning``) of the same family.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np

from lit_transformers.records.measure import Goal
from lit_transformers.records.plan import Plan, PlannedArm
from reports.judge.comparability import incomparable
from reports.judge.evidence import Evidence, gather
from reports.judge.fairness import mismatch
from reports.judge.known import LEAST, learned_too_little
from reports.judge.learning import Frequency, Learned, bounds, learned_runs, share_not_excluded
from reports.judge.multiplicity import (
    WHOLE,
    Look,
    cost_of_added_looks,
    error_shares,
    looks_ahead,
    looks_taken,
    step_down,
)
from reports.judge.normality import WIDENING, is_near_normal, seeds_to_show
from reports.judge.repeatability import repeatability_notes, why_not_identical
from reports.judge.retention import beyond_limit
from reports.judge.statistics import (
    LEVEL,
    POWER,
    PairedDifference,
    estimate,
    estimate_median,
    fewest_seeds,
    sign_flip_p,
)
from reports.judge.unpaired import Samples, can_permute, estimate_unpaired, permutation_p
from reports.read.study import FROM_TABLE, Study

Kind = Literal["contrast", "main effect", "interaction"]
Verdict = Literal["better", "worse", "equal", "identical", "differs", "unresolved"]

MOST_BEYOND = 0.1
"""The largest share of seeds beyond the margin of arms that are called equal."""
_MOST_NAMES = 3
_FIRST_OF_SECOND_OPINIONS = 6
"""The fewest seeds whose signs can decide at 5 %."""


@dataclass(frozen=True)
class Comparison:
    """A weighted sum over arms, with its estimate and verdict.

    ``reason`` says why there is no estimate or no verdict. ``adjusted`` is the p-value after Holm's correction and
    ``level`` the level that the uncorrected p-value has to lie below; ``equality`` and ``equality_level`` are these two
    values for the statement that the difference lies within ``margin``, and None without one. ``ahead`` are the looks
    that may decide an unresolved comparison, with their shares as multiples of the present look's share. ``documents``
    is the number of documents that the estimate was resampled over, 0 where none were. ``estimate`` and ``margin`` are
    in units of the metric or, where the metric compares by ratio, of its natural logarithm. ``factors`` are those of an
    effect.

    frequency: how often its arms learn, where one of them learns in some seeds and not in others; the estimate is then
    of the seeds in which all have learned. widening: as in ``normality``, and ``normal_from`` the number of seeds from
    which near-normal seeds could be shown; None where the seeds show that they are not. doubt: why a verdict was taken
    back. beyond: of how many finished seeds (the second number) the difference lies beyond the margin (the first).
    of_all_seeds: the mean over all finished seeds and their number, where these are more than those that decided: an
    effect that was decided early is too large on average, by chance. differences: of each seed. samples: the values of
    both sides where they share no seeds; ``differences`` are then of their runs in order.
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
    frequency: Frequency | None = None
    widening: float = 1.0
    normal_from: int | None = None
    doubt: str | None = None
    beyond: tuple[int, int] | None = None
    of_all_seeds: tuple[float, int] | None = None
    differences: tuple[float, ...] = ()
    samples: Samples | None = None

    @property
    def detectable(self) -> float | None:
        """The smallest difference that this number of seeds detects with a power of 0.8; None for a single seed."""
        return self.estimate.detectable(self.level) if self.estimate else None

    @property
    def share_not_excluded(self) -> float | None:
        """The largest share of runs beyond the margin that the finished seeds do not exclude; None without a margin."""
        return share_not_excluded(*self.beyond) if self.beyond else None

    @property
    def has_many_beyond(self) -> bool:
        """Whether more seeds lie beyond the margin than those of equal arms."""
        return self.beyond is not None and self.beyond[0] > MOST_BEYOND * self.beyond[1]

    @cached_property
    def seeds_needed(self) -> int | None:
        """The number of seeds that would decide with a power of 0.8, by the predictive distribution of the present
        ones; if looks are left, the seeds of the next look that would. None where it cannot be computed or 1,000 would
        not."""
        return self.seeds_for(POWER)

    @property
    def seeds_range(self) -> tuple[int | None, int | None]:
        """The numbers of seeds that would decide in half and in 95 % of cases; None as in ``seeds_needed``."""
        return self.seeds_for(0.5), self.seeds_for(0.95)

    def seeds_for(self, power: float) -> int | None:
        """Returns the number of seeds that would decide with this power, as ``seeds_needed``."""
        if self.estimate is None or self.estimate.variances is None:
            return None
        if not self.ahead:
            return self._seeds_at(1.0, power)
        fewest = self.estimate.seeds + 1
        for look in self.ahead:
            needed = self._seeds_at(look.share, power)
            if needed is not None and (look.seeds is None or needed <= look.seeds):
                return look.seeds or max(needed, fewest)
            fewest = (look.seeds or 0) + 1
        return None

    def _seeds_at(self, share: float, power: float) -> int | None:
        """Returns the number of seeds that would decide at a share of the present levels, or None."""
        assert self.estimate is not None
        return fewest_seeds(lambda seeds: self.power_of(seeds, share) >= power, beyond=self.estimate.seeds)

    def power_of(self, seeds: int, share: float = 1.0) -> float:
        """Returns with which probability this many seeds decide at a share of the present levels."""
        assert self.estimate is not None
        within = (self.equality_level or 0.0) * share
        may_be_equal = self.equality_level is not None and not self.has_many_beyond
        margin = self.margin if may_be_equal else None
        return self.estimate.decided(seeds, self.level * share, margin, within, self.widening_at(seeds)).either

    def widening_at(self, seeds: int) -> float:
        """Returns the widening that is to be expected of this many seeds."""
        return 1.0 if self.normal_from is not None and seeds >= self.normal_from else self.widening


def compare(
    study: Study, notes: list[str], unmatched: bool = False, planned: Sequence[Comparison] | None = None
) -> tuple[Comparison, ...]:
    """Returns all comparisons of a study in print order, corrected as one family with an error rate of 5 % of studies.

    ``unmatched``: give verdicts also where the budgets of arms do not match. ``planned``: make these comparisons in
    place of those of the plan.
    """
    evidence, learned = gather(study, notes), learned_runs(study)
    if planned is None:
        planned = [*planned_contrasts(study.plan), *planned_effects(study.plan, evidence)]
    looks, margin = looks_taken(study.plan.looks), _margin(study, notes)
    if study.plan.looks and not looks:
        reason = f"the look of {study.plan.looks.planned[0]} seeds is not complete"
        early = _measured(planned, study, evidence, learned, WHOLE, unmatched)
        return tuple(replace(one, margin=margin, reason=one.reason or reason) for one in early)
    if cost := cost_of_added_looks(study.plan.looks):
        notes.append(cost)
    measured = [_measured(planned, study, evidence, learned, look, unmatched) for look in looks]
    goal = study.plan.metric.goal
    all_seeds = _Seeds(study, evidence, learned, WHOLE)
    notes += repeatability_notes(study, {one.name: [*one.weights] for one in planned if one.kind == "contrast"})
    judged = [_reconsidered(one, all_seeds) for one in _judge(measured, looks, goal, margin)]
    if any(one.widening > 1 for one in judged):
        normal = [
            [_as_if_normal(one, look) for one in comparisons] for comparisons, look in zip(measured, looks, strict=True)
        ]
        judged = [_doubted(*both) for both in zip(judged, _judge(normal, looks, goal, margin), strict=True)]
    ahead = tuple(look._replace(share=look.share / looks[-1].share) for look in looks_ahead(study.plan.looks))
    return tuple(replace(one, ahead=ahead) if one.verdict == "unresolved" else one for one in judged)


def _as_if_normal(comparison: Comparison, look: Look) -> Comparison:
    if comparison.estimate is None:
        return comparison
    return replace(comparison, estimate=comparison.estimate.as_if_normal(LEVEL * look.share))


def _doubted(comparison: Comparison, normal: Comparison) -> Comparison:
    """Returns an unresolved comparison with the verdict that near-normal seeds would have, as a doubt."""
    if comparison.verdict != "unresolved" or comparison.doubt or normal.verdict in (None, "unresolved"):
        return comparison
    return replace(comparison, doubt=f"{normal.verdict} if seeds are near normal, which they do not show")


def estimates(study: Study, notes: list[str]) -> tuple[Comparison, ...]:
    """Returns all comparisons of a study in print order with the estimates of its last look, and without verdicts."""
    evidence = gather(study, notes)
    look = (looks_taken(study.plan.looks) or (WHOLE,))[-1]
    planned = (*planned_contrasts(study.plan), *planned_effects(study.plan, evidence))
    return tuple(_measured(planned, study, evidence, learned_runs(study), look, unmatched=True))


def _margin(study: Study, notes: list[str]) -> float | None:
    """Returns the study's margin on the scale of its comparisons, or None without one; adds a note where it is as large
    as the baseline's own value and as the baseline's gain over the floor, and cannot be used.

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
    the main effects of the factors that the plan names. Of a table, these are the effects of its arms over tasks.

    They are averaged over the cells that have run. Designs with fewer than two varied factors have none.
    """
    varied = [factor for factor in plan.factors if len({arm.levels.get(factor) for arm in plan.arms}) > 1]
    is_of_tasks = plan.design == FROM_TABLE and bool(plan.effects)
    if (plan.design != "product" and not is_of_tasks) or len(varied) < 2:
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


def _measured(
    planned: Sequence[Comparison], study: Study, evidence: Evidence, learned: Learned, look: Look, unmatched: bool
) -> list[Comparison]:
    """Returns planned comparisons with their estimates from the seeds of a look, or with the reasons why there are
    none."""
    seeds = _Seeds(study, evidence, learned, look)
    sums: list[dict[str, float]] = [{arm: 1.0, against: -1.0} for arm, against in _references(study.plan).items()]
    if study.plan.unpaired:
        sums = [{arm: 1.0} for arm in study.arm_names]
    differences = []
    for weights in sums:
        arms = [*weights]
        if both := [seed for seed in seeds.finished(arms) if seeds.all_learned(arms, seed)]:
            differences.append(evidence.pairs(weights, both))
    shape = _Shape.of([one for one in differences if np.isfinite(one).all()], study.plan.unpaired)
    return [_measure(one, seeds, shape, unmatched) for one in planned]


def _references(plan: Plan) -> dict[str, str]:
    """Returns by arm the one whose difference shows how seeds vary: the baseline or, of a table, that of its task."""
    if plan.design != FROM_TABLE:
        return {arm.name: plan.baseline for arm in plan.arms if arm.name != plan.baseline}
    references: dict[str, str] = {}
    for contrast in plan.contrasts or ():
        references.setdefault(contrast.arm, contrast.against)
    return references


class _Shape(NamedTuple):
    """The widening of intervals, and the number of seeds that could show near-normal ones; None where they are not."""

    widening: float
    normal_from: int | None

    @classmethod
    def of(cls, differences: Sequence[Sequence[float]], independent: bool) -> _Shape:
        """differences: of each arm from the baseline, one for each seed; or the values of independent arms."""
        needed = seeds_to_show(len(differences))
        if is_near_normal(differences, independent):
            return cls(1.0, needed)
        was_asked = min(map(len, differences), default=0) >= needed
        return cls(WIDENING, None if was_asked else needed)


class _Seeds(NamedTuple):
    """The seeds of a study that a look holds. learned: by arm and seed, whether a run that has ended has learned."""

    study: Study
    evidence: Evidence
    learned: Learned
    look: Look

    def planned(self, arms: Sequence[str]) -> list[int]:
        """Returns the seeds that are planned for all arms."""
        common = set.intersection(*({run.seed for run in self.study.of(arm)} for arm in arms))
        return sorted(filter(self._is_held, common))

    def ended(self, arms: Sequence[str]) -> list[int]:
        """Returns the planned seeds in which the runs of all arms have finished or diverged."""
        return [seed for seed in self.planned(arms) if all((arm, seed) in self.learned for arm in arms)]

    def finished(self, arms: Sequence[str]) -> list[int]:
        """Returns the seeds that all arms have finished."""
        return [*filter(self._is_held, self.evidence.seeds(arms))]

    def compared(self, arms: Sequence[str]) -> list[int]:
        """Returns the finished seeds that tell how good arms are: those in which all have learned, if each learns in at
        least half of the seeds that have ended; else all, for an arm that learns seldom is compared as it is."""
        ended, finished = self.ended(arms), self.finished(arms)
        if all(2 * sum(self.learned[arm, seed] for seed in ended) >= len(ended) for arm in arms):
            return [seed for seed in finished if self.all_learned(arms, seed)]
        return finished

    def all_learned(self, arms: Sequence[str], seed: int) -> bool:
        return all(self.learned.get((arm, seed), False) for arm in arms)

    def _is_held(self, seed: int) -> bool:
        first = self.study.plan.arms[0].runs[0].seed
        return self.look.seeds is None or seed < first + self.look.seeds


def _measure(planned: Comparison, seeds_of_look: _Seeds, shape: _Shape, unmatched: bool) -> Comparison:
    """Returns a planned comparison with its estimate from the seeds of a look, or with the reason why there is none."""
    if not planned.weights:
        return planned
    study, evidence, learned, look = seeds_of_look
    arms, metric = list(planned.weights), study.plan.metric
    ended, seeds = seeds_of_look.ended(arms), seeds_of_look.compared(arms)
    own = {arm: seeds_of_look.ended([arm]) if study.plan.unpaired else ended for arm in arms}
    is_mixed = any(len({learned[arm, seed] for seed in own[arm]}) > 1 for arm in arms)
    has_diverged = any(run.diverged for arm in arms for run in study.of(arm) if run.seed in own[arm])
    if is_mixed or has_diverged:
        planned = replace(planned, frequency=_frequency(planned, seeds_of_look))
    if not seeds:
        unlearned = "no seed has learned in all of its arms"
        return replace(planned, reason=unlearned if seeds_of_look.finished(arms) else _why_missing(study, arms))
    other = incomparable(study, planned.weights, seeds)
    # Old records do not describe their measurement: their difference is shown together with the reason.
    of_old_records = other is not None and any(run.lacks_measurement for arm in arms for run in study.finished(arm))
    reason = (None if of_old_records else other) or evidence.without_value(arms, seeds)
    if study.plan.unpaired:
        reason = next(
            filter(None, (evidence.without_value([arm], seeds_of_look.compared([arm])) for arm in arms)), reason
        )
    if reason:
        return replace(planned, reason=reason)
    pairs = evidence.pairs(planned.weights, seeds)
    if reason := evidence.without_interval(arms, seeds):
        return replace(planned, estimate=PairedDifference(sum(pairs) / len(pairs), len(pairs)), reason=reason)
    resampled = evidence.at_documents(planned.weights, seeds)
    is_median, samples = metric.quantity == "median", None
    level, counted = LEVEL * look.share, evidence.counted_variance(planned.weights, seeds)
    if study.plan.unpaired:
        samples = evidence.sides(planned.weights, seeds_of_look.compared)
        difference = estimate_unpaired(samples, resampled, level, shape.widening, counted)
    elif is_median:
        difference = estimate_median(pairs, resampled, level)
    else:
        difference = estimate(pairs, resampled, level, shape.widening, counted)
    if evidence.is_large:
        difference = replace(difference, pairs=None, resampled=None)
    reason = other or (None if unmatched else mismatch(study, arms)) or _why_unknown(study, arms)
    reason = reason or beyond_limit(study, arms, seeds, level)
    reason = reason or _why_seeds_are_missing(study, arms, seeds_of_look) or _why_no_mechanism(study, arms, seeds)
    if reason is None and difference.p is None:
        is_same = len(pairs) > 1 and not any(pairs)
        reason = why_not_identical(study, arms) if is_same else _why_no_interval(pairs, is_median)
    return replace(
        planned,
        estimate=difference,
        documents=evidence.documents if resampled else 0,
        reason=reason,
        widening=1.0 if is_median else shape.widening,
        normal_from=None if is_median else shape.normal_from,
        differences=tuple(pairs),
        samples=samples,
    )


def _frequency(planned: Comparison, seeds: _Seeds) -> Frequency | None:
    """Returns how often the two arms of a contrast learn; None of an effect."""
    if planned.kind != "contrast":
        return None
    if seeds.study.plan.unpaired:
        own = {arm: [seeds.learned[arm, seed] for seed in seeds.ended([arm])] for arm in planned.weights}
        return Frequency.of_independent(own)
    both = seeds.ended([*planned.weights])
    return Frequency.of({arm: [seeds.learned[arm, seed] for seed in both] for arm in planned.weights})


def _why_no_interval(pairs: Sequence[float], is_median: bool) -> str:
    if len(pairs) == 1:
        return "one seed cannot be judged; add seeds"
    if is_median and len(set(pairs)) > 1:
        return f"{len(pairs)} seeds do not bound a median; six do"
    return "every seed gives the same difference"


def _why_seeds_are_missing(study: Study, arms: Sequence[str], seeds: _Seeds) -> str | None:
    """Returns why missing seeds leave no verdict on how good an arm is: one was lost, or one diverged, unless the study
    asks for the seeds that have learned."""
    planned = {arm: seeds.planned([arm] if study.plan.unpaired else arms) for arm in arms}
    missing = [run for arm in arms for run in study.of(arm) if run.missing and run.seed in planned[arm]]
    lost = [run for run in missing if not run.diverged]
    if lost:
        names = ", ".join(dict.fromkeys(f"{run.arm} (seed {run.seed}: {run.missing})" for run in lost[:_MOST_NAMES]))
        more = f" and {len(lost) - _MOST_NAMES} more" if len(lost) > _MOST_NAMES else ""
        return f"seeds are missing and to be done: {names}{more}"
    if missing and study.plan.metric.quantity != "mean where learned":
        counts = Counter(run.arm for run in missing)
        text = ", ".join(f"{count} of {len(planned[arm])} seeds of {arm}" for arm, count in counts.items())
        if study.plan.metric.event:
            return f"not every run {study.plan.metric.event}, all but {text}; only how often is compared"
        return f"diverged, which is an outcome: {text}; only how often arms learn is compared"
    return None


def _why_no_mechanism(study: Study, arms: Sequence[str], seeds: Sequence[int]) -> str | None:
    """Returns why a difference says nothing of mechanisms: all arms are within the margin of the best possible value,
    or none is better than the floor by more than the margin."""
    metric = study.plan.metric
    if metric.margin is None or metric.compare == "ratio":
        return None
    means = {arm: float(np.mean([run.value for run in study.finished(arm) if run.seed in seeds])) for arm in arms}
    limits = {arm: bounds(study, arm) for arm in arms}
    size, sign = metric.margin.size, 1 if metric.goal == "minimize" else -1
    both = "both know" if len(arms) == 2 else "all know"
    if all(known.best is not None and sign * (means[arm] - known.best) <= size for arm, known in limits.items()):
        return f"{both} all there is: within {size:g} of the best possible value"
    neither = "neither has" if len(arms) == 2 else "none has"
    if all(known.floor is not None and sign * (known.floor - means[arm]) <= size for arm, known in limits.items()):
        return f"{neither} learned it: not beyond the floor by more than {size:g}"
    return None


def _why_unknown(study: Study, arms: Sequence[str]) -> str | None:
    """Returns why arms that have learned too little of the known optimum have no verdict, or None."""
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
    frequencies = {~index for comparisons in measured for index, one in enumerate(comparisons) if one.frequency}
    shares = error_shares(len(family | frequencies), margin)
    judged: list[Comparison] = list(measured[0])
    different: set[int] = set()
    equal: set[int] = set()
    for comparisons, look in zip(measured, looks, strict=True):
        undecided = [index for index in range(len(judged)) if judged[index].verdict in (None, "unresolved")]
        for index in undecided:
            judged[index] = replace(comparisons[index], margin=margin)
        p_values = {index: p for index in undecided if (p := _p(judged[index])) is not None}
        often = {
            ~index: one.frequency.p for index, one in enumerate(judged) if one.frequency and ~index not in different
        }
        within = {index: p for index in p_values if (p := _p_within(judged[index])) is not None}
        tested = p_values | often
        differing = step_down(tested, len(family | frequencies) - len(different), shares.difference * look.share)
        alike = step_down(within, len(family) - len(equal), shares.equality * look.share)
        for index, (adjusted, level) in differing.items():
            if index < 0:
                frequency = judged[~index].frequency
                assert frequency is not None
                decided = replace(frequency, adjusted=adjusted, level=level)
                judged[~index] = replace(judged[~index], frequency=decided)
                continue
            judged[index] = replace(judged[index], adjusted=adjusted, level=level)
            if index in alike:
                judged[index] = replace(
                    judged[index], equality=alike[index].adjusted, equality_level=alike[index].level
                )
            judged[index] = _with_verdict(judged[index], goal)
        different |= {index for index, outcome in differing.items() if outcome.adjusted < LEVEL}
        equal |= {index for index, outcome in alike.items() if outcome.adjusted < LEVEL}
    return [replace(one, verdict="identical") if _is_identical(one) else one for one in judged]


def _is_identical(comparison: Comparison) -> bool:
    """Whether two arms have the same value in each of several seeds."""
    is_same = len(comparison.differences) > 1 and not any(comparison.differences)
    is_same = is_same and (comparison.samples is None or len(set(map(len, comparison.samples))) == 1)
    return is_same and comparison.reason is None and comparison.kind == "contrast"


def _with_verdict(comparison: Comparison, goal: Goal | None) -> Comparison:
    """Returns a comparison with its verdict, or with the doubt that leaves it unresolved: that the permutation of
    signs does not confirm it."""
    verdict = _verdict(comparison, goal)
    p = None if verdict == "unresolved" or comparison.estimate is None else _second_opinion(comparison, verdict)
    if p is None or p < LEVEL:
        return replace(comparison, verdict=verdict)
    permuted = "signs" if comparison.samples is None else "labels"
    doubt = f"t intervals say {verdict}, and a permutation of {permuted} does not (p = {p:.2f})"
    return replace(comparison, verdict="unresolved", doubt=doubt)


def _second_opinion(comparison: Comparison, verdict: Verdict) -> float | None:
    """Returns the p-value of a permutation, which assumes no normality; None with too few seeds to decide by it."""
    margin = comparison.margin if verdict == "equal" else None
    if comparison.samples is not None:
        return permutation_p(comparison.samples, margin) if can_permute(comparison.samples) else None
    has_enough = len(comparison.differences) >= _FIRST_OF_SECOND_OPINIONS
    return sign_flip_p(comparison.differences, margin) if has_enough else None


def _reconsidered(comparison: Comparison, all_seeds: _Seeds) -> Comparison:
    """Returns a comparison with the results of all of its finished seeds, also of those after its decision: their mean,
    and how many lie beyond the margin; without "equal" if these are more than a tenth."""
    if not comparison.weights or not comparison.differences:
        return comparison
    seeds = all_seeds.compared([*comparison.weights])
    pairs = all_seeds.evidence.pairs(comparison.weights, seeds)
    if len(pairs) > len(comparison.differences):
        comparison = replace(comparison, of_all_seeds=(sum(pairs) / len(pairs), len(pairs)))
    if comparison.margin is None:
        return comparison
    beyond = sum(abs(one) > comparison.margin for one in pairs)
    comparison = replace(comparison, beyond=(beyond, len(seeds)))
    if comparison.verdict != "equal" or not comparison.has_many_beyond:
        return comparison
    doubt = f"within the margin on average, but {beyond} of {len(seeds)} seeds lie beyond it"
    return replace(comparison, verdict="unresolved", doubt=doubt)


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
    event = study.plan.metric.event
    if event and (never := [arm for arm in arms if study.of(arm) and all(run.diverged for run in study.of(arm))]):
        return f"no run of {' and '.join(never)} {event}"
    reasons = [
        f"{arm}: {'; '.join(dict.fromkeys(run.missing for run in study.of(arm) if run.missing)) or 'no runs'}"
        for arm in arms
        if not study.finished(arm)
    ]
    return ", ".join(reasons) or "no seed has finished in all of its arms"
