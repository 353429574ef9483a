"""Decides whether the results of a study agree with the numbers of its source, by one rule for all studies.

The source's difference of a comparison is the same weighted sum as ours, computed over the cells of the source. It is
defined where each arm has exactly one cell. The goal of the source's metric, which the study states, decides which
direction is better.

A comparison *agrees* where our verdict goes in the direction of the source. It *disagrees* where the verdict goes in
the other direction, or where the source prints equal numbers and we resolve a difference. Where our verdict is that
two are equal, it agrees if the difference of the source is smaller than the margin, and else disagrees. It is
*unresolved* where there is no verdict, or neither better, worse nor equal.
It is *not judged* where the baseline does not beat the floor, where none of its arms has learned enough of the data
(``known``), or where the baseline gains nothing from the context in which arms differ: a model that has learned less
than simple predictors, or uses no more context than all arms see, cannot answer the question. An arm with separate data
counts as the baseline of these, unless it does not generalize (``generalization``).
It is *in another unit* where our verdict is equal and the margin has no size in the unit of the source's metric.
It is *withdrawn* where its study is.

Bits, nats and perplexities are one quantity in three units: where the study and its source measure it in different
ones, the numbers of the source are converted to the unit of the study before they meet its margin.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from lit_transformers.records.plan import Metric, PlannedArm, PublishedCell, PublishedNumbers
from reports.judge.comparisons import Comparison
from reports.judge.findings import Findings
from reports.judge.systems import system_of

Agreement = Literal[
    "agrees", "disagrees", "unresolved", "not judged", "in another unit", "no published number", "withdrawn"
]

AGREEMENTS: tuple[Agreement, ...] = (
    *("agrees", "disagrees", "unresolved"),
    *("not judged", "in another unit", "no published number"),
)
"""The agreements of studies that stand. Withdrawn studies are counted separately."""

RULE = """\
A comparison agrees where our verdict, better or worse, has the direction of the difference between the numbers of the \
source. It disagrees where the direction is the opposite, or where the source prints equal numbers and we resolve a \
difference. It is unresolved where we have no such verdict. It is not judged, whatever the verdict, in three cases: \
the baseline does not beat the floor, which simple predictors reach on the same data; no arm has learned a quarter of \
what its data hold; or arms differ in windows or memories and the baseline gains nothing beyond the smallest of them. \
There is no published number where the source prints none for one of the arms, or where the study does not state which \
direction of the source's metric is better. Sizes are not compared, because the models and data are smaller here."""

EQUALITY_RULE = """\
A study may state a margin, the smallest effect that matters. The verdict equal agrees with a difference of the source \
below the margin, and disagrees with a larger one. Perplexities of a source are compared as bits or nats if the study \
measures these; a margin in a unit that cannot be converted to that of the source is not compared with it."""

_TURNS = 20_000

WITHDRAWN_RULE = """\
A study with a fault is withdrawn, with the reason, until it is measured again: its numbers stay, and none of its \
comparisons counts."""


_UNITS = {
    "perplexity": re.compile(r"perplexity|\bppl\b", re.I),
    "bits": re.compile(r"\bbits|\bbp[bcd]\b", re.I),
    "nats": re.compile(r"nats", re.I),
    "accuracy": re.compile("accuracy", re.I),
    "bleu": re.compile("bleu", re.I),
    "rouge": re.compile("rouge", re.I),
    "f1": re.compile(r"\bf1\b|_f1\b", re.I),
}
_PER_NAT = {"bits": 1 / math.log(2), "nats": 1.0, "perplexity": 0.0}
"""How many of a unit are one nat; a perplexity is the exponential of nats."""


class Chance(NamedTuple):
    """How many of the comparisons with a direction agree with their source, of how many, and with which probability
    at least as many would by chance, if each study goes with its source or against it with one chance in two."""

    agree: int
    directional: int
    p: float


def chance_of(entries: Sequence[GalleryEntry]) -> Chance:
    """Returns how far the agreement of studies exceeds chance. Studies are clusters, which turn as a whole."""
    directions = [
        [judged.agreement == "agrees" for judged in entry.judged if _is_directional(judged)] for entry in entries
    ]
    balances = np.array([2.0 * sum(one) - len(one) for one in directions if one])
    if not len(balances):
        return Chance(0, 0, 1.0)
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (_TURNS, len(balances)))
    larger = int(np.count_nonzero(signs @ np.abs(balances) >= balances.sum() - 1e-9))
    return Chance(sum(map(sum, directions)), sum(map(len, directions)), (larger + 1) / (_TURNS + 1))


def _is_directional(judged: JudgedComparison) -> bool:
    return judged.agreement in ("agrees", "disagrees") and judged.comparison.verdict in ("better", "worse")


@dataclass(frozen=True)
class JudgedComparison:
    """A comparison with the judgement on it.

    ``published`` is the source's difference in the units of the source's metric, positive where the first arm has the
    larger number, and None where it is not defined. ``remark`` is the study's explanation of the result.
    """

    comparison: Comparison
    published: float | None
    agreement: Agreement
    remark: str | None = None

    @property
    def has_counterpart(self) -> bool:
        """Whether the source prints a number that this comparison can agree with."""
        return self.agreement not in ("no published number", "withdrawn")


@dataclass(frozen=True)
class GalleryEntry:
    """A published study: the name of its folder, its findings, its comparisons judged against its source, and the
    verdicts that it was published with, by comparison, where these are kept."""

    name: str
    findings: Findings
    judged: tuple[JudgedComparison, ...]
    former: Mapping[str, str] = field(default_factory=dict)

    @property
    def system(self) -> str:
        return system_of(self.findings.study.plan.source)


def judge_comparisons(findings: Findings) -> list[JudgedComparison]:
    """Judges the comparisons of a study against its source: the contrasts and main effects that it names, or else every
    arm against the baseline."""
    kinds = ("contrast",) if findings.study.plan.effects is None else ("contrast", "main effect")
    judged = []
    for comparison in findings.comparisons:
        if comparison.kind in kinds:
            difference = published_difference(findings, comparison)
            agreement, remark = _agreement(findings, comparison, difference), _remark(findings, comparison)
            judged.append(JudgedComparison(comparison, difference, agreement, remark))
    return judged


def _agreement(findings: Findings, comparison: Comparison, difference: float | None) -> Agreement:
    """Returns how a comparison agrees with the source's ``difference``, by the rule above."""
    if findings.study.withdrawn:
        return "withdrawn"
    published = findings.study.plan.published
    sign = published_sign(published)
    if difference is None or sign is None:
        return "no published number"
    if not findings.can_answer(comparison.weights):
        return "not judged"
    if comparison.verdict in ("equal", "identical"):
        effect = _published_effect(findings, comparison, difference)
        if effect is None:
            return "in another unit"
        return "agrees" if effect < published_margin(findings) else "disagrees"
    if comparison.verdict not in ("better", "worse"):
        return "unresolved"
    ours = 1 if comparison.verdict == "better" else -1
    return "agrees" if difference * sign * ours > 0 else "disagrees"


def _remark(findings: Findings, comparison: Comparison) -> str | None:
    """Returns the study's remark on a comparison, which is stored by the name of the comparison or, for an arm against
    the baseline, of the arm."""
    plan = findings.study.plan
    if plan.published is None:
        return None
    is_named = plan.contrasts is not None or plan.effects is not None
    name = comparison.name if is_named else next(iter(comparison.weights))
    return plan.published.remarks.get(name)


def published_difference(findings: Findings, comparison: Comparison) -> float | None:
    """Returns the weighted sum of a comparison over the source's cells, or None where an arm has no cell or several."""
    cells = published_cells(findings, comparison)
    if not cells:
        return None
    # Cells have few decimals, so the rounding error of a sum of binary fractions must not count as a difference.
    return round(sum(comparison.weights[arm] * cell for arm, cell in cells.items()), 9)


def published_cells(findings: Findings, comparison: Comparison) -> dict[str, float]:
    """Returns the source's number for each arm of a comparison; empty where an arm has no cell or several."""
    published = findings.study.plan.published
    if published is None:
        return {}
    cells = {arm: _cell_value(findings, arm, published.cells) for arm in comparison.weights}
    values = {arm: cell for arm, cell in cells.items() if cell is not None}
    return values if len(values) == len(cells) else {}


def _published_effect(findings: Findings, comparison: Comparison, difference: float) -> float | None:
    """Returns the size of the source's effect as the study's margin measures it: its difference, in the unit of the
    margin, or, where the metric compares by ratio, the larger of its ratio and the inverse. It is infinite where its
    numbers have no ratio, and None where its unit cannot be converted."""
    published, cells = findings.study.plan.published, published_cells(findings, comparison)
    assert published is not None
    if findings.ratio:
        if min(cells.values()) <= 0:
            return math.inf
        return math.exp(abs(sum(comparison.weights[arm] * math.log(cell) for arm, cell in cells.items())))
    if published.margin is not None:
        return abs(difference)
    ours, theirs = unit_of(findings.metric), unit_of(published.metric)
    if ours == theirs:
        return abs(difference)
    if ours not in _PER_NAT or theirs not in _PER_NAT or (theirs == "perplexity" and min(cells.values()) <= 0):
        return None
    nats = {arm: math.log(cell) if theirs == "perplexity" else cell / _PER_NAT[theirs] for arm, cell in cells.items()}
    if ours == "perplexity":
        return None
    return abs(sum(comparison.weights[arm] * value for arm, value in nats.items())) * _PER_NAT[ours]


def unit_of(metric: Metric | str) -> str:
    """Returns the unit of a metric of a study, or of its source, as its name and label tell: ``bits``, ``nats``,
    ``perplexity``, or the name itself of any other, in lower case and without its split."""
    name = metric if isinstance(metric, str) else metric.name.rpartition("/")[2]
    title = name if isinstance(metric, str) else f"{name} {metric.label}"
    return next((unit for unit, pattern in _UNITS.items() if pattern.search(title)), name.casefold())


def published_margin(findings: Findings) -> float:
    """Returns the study's margin in units of the source's metric. A ratio has none, and is the same for both."""
    published, margin = findings.study.plan.published, findings.metric.margin
    assert published is not None and margin is not None
    return margin.size if findings.ratio or published.margin is None else published.margin


def _cell_value(findings: Findings, arm: str, cells: Sequence[PublishedCell]) -> float | None:
    arms = findings.study.plan.arms
    values = [cell.value for cell in cells if [match.name for match in matching_arms(arms, cell)] == [arm]]
    return values[0] if len(values) == 1 else None


def published_sign(published: PublishedNumbers | None) -> int | None:
    """Returns 1 if higher values of the source's metric are better, -1 if lower ones are, None if that is not known."""
    if published is None or published.goal is None:
        return None
    return 1 if published.goal == "maximize" else -1


def matching_arms(arms: Iterable[PlannedArm], cell: PublishedCell) -> list[PlannedArm]:
    """Returns the arms that a published cell belongs to: the one of its name, or those with its levels."""
    if isinstance(cell.arm, str):
        return [arm for arm in arms if arm.name == cell.arm]
    return [arm for arm in arms if cell.arm.items() <= arm.levels.items()]
