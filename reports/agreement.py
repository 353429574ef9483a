"""Whether what a study found agrees with what its source printed: one rule for all studies.

The source's difference of a comparison is the same weighted sum that ours is, over its own cells: it exists where each
arm has exactly one cell of its own. Its metric says by its name which direction is better. A comparison *agrees* where
our verdict goes in the direction of the source, *disagrees* where it goes in the other, or where the source prints
equal numbers and we resolve a difference, and is *unresolved* where there is no verdict or none that decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reports.comparisons import Comparison
from reports.plans import PublishedCell
from reports.sections import Findings, matching_arms

Agreement = Literal["agrees", "disagrees", "unresolved", "no published number"]

AGREEMENTS: tuple[Agreement, ...] = ("agrees", "disagrees", "unresolved", "no published number")

RULE = """\
A comparison agrees where our verdict, better or worse, goes in the direction of the difference between the source's \
own cells; it disagrees where it goes in the other direction, or where the source prints equal numbers and we resolve \
a difference; it is unresolved where we have no such verdict. Where the source prints no number for one of the arms, \
or its metric does not say which direction is better, there is no published number to agree with. Sizes of differences \
are not compared: the scales are not the same."""

_LOWER = re.compile(r"perplexity|\bppl\b|bits|\bbp[bcd]\b|nats|loss|error|slower|seconds|time\b|memory|\bFLOPs\b", re.I)
_HIGHER = re.compile(r"accuracy|bleu|rouge|\bf1\b|faster|per second|score|correct|recall|throughput", re.I)


@dataclass(frozen=True)
class Judged:
    """A comparison beside the source: its difference in its own metric, positive where it is the larger number."""

    comparison: Comparison
    published: float | None
    agreement: Agreement


def judge(findings: Findings) -> list[Judged]:
    """The planned contrasts of a study, or every arm against the baseline, beside the source."""
    return [_judged(findings, one) for one in findings.comparisons if one.kind == "contrast"]


def _judged(findings: Findings, comparison: Comparison) -> Judged:
    published = findings.study.plan.published
    difference = published_difference(findings, comparison)
    sign = better_sign(published.metric) if published else None
    if difference is None or sign is None:
        return Judged(comparison, difference, "no published number")
    if comparison.verdict not in ("better", "worse"):
        return Judged(comparison, difference, "unresolved")
    ours = 1 if comparison.verdict == "better" else -1
    return Judged(comparison, difference, "agrees" if difference * sign * ours > 0 else "disagrees")


def published_difference(findings: Findings, comparison: Comparison) -> float | None:
    """The same weighted sum of the source's cells; None where an arm has none or several."""
    published = findings.study.plan.published
    if published is None or not comparison.weights:
        return None
    cells = {arm: _cell(findings, arm, published.cells) for arm in comparison.weights}
    known = [weight * cell for arm, weight in comparison.weights.items() if (cell := cells[arm]) is not None]
    # Cells have few decimals: what is left of a sum of binary fractions is no difference.
    return round(sum(known), 9) if len(known) == len(cells) else None


def _cell(findings: Findings, arm: str, cells: Sequence[PublishedCell]) -> float | None:
    arms = findings.study.plan.arms
    own = [cell.value for cell in cells if [found.name for found in matching_arms(arms, cell)] == [arm]]
    return own[0] if len(own) == 1 else None


def better_sign(metric: str) -> int | None:
    """1 where more of a metric of this name is better, -1 where less is; None where the name does not tell."""
    lower, higher = bool(_LOWER.search(metric)), bool(_HIGHER.search(metric))
    return None if lower == higher else 1 if higher else -1
