"""The paragraphs of a report on how its numbers are made: the variation that intervals cover, their assumptions, and
when a verdict holds."""

from __future__ import annotations

from collections.abc import Iterator

from reports.judge.findings import Findings
from reports.judge.normality import ENOUGH, FEWEST, WIDENING
from reports.judge.statistics import RESAMPLES

__all__ = ["method"]

TABLE = "The values come from a table: that the runs of a seed share data and order is taken from it, not checked."
PAIRED = """\
Differences are paired: both arms share seeds, data order and evaluation documents."""
PAIRED_SEEDS = "the variance between seeds (Student's t with one degree of freedom fewer than seeds)"
INDEPENDENT = """\
Differences are of independent samples: seeds of different arms have nothing in common."""
INDEPENDENT_SEEDS = """\
the variances between the seeds of both arms (Student's t with the degrees of freedom of Welch and Satterthwaite)"""
DOCUMENTS = f"""\
combines {{seeds}} and that between documents ({RESAMPLES:,} resamples, shared by all seeds and arms; documents of one \
origin are one cluster)"""
SOME_DOCUMENTS = """\
; where the table of intervals says *seeds only*, there are no values of documents, and it covers seeds alone"""
SEEDS_ONLY = """\
covers seeds only: it is of {seeds}, and there are no values of single documents, so another choice of documents is \
not covered"""
WIDE = f"""\
The seeds of the study do not show that they are near normal, which takes at least {FEWEST} seeds of an arm and \
{ENOUGH} degrees of freedom, so the part over seeds is {WIDENING:g} times as wide: this holds the error of a study \
where some seeds learn late or differences are skewed."""
NEAR_NORMAL = f"""\
Intervals and verdicts hold if seeds are near normal. Those of the study show it: with at least {FEWEST} seeds of an \
arm and {ENOUGH} degrees of freedom, neither their skewness nor their largest deviation is that of another \
distribution. Otherwise the part over seeds would be {WIDENING:g} times as wide."""
METHOD = """\
From {seeds} seeds on, a verdict also needs a permutation of {permuted} (p below 0.05), which assumes no \
normality. Verdicts hold after Holm's correction over all comparisons of the study (contrasts, main effects and \
interactions), so that at most 5 % of studies without any difference have a verdict; an interval that just excludes \
zero may stay unresolved. The smallest detectable difference is the one that this number of seeds detects with a \
power of 0.8 at the corrected level. The seeds needed would decide with the same power, by what the present seeds \
leave possible; for an unresolved comparison, at a later look with the look's share of the error. Arms whose matched \
budgets, planned or measured, differ by more than the study allows get no verdict, nor do arms of which a seed is \
missing or, unless the study says so, diverged."""

EQUALITY = """\
A comparison is equal if its interval lies within plus and minus the margin that the study stated beforehand, also if \
the interval excludes zero. Among several comparisons, the verdicts better, worse and different are tested at 3 % and \
equal at 2 %, each by Holm's procedure, so that at most 5 % of studies have a false statement of either kind; a single \
comparison is tested at 5 % for both. No comparison is equal if more than a tenth of the seeds lie beyond the margin. \
The seeds needed are for either verdict."""


LOOKS = """\
Looks at the results were planned at {planned} seeds per arm, and taken at {taken}. Every look has a share of the 5 % \
that was fixed beforehand, and Holm's correction applies at each look (a group-sequential Holm procedure), so that at \
most 5 % of studies have a false statement wherever they stop. A decided comparison keeps the result of its look. \
Each interval belongs to its look: together they cover the truth at all looks 95 % of the time or more, and are wider \
than intervals of the same number of seeds from the start."""


def method(findings: Findings) -> list[str]:
    """Returns paragraphs on how the numbers of a report are made."""
    plan, looks = findings.study.plan, findings.study.plan.looks
    design, seeds = (INDEPENDENT, INDEPENDENT_SEEDS) if plan.unpaired else (PAIRED, PAIRED_SEEDS)
    from_seeds, permuted = ("four", "labels") if plan.unpaired else ("six", "signs")
    rule = METHOD.format(seeds=from_seeds, permuted=permuted)
    before = [] if plan.unpaired or findings.study.knows_configs else [TABLE]
    paragraphs = [" ".join([*before, design, *_about_intervals(findings, seeds), rule])]
    if looks:
        planned, taken = (", ".join(map(str, numbers)) or "none" for numbers in (looks.planned, looks.taken))
        paragraphs.append(LOOKS.format(planned=planned, taken=taken))
    return [*paragraphs, *([EQUALITY] if findings.margin else [])]


def _about_intervals(findings: Findings, seeds: str) -> Iterator[str]:
    """Yields the variation that the intervals of these comparisons cover, and whether they hold only if seeds are near
    normal. seeds: the variances between seeds, in words."""
    estimated = [one for one in findings.comparisons if one.estimate and one.estimate.interval]
    with_documents = sum(bool(one.documents) for one in estimated)
    some = SOME_DOCUMENTS if with_documents < len(estimated) else ""
    covers = DOCUMENTS.format(seeds=seeds) + some if with_documents or not estimated else SEEDS_ONLY.format(seeds=seeds)
    yield f"The 95 % interval {covers}."
    if any(one.widening > 1 for one in estimated) or not estimated:
        yield WIDE
    elif findings.metric.quantity != "median":
        yield NEAR_NORMAL
