"""Effects and their published counterparts on one scale: changes in per cent of the value of the arm compared with.

The metrics of a study and of its source differ in unit, so their differences cannot be compared. Both have a change
relative to the arm that is compared with, positive where it is better. Perplexities enter by their logarithms: a
perplexity is an exponential of bits per symbol, and a ratio of bits does not depend on the symbol, whereas a ratio of
perplexities grows with the length of words.

The value of the arm compared with is taken as fixed: the interval is that of the difference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from reports.judge.agreement import GalleryEntry, JudgedComparison, published_cells, published_sign
from reports.judge.findings import Findings
from reports.judge.statistics import ConfidenceInterval

_PERPLEXITY = re.compile(r"perplexity|\bppl\b", re.I)
_KINDS = {
    "information": re.compile(rf"{_PERPLEXITY.pattern}|bits|\bbp[bcd]\b|nats", re.I),
    "accuracy": re.compile("accuracy", re.I),
    "Matthews correlation": re.compile("matthews", re.I),
    "F1": re.compile(r"\bf1\b|_f1\b", re.I),
    "BLEU": re.compile("bleu", re.I),
    "ROUGE": re.compile("rouge", re.I),
    "squared error": re.compile(r"squared error|\bmse\b", re.I),
    "memory": re.compile("memory", re.I),
}
"""The quantities that metrics measure, by patterns of their names. Two metrics of one quantity differ in unit alone."""
_NO_SIZE = "a change of a value that is not above zero has no size in per cent"


@dataclass(frozen=True)
class RelativeEffect:
    """A comparison in per cent of the value of the arm compared with, positive if better.

    ``published``: the same of the source's numbers; None where it prints none or they have no size in per cent.
    ``same_metric``: whether the study and its source measure the same, so that sizes can be compared as well as signs.
    """

    study: str
    judged: JudgedComparison
    ours: float
    interval: ConfidenceInterval | None
    published: float | None
    same_metric: bool


def relative_effects(entries: Sequence[GalleryEntry]) -> tuple[list[RelativeEffect], list[str]]:
    """Returns the effects of all comparisons with a published number, and by name, with the reason, those that cannot
    be put on the scale."""
    effects, left_out = [], []
    for entry in entries:
        for judged in entry.judged:
            if judged.has_counterpart:
                effect = relative_effect(entry.name, entry.findings, judged)
                if isinstance(effect, str) or effect.published is None:
                    reason = effect if isinstance(effect, str) else _NO_SIZE
                    left_out.append(f"{entry.name}, {judged.comparison.name} ({reason})")
                else:
                    effects.append(effect)
    return effects, left_out


def relative_effect(study: str, findings: Findings, judged: JudgedComparison) -> RelativeEffect | str:
    """Returns the effect of a comparison, or why it cannot be put on this scale.

    The value compared with is that of the second arm of a contrast and, of a main effect, the mean of the arms that
    have the level compared with.
    """
    comparison, estimate = judged.comparison, judged.comparison.estimate
    if comparison.kind == "interaction":
        return "an interaction has no arm compared with"
    against = {arm: -weight for arm, weight in comparison.weights.items() if weight < 0}
    means = {arm: mean for arm in against if (mean := findings.study.mean_of(arm)) is not None}
    if estimate is None or len(means) < len(against):
        return comparison.reason or "no result"
    base = sum(against[arm] * mean for arm, mean in means.items())
    differences = (estimate.difference, *(estimate.interval or ()))
    values = [base * math.exp(size) if findings.ratio else base + size for size in differences]
    changes = [change for value in values if (change := _change(findings.metric.name, value, base)) is not None]
    if len(changes) < len(values):
        return _NO_SIZE
    direction = -1 if findings.metric.goal == "minimize" else 1
    ours, *ends = (direction * change for change in changes)
    interval = ConfidenceInterval(min(ends), max(ends)) if ends else None
    metric = findings.study.plan.published.metric if findings.study.plan.published else ""
    kind = _kind(f"{findings.metric.name} {findings.metric.title}")
    same_metric = kind is not None and kind == _kind(metric)
    return RelativeEffect(study, judged, ours, interval, _published_change(findings, judged), same_metric)


def _published_change(findings: Findings, judged: JudgedComparison) -> float | None:
    """Returns the change of the source's numbers in per cent, positive if better; None where it has no size."""
    published = findings.study.plan.published
    sign, cells = published_sign(published), published_cells(findings, judged.comparison)
    if published is None or sign is None or not cells or not judged.has_counterpart:
        return None
    weights = judged.comparison.weights
    value, base = (sum(abs(weights[arm]) * cells[arm] for arm in cells if weights[arm] * side > 0) for side in (1, -1))
    change = _change(published.metric, value, base)
    return None if change is None else sign * change


def _kind(metric: str) -> str | None:
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(metric)), None)


def _change(metric: str, value: float, base: float) -> float | None:
    """Returns a change of a metric in per cent of ``base``; None where it has no size in per cent."""
    if _PERPLEXITY.search(metric):
        if min(value, base) <= 1:
            return None
        value, base = math.log(value), math.log(base)
    return 100 * (value / base - 1) if base > 0 else None
