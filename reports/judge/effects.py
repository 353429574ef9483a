"""Effects and their published counterparts on one scale: changes in per cent of the value of the arm compared with.

The metrics of a study and of its source differ in unit, so a difference of one cannot stand beside one of the other.
What both have is the change relative to the arm that is compared with, positive where it is better. Perplexities enter
by their logarithms: a perplexity is an exponential of bits per symbol, and a ratio of bits is the same whatever a
symbol is, whereas a ratio of perplexities grows with the length of words.

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
    "BLEU": re.compile("bleu", re.I),
    "ROUGE": re.compile("rouge", re.I),
    "squared error": re.compile(r"squared error|\bmse\b", re.I),
    "memory": re.compile("memory", re.I),
}
"""What metrics measure, by their names. Two of one kind are the same up to a unit."""


@dataclass(frozen=True)
class RelativeEffect:
    """A comparison with a published number, both in per cent of the value of the arm compared with, positive if better.

    ``same_metric``: whether the study and its source measure the same, so that sizes can be compared beside signs.
    """

    study: str
    judged: JudgedComparison
    ours: float
    interval: ConfidenceInterval | None
    published: float
    same_metric: bool


def relative_effects(entries: Sequence[GalleryEntry]) -> tuple[list[RelativeEffect], list[str]]:
    """Returns the effects of all comparisons with a published number, and by name, with the reason, those that cannot
    be put on the scale."""
    effects, left_out = [], []
    for entry in entries:
        for judged in entry.judged:
            if judged.has_counterpart:
                effect = relative_effect(entry.name, entry.findings, judged)
                if isinstance(effect, str):
                    left_out.append(f"{entry.name}, {judged.comparison.name} ({effect})")
                else:
                    effects.append(effect)
    return effects, left_out


def relative_effect(study: str, findings: Findings, judged: JudgedComparison) -> RelativeEffect | str:
    """Returns the effect of a comparison that has a published number, or why it cannot be put on this scale.

    Raises ValueError for a comparison without a published number.
    """
    estimate, published = judged.comparison.estimate, findings.study.plan.published
    sign = published_sign(published)
    if published is None or sign is None or judged.published is None:
        raise ValueError(f"{judged.comparison.name} has no published number")
    if judged.comparison.kind != "contrast":
        return "a mean over several arms"
    arm, against = judged.comparison.weights
    base = findings.study.mean_of(against)
    if estimate is None or base is None:
        return judged.comparison.reason or "no result"
    cells = published_cells(findings, judged.comparison)
    theirs = _change(published.metric, cells[arm], cells[against])
    differences = (estimate.difference, *(estimate.interval or ()))
    values = [base * math.exp(size) if findings.ratio else base + size for size in differences]
    changes = [change for value in values if (change := _change(findings.metric.name, value, base)) is not None]
    if theirs is None or len(changes) < len(values):
        return "a change of a value that is not above zero has no size in per cent"
    direction = -1 if findings.metric.goal == "minimize" else 1
    ours, *ends = (direction * change for change in changes)
    interval = ConfidenceInterval(min(ends), max(ends)) if ends else None
    kind = _kind(f"{findings.metric.name} {findings.metric.title}")
    same_metric = kind is not None and kind == _kind(published.metric)
    return RelativeEffect(study, judged, ours, interval, sign * theirs, same_metric)


def _kind(metric: str) -> str | None:
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(metric)), None)


def _change(metric: str, value: float, base: float) -> float | None:
    """Returns a change of a metric in per cent of ``base``; None where it has no size in per cent."""
    if _PERPLEXITY.search(metric):
        if min(value, base) <= 1:
            return None
        value, base = math.log(value), math.log(base)
    return 100 * (value / base - 1) if base > 0 else None
