"""The answer to a study's question: a headline sentence, and a sentence for each comparison that supports it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from reports.judge.comparisons import Comparison, Verdict
from reports.judge.costs import CostRatio, cost_ratio
from reports.show.sections import Findings, seeds_needed
from reports.show.tables import fixed, interval_text

__all__ = ["answer", "costs_text", "effect_text", "headline", "seeds_or_infinity", "sentence", "why_no_answer"]

_MOST = 8
_COSTS = (("flops_per_token", "FLOPs per token"), ("seconds", "time"))
_EQUAL = "equal"
_VERDICTS: tuple[Verdict, ...] = ("better", "worse", "equal", "differs", "unresolved")
_EXTREMES: tuple[tuple[Verdict, str], ...] = (
    ("better", "The largest gain is"),
    ("worse", "Nothing gains, and the largest loss is"),
)


def headline(findings: Findings) -> str:
    """Returns one sentence on the main result, its size and interval; without a finished run, on why there is none.

    Before it stands why no answer can be expected, where the baseline does not beat its floor or gains nothing from the
    context in which arms differ; after it, which arms have learned what does not generalize.
    """
    return " ".join(filter(None, [why_no_answer(findings), _main_result(findings), *_gaps(findings)]))


def why_no_answer(findings: Findings) -> str:
    """Returns why no answer can be expected, or nothing where one can, or neither floor nor context was measured."""
    return " ".join([*_too_little_training(findings), *_too_little_context(findings)])


def _too_little_training(findings: Findings) -> Iterator[str]:
    for arm, floor in findings.below_floor.items():
        values = (findings.study.mean_of(arm), floor.value)
        mean, reachable = (fixed(value, findings.decimals) for value in values if value is not None)
        name = "the baseline" if arm == findings.study.plan.baseline else arm
        reached = f"{name} reaches {mean} {findings.metric.title}"
        yield f"Trained too little to answer: {reached}, and what anyone gets is {reachable} ({floor.name})."


def _gaps(findings: Findings) -> Iterator[str]:
    for arm, gap in findings.gaps.items():
        training, validation = (fixed(value, findings.decimals) for value in (gap.training, gap.validation))
        learned = " by heart" if gap.memorized else ", and little of that holds for the rows that are measured"
        yield f"{arm} learned its training rows{learned} (training loss {training}, validation {validation})."


def _too_little_context(findings: Findings) -> Iterator[str]:
    length = findings.gains_nothing_beyond
    if length is not None:
        yield f"Cannot answer: the baseline gains nothing beyond {length:,} symbol{'s' if length > 1 else ''}."


def _main_result(findings: Findings) -> str:
    study = findings.study
    if not any(run.missing is None for run in study.runs):
        reasons = dict.fromkeys(run.missing for run in study.runs if run.missing)
        return f"No arm finished, so there is no answer yet: {'; '.join(reasons) or 'no runs are planned'}."
    leading = _leading(findings)
    if not leading:
        return "No comparison is planned: there is a single arm."
    return f"{_result_text(findings, leading[0])}." if len(leading) == 1 else f"{_summary(findings, leading)}."


def answer(findings: Findings) -> tuple[str, ...]:
    """Returns a sentence for each of the first eight comparisons, with costs and, if unresolved, the seeds needed."""
    leading = _leading(findings) if any(run.missing is None for run in findings.study.runs) else []
    sentences = [sentence(findings, comparison) for comparison in leading[:_MOST]]
    if len(leading) > _MOST:
        sentences.append(f"The table holds {len(leading) - _MOST} more.")
    return tuple(sentences)


def sentence(findings: Findings, comparison: Comparison) -> str:
    """Returns the result of one comparison as a sentence that ends with a full stop."""
    cost = costs_text(findings, comparison)
    parts = [
        _result_text(findings, comparison),
        *_detectable_texts(findings, comparison),
        *([f"at {cost}"] if cost else []),
    ]
    return f"{'; '.join(parts)}."


def effect_text(findings: Findings, comparison: Comparison) -> str:
    """Returns the difference of a comparison with its sign or, where the metric compares by ratio, its ratio, then the
    interval and the unit; nothing without an estimate."""
    estimate, decimals = comparison.estimate, findings.difference_decimals
    if estimate is None:
        return ""
    text = fixed(findings.as_printed(estimate.difference), decimals)
    if not findings.ratio and estimate.difference > 0 and text.strip("0."):
        text = f"+{text}"
    if estimate.interval is not None:
        low, high = map(findings.as_printed, estimate.interval)
        text += f" ({interval_text(low, high, decimals)})"
    return f"{text} {'times the ' if findings.ratio else ''}{findings.metric.title}"


def _summary(findings: Findings, leading: Sequence[Comparison]) -> str:
    """Names the comparison with the largest gain, or else the largest loss, and counts the comparisons by verdict."""
    counts = Counter(comparison.verdict for comparison in leading)
    tallies = [f"{counts[verdict]} {verdict}" for verdict in _VERDICTS if counts[verdict]]
    tallies += [f"{counts[None]} without a verdict"] if counts[None] else []
    tally = f"of {len(leading)} comparisons {_join_with_and(tallies)}"
    for verdict, opening in _EXTREMES:
        if counts[verdict]:
            largest = max((candidate for candidate in leading if candidate.verdict == verdict), key=_size)
            return f"{opening} {largest.name}: {_change_with_interval(findings, largest)}; {tally}"
    unresolved = [candidate for candidate in leading if candidate.verdict == "unresolved"]
    if counts["equal"] and not unresolved:
        return f"Nothing gains or loses: {tally}, {findings.margin}"
    if not unresolved:
        return f"No verdict on any of {len(leading)} comparisons: {leading[0].reason}"
    nearest = min(unresolved, key=lambda candidate: (seeds_or_infinity(candidate), -_size(candidate)))
    opening = f"none of {len(leading)} comparisons shows a difference" if len(unresolved) == len(leading) else tally
    goal = "a verdict" if findings.margin else "one"
    return f"Unresolved: {opening}; the nearest to {goal}, {nearest.name}, would take {seeds_needed(nearest)} seeds"


def _join_with_and(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _size(comparison: Comparison) -> float:
    return abs(comparison.estimate.difference) if comparison.estimate else 0.0


def seeds_or_infinity(comparison: Comparison) -> float:
    """Returns how many seeds a verdict on a comparison needs, to sort by; infinity where no number is known."""
    needed = comparison.seeds_needed
    return float("inf") if needed is None else needed


def _leading(findings: Findings) -> list[Comparison]:
    """Returns the contrasts that the study names or, without any, the main effects of a product or all contrasts."""
    main = [comparison for comparison in findings.comparisons if comparison.kind == "main effect"]
    if main and findings.study.plan.contrasts is None:
        return main
    return [comparison for comparison in findings.comparisons if comparison.kind == "contrast"]


def _result_text(findings: Findings, comparison: Comparison) -> str:
    """Returns the name of a comparison with its difference, interval, seeds and verdict, without a full stop."""
    if comparison.estimate is None:
        return f"{_capitalized_name(comparison)}: no answer ({comparison.reason})"
    verdict = comparison.verdict or f"no verdict ({comparison.reason})"
    if verdict == "equal":
        verdict = f"equal ({findings.margin})"
    return f"{_capitalized_name(comparison)}: {_change_with_interval(findings, comparison)}: {verdict}"


def _change_with_interval(findings: Findings, comparison: Comparison) -> str:
    """Returns the difference in words with its interval and the number of seeds."""
    estimate = comparison.estimate
    assert estimate is not None
    certainty = f"{estimate.seeds} seed{'s' if estimate.seeds > 1 else ''}"
    if estimate.interval is not None:
        certainty = f"95 % interval {_interval_of_change(findings, comparison)}, {certainty}"
    return f"{_change_text(findings, estimate.difference)} ({certainty})"


def _capitalized_name(comparison: Comparison) -> str:
    """Returns the name, capitalized if it begins with a plain word; a path or a level keeps its spelling."""
    first, space, rest = comparison.name.partition(" ")
    return f"{first.capitalize()}{space}{rest}" if first.isalpha() and first.islower() else comparison.name


def _change_text(findings: Findings, difference: float) -> str:
    title, decimals = findings.metric.title, findings.difference_decimals
    if findings.ratio:
        return f"{fixed(findings.as_printed(difference), decimals)} times the {title}"
    size = fixed(abs(difference), decimals)
    return f"{title} {'lower' if difference < 0 else 'higher'} by {size}" if difference else f"no change in {title}"


def _interval_of_change(findings: Findings, comparison: Comparison) -> str:
    """Returns the ends of the interval as text.

    An interval below zero is printed without signs, in the direction of the change that the sentence states.
    """
    assert comparison.estimate is not None and comparison.estimate.interval is not None
    low, high = comparison.estimate.interval
    if not findings.ratio and high < 0:
        low, high = -high, -low
    return interval_text(findings.as_printed(low), findings.as_printed(high), findings.difference_decimals)


def _detectable_texts(findings: Findings, comparison: Comparison) -> Iterator[str]:
    if comparison.verdict != "unresolved" or comparison.detectable is None:
        return
    detectable = fixed(findings.as_printed(comparison.detectable), findings.difference_decimals)
    yield f"so many seeds show a {'ratio' if findings.ratio else 'difference'} of {detectable} or more"
    yield f"seeds needed for this one: {seeds_needed(comparison)}"


def costs_text(findings: Findings, comparison: Comparison, level: str = "95 % interval ") -> str:
    """Returns the costs of a contrast's first arm as multiples of the second's, with intervals if measured; nothing
    where none is informative. level: what stands before an interval."""
    if comparison.kind != "contrast":
        return ""
    mine, theirs = map(findings.study.finished, comparison.weights)
    ratios = [(cost_ratio(mine, theirs, key), title) for key, title in _COSTS]
    parts = [_cost_text(ratio, title, level) for ratio, title in ratios if ratio is not None and ratio.informative]
    parts.sort(key=lambda part: part.startswith(_EQUAL))
    return " and ".join(parts)


def _cost_text(ratio: CostRatio, title: str, level: str) -> str:
    ends = ratio.interval or (ratio.value, ratio.value)
    if {fixed(value, 2) for value in (ratio.value, *ends)} == {"1.00"}:
        return f"{_EQUAL} {title}"
    certainty = f" ({level}{interval_text(*ends, 2)})" if ratio.measured else ""
    return f"{fixed(ratio.value, 2)} times the {title}{certainty}"
