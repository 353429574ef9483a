"""The answer to a study's question: one sentence, and then one for each comparison that it rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from reports.comparisons import Comparison, Verdict
from reports.costs import CostRatio, cost_ratio
from reports.sections import Findings, seeds_needed
from reports.tables import fixed, interval_text

__all__ = ["answer", "headline", "sentence"]

_MOST = 8
_COSTS = (("flops_per_token", "FLOPs per token"), ("seconds", "time"))
_EQUAL = "equal"
_VERDICTS: tuple[Verdict, ...] = ("better", "worse", "differs", "unresolved")
_EXTREMES: tuple[tuple[Verdict, str], ...] = (
    ("better", "The largest gain is"),
    ("worse", "Nothing gains, and the largest loss is"),
)


def headline(findings: Findings) -> str:
    """What wins, by how much and how sure, in one sentence; without a finished run, why there is no answer."""
    study = findings.study
    if not any(run.missing is None for run in study.runs):
        reasons = dict.fromkeys(run.missing for run in study.runs if run.missing)
        return f"No arm finished, so there is no answer yet: {'; '.join(reasons) or 'no runs are planned'}."
    leading = _leading(findings)
    if not leading:
        return "No comparison is planned: there is a single arm."
    return f"{_found(findings, leading[0])}." if len(leading) == 1 else f"{_gist(findings, leading)}."


def answer(findings: Findings) -> tuple[str, ...]:
    """A sentence for each of the first eight comparisons, with its cost and, where unresolved, what it would take."""
    leading = _leading(findings) if any(run.missing is None for run in findings.study.runs) else []
    sentences = [sentence(findings, comparison) for comparison in leading[:_MOST]]
    if len(leading) > _MOST:
        sentences.append(f"The table holds {len(leading) - _MOST} more.")
    return tuple(sentences)


def sentence(findings: Findings, comparison: Comparison) -> str:
    """What one comparison says; it ends with a full stop."""
    parts = [_found(findings, comparison), *_way_out(findings, comparison), *_price(findings, comparison)]
    return f"{'; '.join(parts)}."


def _gist(findings: Findings, leading: Sequence[Comparison]) -> str:
    """Of several comparisons the one that gains or else loses most, and how many got which verdict."""
    counts = Counter(comparison.verdict for comparison in leading)
    told = [f"{counts[verdict]} {verdict}" for verdict in _VERDICTS if counts[verdict]]
    told += [f"{counts[None]} without a verdict"] if counts[None] else []
    tally = f"of {len(leading)} comparisons {_listed(told)}"
    for verdict, begins in _EXTREMES:
        if counts[verdict]:
            most = max((one for one in leading if one.verdict == verdict), key=_size)
            return f"{begins} {most.name}: {_changed(findings, most)}; {tally}"
    open_ones = [one for one in leading if one.verdict == "unresolved"]
    if not open_ones:
        return f"No verdict on any of {len(leading)} comparisons: {leading[0].reason}"
    nearest = min(open_ones, key=lambda one: (_seeds(one), -_size(one)))
    begins = f"none of {len(leading)} comparisons shows a difference" if len(open_ones) == len(leading) else tally
    return f"Unresolved: {begins}; the nearest to one, {nearest.name}, would take {seeds_needed(nearest)} seeds"


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _size(comparison: Comparison) -> float:
    return abs(comparison.estimate.difference) if comparison.estimate else 0.0


def _seeds(comparison: Comparison) -> float:
    needed = comparison.seeds_needed
    return float("inf") if needed is None else needed


def _leading(findings: Findings) -> list[Comparison]:
    """The contrasts that the study names; without any, the main effects of a product, or else every arm's contrast."""
    main = [comparison for comparison in findings.comparisons if comparison.kind == "main effect"]
    if main and findings.study.plan.contrasts is None:
        return main
    return [comparison for comparison in findings.comparisons if comparison.kind == "contrast"]


def _found(findings: Findings, comparison: Comparison) -> str:
    """The difference, how sure it is, and the verdict."""
    if comparison.estimate is None:
        return f"{_named(comparison)}: no answer ({comparison.reason})"
    verdict = comparison.verdict or f"no verdict ({comparison.reason})"
    return f"{_named(comparison)}: {_changed(findings, comparison)}: {verdict}"


def _changed(findings: Findings, comparison: Comparison) -> str:
    """The difference with its interval."""
    found = comparison.estimate
    assert found is not None
    certainty = f"{found.seeds} seed{'s' if found.seeds > 1 else ''}"
    if found.interval is not None:
        certainty = f"95 % interval {_interval(findings, comparison)}, {certainty}"
    return f"{_change(findings, found.difference)} ({certainty})"


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
    if comparison.verdict != "unresolved" or comparison.detectable is None:
        return
    detectable = fixed(findings.shown(comparison.detectable), findings.difference_decimals)
    yield f"so many seeds show a {'ratio' if findings.ratio else 'difference'} of {detectable} or more"
    yield f"seeds needed for this one: {seeds_needed(comparison)}"


def _price(findings: Findings, comparison: Comparison) -> Iterator[str]:
    """The cost of the first arm as a multiple of the second's, where it is known, and how sure where measured."""
    if comparison.kind != "contrast":
        return
    mine, theirs = map(findings.study.finished, comparison.weights)
    ratios = [(cost_ratio(mine, theirs, key), title) for key, title in _COSTS]
    parts = [_multiple(ratio, title) for ratio, title in ratios if ratio is not None and ratio.informative]
    parts.sort(key=lambda part: part.startswith(_EQUAL))
    if parts:
        yield f"at {' and '.join(parts)}"


def _multiple(ratio: CostRatio, title: str) -> str:
    ends = ratio.interval or (ratio.value, ratio.value)
    if {fixed(value, 2) for value in (ratio.value, *ends)} == {"1.00"}:
        return f"{_EQUAL} {title}"
    certainty = f" (95 % interval {interval_text(*ends, 2)})" if ratio.measured else ""
    return f"{fixed(ratio.value, 2)} times the {title}{certainty}"
