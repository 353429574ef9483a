"""The comparisons of a study that disagree with its source, each with the study's explanation."""

from __future__ import annotations

from reports.judge.agreement import JudgedComparison, judge_comparisons
from reports.judge.findings import Findings

TITLE = "Disagreements with the source"
UNEXPLAINED = "Not looked into yet."


def remark_text(judged: JudgedComparison) -> str:
    """Returns the study's remark on a comparison, or that its result has not been looked into."""
    return judged.remark or UNEXPLAINED


def disagreements(findings: Findings) -> tuple[str, ...]:
    """Returns a text for each comparison that disagrees with the source, and for every other that has a remark."""
    return tuple(
        f"{judged.comparison.name}: {judged.agreement}. {remark_text(judged)}"
        for judged in judge_comparisons(findings)
        if judged.agreement == "disagrees" or judged.remark
    )
