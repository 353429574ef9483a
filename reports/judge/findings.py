"""The findings of a study: its comparisons in their order, whether they can answer its question, and the decimals of
their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lit_transformers.records.context_losses import ContextLoss
from lit_transformers.records.floors import Floors
from lit_transformers.records.plan import Metric, Plan
from lit_transformers.records.reference import Reference
from reports.judge.comparisons import Comparison
from reports.judge.generalization import GeneralizationGap, generalization_gap
from reports.judge.known import KnownShare, known_shares, learned_too_little
from reports.judge.matrix import Matrix, accuracy_matrix
from reports.judge.significance import ContrastTests, bleu_tests
from reports.judge.stages import LearnedStage, learned_stages
from reports.read.study import Study

__all__ = ["NOT_ALONE", "Findings"]

NOT_ALONE = " (not meaningful alone)"
"""The text after the name of a main effect whose factor interacts with another one."""

_LOSSES = ("bpb", "nats")
"""The metrics that are a loss in bits or nats, per byte or per any other unit."""
_ERRORS = 2
"""The number of standard errors that a gain from context must exceed where no margin says which gain matters."""


@dataclass(frozen=True)
class Findings:
    """A study with its comparisons and notes, and the format in which its numbers are printed.

    further: the same by each metric that is shown and judges nothing, whose comparisons have no verdicts.
    """

    study: Study
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()
    further: tuple[Findings, ...] = ()

    @property
    def metric(self) -> Metric:
        return self.study.plan.metric

    @property
    def ratio(self) -> bool:
        return self.metric.compare == "ratio"

    @cached_property
    def references(self) -> Mapping[str, tuple[Reference, ...]]:
        """By arm, the known values of its data: from the value of a model that knows nothing of them to the best
        possible one."""
        plan = self.study.plan
        references = {arm.name: arm.references or plan.references for arm in plan.arms}
        return {arm: known for arm, known in references.items() if known}

    @cached_property
    def shares(self) -> Mapping[str, KnownShare]:
        """By arm, its share of the known optimum of its data."""
        return known_shares(self.study, self.references)

    @property
    def floors(self) -> dict[str, Floors]:
        """The floors of each of the data that arms read, by the arm that is compared with them: their baseline."""
        own = self.study.floors
        return {self.study.plan.baseline: own} | {other.arms[0]: other for other in own.others} if own else {}

    @cached_property
    def gaps(self) -> dict[str, GeneralizationGap]:
        """By name, the arms that are no better than the floor of their data though they were not trained too little."""
        gaps = {
            arm: generalization_gap(self.study, arm, floors, self.references.get(arm, ()))
            for arm, floors in self.floors.items()
            if arm != self.study.plan.baseline
        }
        return {arm: gap for arm, gap in gaps.items() if gap}

    @cached_property
    def below_floor(self) -> dict[str, Reference]:
        """The baselines of all data that are no better than the best floor, by name, with that floor: they were trained
        too little. The arms in ``gaps`` are not among them: their values are an answer."""
        best = {arm: floor for arm, floors in self.floors.items() if (floor := floors.best(self.metric))}
        gains = {arm: self.study.gain_over(floor, arm) for arm, floor in best.items() if arm not in self.gaps}
        return {arm: best[arm] for arm, gain in gains.items() if gain is not None and gain <= 0}

    @cached_property
    def stages(self) -> tuple[LearnedStage, ...]:
        """The stages whose floors were measured."""
        return tuple(learned_stages(self.study))

    @property
    def stages_below_floor(self) -> tuple[LearnedStage, ...]:
        """The stages that are no better than the best floor of their data, so that the arms that start from them say
        little of their objective."""
        return tuple(stage for stage in self.stages if stage.gain is not None and stage.gain <= 0)

    @property
    def trained_too_little(self) -> bool:
        """Whether the baseline is no better than the best floor, so that its arms cannot answer the question."""
        return self.study.plan.baseline in self.below_floor

    @property
    def gains_nothing_beyond(self) -> int | None:
        """The number of symbols that every arm sees and beyond which the baseline gains nothing, so that arms that see
        further cannot answer the question; None where it gains something, and where that was not measured.

        Where the contexts of all arms were measured, the gain of any of them counts: then the data have something far
        back, and that a mechanism does not carry it is an answer. Nothing is gained where the gain is below the margin
        or, without one, within two of its standard errors.
        """
        reach, context = self.study.plan.reach, self.study.context
        if reach is None or context is None or self.metric.name.rpartition("/")[2] not in _LOSSES:
            return None
        measured = [context.losses, *(arm.losses for arm in context.arms)]
        cuts = [cut for losses in measured if (cut := _last_within(losses, reach))]
        return None if not cuts or any(map(self._matters, cuts)) else cuts[0].length

    def _matters(self, cut: ContextLoss) -> bool:
        """Whether the context beyond a length matters. The metric changes in proportion to the loss of a symbol."""
        margin, mean = self.metric.margin, self.study.mean_of(self.study.plan.baseline)
        if margin is None or mean is None:
            return cut.beyond > _ERRORS * cut.error
        longest = cut.bits - cut.beyond
        return cut.bits >= margin.size * longest if self.ratio else mean * cut.beyond >= margin.size * longest

    def can_answer(self, arms: Iterable[str]) -> bool:
        """Returns whether an answer can be expected of a comparison of these arms; without one it is not judged."""
        if self.study.withdrawn:
            return False
        readers = [self.floors[baseline].arms for baseline in self.below_floor]
        readers += [stage.arms for stage in self.stages_below_floor if stage.arms]
        arms = tuple(arms)
        too_little = any(not names or name in names for names in readers for name in arms)
        return not too_little and self.gains_nothing_beyond is None and not learned_too_little(self.study, arms)

    @cached_property
    def learned_too_little(self) -> dict[str, float]:
        """The arms of comparisons in which none has learned enough of the known optimum, with their shares of it."""
        learned = (learned_too_little(self.study, one.weights) for one in self.comparisons if one.weights)
        shares = {arm: share for one in learned for arm, share in one.items()}
        return {arm: shares[arm] for arm in self.study.arm_names if arm in shares}

    @cached_property
    def interacting(self) -> frozenset[str]:
        """The factors whose effect depends on another factor, so that their main effects mean nothing alone."""
        return frozenset(factor for one in self.comparisons if one.verdict == "differs" for factor in one.factors)

    @cached_property
    def effects(self) -> tuple[Comparison, ...]:
        """Interactions that are there, main effects in their order, then other interactions; interactions from the
        largest to the smallest. A main effect whose factor interacts says so in its name."""
        main = [
            replace(c, name=f"{c.name}{NOT_ALONE}") if self.interacting.intersection(c.factors) else c
            for c in self.comparisons
            if c.kind == "main effect"
        ]
        mixed = [c for c in self.comparisons if c.kind == "interaction"]
        mixed.sort(key=lambda c: (c.verdict != "differs", -abs(c.estimate.difference) if c.estimate else 0.0))
        there = sum(c.verdict == "differs" for c in mixed)
        return (*mixed[:there], *main, *mixed[there:])

    @cached_property
    def shown(self) -> tuple[Comparison, ...]:
        """The contrasts, and after them the effects in their order."""
        return (*(one for one in self.comparisons if one.kind == "contrast"), *self.effects)

    @cached_property
    def primary(self) -> tuple[Comparison, ...]:
        """The comparisons that answer the question: those that the study names as its answer or, where it names none
        that is run at this scale, its first contrast, the effects of the first factor of a product, or every arm
        against the baseline. In place of main effects that mean nothing alone stand the interactions that say so."""
        plan = self.study.plan
        named = [one for name in plan.answer or () for one in self.comparisons if _is_called(one, name, plan)]
        chosen = named or self._first()
        if not any(one.kind == "main effect" and self.interacting.intersection(one.factors) for one in chosen):
            return tuple(chosen)
        factors = {factor for one in chosen for factor in one.factors}
        there = [one for one in self.effects if one.verdict == "differs" and factors.intersection(one.factors)]
        others = [one for one in chosen if not self.interacting.intersection(one.factors)]
        return (*there, *others)

    def _first(self) -> list[Comparison]:
        contrasts = [one for one in self.comparisons if one.kind == "contrast"]
        main = [one for one in self.comparisons if one.kind == "main effect"]
        if main and self.study.plan.contrasts is None:
            return [one for one in main if one.factors == main[0].factors]
        return contrasts[:1] if self.study.plan.contrasts else contrasts

    @cached_property
    def matrix(self) -> Matrix | None:
        """The accuracies of a product of two factors, cached because documents are resampled for it."""
        return accuracy_matrix(self.study)

    @property
    def battery(self) -> Matrix | None:
        """The matrix of a study whose columns are tasks, over which its rows are averaged; None of any other study."""
        return self.matrix if self.matrix and self.matrix.means else None

    @cached_property
    def bleu_tests(self) -> tuple[ContrastTests, ...]:
        """sacreBLEU's own tests of the contrasts, cached because they are slow."""
        return bleu_tests(self.study, [c for c in self.comparisons if c.kind == "contrast"])

    @property
    def margin(self) -> str | None:
        """The margin within which the study calls values equal, and its reason, in words; None without a margin that is
        used."""
        margin = self.metric.margin
        if margin is None or all(comparison.margin is None for comparison in self.comparisons):
            return None
        limits = f"a ratio between 1/{margin.size:g} and {margin.size:g}" if self.ratio else f"within ±{margin.size:g}"
        return f"{limits}; {margin.reason.rstrip('.')}"

    @property
    def about_width(self) -> str | None:
        """Why intervals are wider than those of near-normal seeds, in words; None where they are not."""
        wide = [one for one in self.comparisons if one.widening > 1 and one.estimate and one.estimate.interval]
        if not wide:
            return None
        needed = wide[0].normal_from
        why = "they are not" if needed is None else f"{needed} seeds of each arm could show it"
        return f"intervals are {wide[0].widening:g} times as wide as those of near-normal seeds: {why}"

    @property
    def difference_unit(self) -> str:
        return f"ratios of {self.metric.title}" if self.ratio else self.metric.title

    def as_printed(self, value: float) -> float:
        """Returns a difference as printed: if the metric compares by ratio, the ratio of which it is the logarithm."""
        return math.exp(value) if self.ratio else value

    @cached_property
    def decimals(self) -> int:
        """The number of decimals that shows two digits of the smallest standard deviation of an arm."""
        values = [[run.value for run in self.study.finished(arm.name)] for arm in self.study.plan.arms]
        spreads = [float(np.std(arm, ddof=1)) for arm in values if len(arm) > 1]
        return _two_digits([spread for spread in spreads if spread > 0])

    @cached_property
    def difference_decimals(self) -> int:
        """The number of decimals that shows two digits of the narrowest interval's half-width."""
        if self.ratio:
            return 2
        intervals = [c.estimate.interval for c in self.comparisons if c.estimate and c.estimate.interval]
        return _two_digits([(high - low) / 2 for low, high in intervals]) if intervals else self.decimals


def _is_called(comparison: Comparison, name: str, plan: Plan) -> bool:
    """Returns whether a name of a study's answer is that of a comparison: a contrast, an arm that is compared with the
    baseline, or a factor whose main effects are compared."""
    if comparison.kind == "contrast":
        arm = next(iter(comparison.weights), None)
        return name == comparison.name if plan.contrasts is not None else name == arm
    return comparison.kind == "main effect" and comparison.factors == (name,)


def _two_digits(widths: Sequence[float]) -> int:
    """Returns the number of decimals, 0 to 4, that shows two digits of the smallest width; 3 without widths.

    A width that misses a power of ten by a rounding error counts as that power.
    """
    return min(4, max(0, 1 - math.floor(math.log10(min(widths)) + 1e-9))) if widths else 3


def _last_within(losses: Sequence[ContextLoss], reach: int) -> ContextLoss | None:
    """Returns the longest context of at most ``reach`` symbols; None where it is the longest that was measured."""
    cuts = [cut for cut in losses[:-1] if cut.length <= reach]
    return cuts[-1] if cuts and losses[-1].length > reach else None
