"""The answer to a study's question, in sentences that hold the difference, its interval, the verdict and the cost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from reports.comparisons import Comparison
from reports.sections import Findings, cost_of, seeds_needed
from reports.tables import fixed, interval_text

_MOST = 4
_COSTS = (("flops_per_token", "FLOPs per token"), ("seconds", "time"))


def answer(findings: Findings) -> str:
    """One sentence for each of the first four comparisons; without a finished run, why there is no answer."""
    study = findings.study
    if not any(run.missing is None for run in study.runs):
        reasons = dict.fromkeys(run.missing for run in study.runs if run.missing)
        return f"No arm finished, so there is no answer yet: {'; '.join(reasons) or 'no runs are planned'}."
    leading = _leading(findings)
    if not leading:
        return "No comparison is planned: there is a single arm."
    sentences = [sentence(findings, comparison) for comparison in leading[:_MOST]]
    if len(leading) > _MOST:
        sentences.append(f"The table holds {len(leading) - _MOST} more.")
    return " ".join(sentences)


def _leading(findings: Findings) -> list[Comparison]:
    """The contrasts that the study names; without any, the main effects of a product, or else every arm's contrast."""
    main = [comparison for comparison in findings.comparisons if comparison.kind == "main effect"]
    if main and findings.study.plan.contrasts is None:
        return main
    return [comparison for comparison in findings.comparisons if comparison.kind == "contrast"]


def sentence(findings: Findings, comparison: Comparison) -> str:
    """What one comparison says; it ends with a full stop."""
    found = comparison.estimate
    if found is None:
        return f"{_named(comparison)}: no answer ({comparison.reason})."
    certainty = f"{found.seeds} seed{'s' if found.seeds > 1 else ''}"
    if found.interval is not None:
        certainty = f"95 % interval {_interval(findings, comparison)}, {certainty}"
    verdict = comparison.verdict or f"no verdict ({comparison.reason})"
    text = f"{_named(comparison)}: {_change(findings, found.difference)} ({certainty}): {verdict}"
    parts = [text, *_way_out(findings, comparison), *_price(findings, comparison)]
    return f"{'; '.join(parts)}."


def _named(comparison: Comparison) -> str:
    """The name as it begins a sentence; a path or a level keeps its spelling."""
    first, space, rest = comparison.name.partition(" ")
    return f"{first.capitalize()}{space}{rest}" if first.isalpha() and first.islower() else comparison.name


def _change(findings: Findings, difference: float) -> str:
    title, decimals = findings.metric.title, findings.difference_decimals
    if findings.ratio:
        return f"{fixed(findings.shown(difference), decimals)} times the {title}"
    size = fixed(abs(difference), decimals)
    return f"{title} {'lower' if difference < 0 else 'higher'} by {size}" if difference else f"no change in {title}"


def _interval(findings: Findings, comparison: Comparison) -> str:
    """In the direction of the change where all of it lies on one side of zero, with signs where it does not."""
    assert comparison.estimate is not None and comparison.estimate.interval is not None
    low, high = comparison.estimate.interval
    if not findings.ratio and high < 0:
        low, high = -high, -low
    return interval_text(findings.shown(low), findings.shown(high), findings.difference_decimals)


def _way_out(findings: Findings, comparison: Comparison) -> Iterator[str]:
    found = comparison.estimate
    if comparison.verdict != "unresolved" or found is None or found.detectable is None:
        return
    detectable = fixed(findings.shown(found.detectable), findings.difference_decimals)
    yield f"so many seeds show a {'ratio' if findings.ratio else 'difference'} of {detectable} or more"
    yield f"seeds needed for this one: {seeds_needed(comparison)}"


def _price(findings: Findings, comparison: Comparison) -> Iterator[str]:
    """The cost of the first arm as a multiple of the second's, where both are known."""
    if comparison.kind != "contrast":
        return
    arm, against = comparison.weights
    known = [
        (mine / theirs, title)
        for key, title in _COSTS
        if (mine := _mean_cost(findings, arm, key)) and (theirs := _mean_cost(findings, against, key))
    ]
    parts = [f"{ratio:.2f} times the {title}" for ratio, title in known if f"{ratio:.2f}" != "1.00"]
    parts += [f"equal {title}" for ratio, title in known if f"{ratio:.2f}" == "1.00"]
    if parts:
        yield f"at {' and '.join(parts)}"


def _mean_cost(findings: Findings, arm: str, key: str) -> float | None:
    values = [value for run in findings.study.finished(arm) if (value := cost_of(run, key)) is not None]
    return float(np.mean(values)) if values else None
