"""The answer to a study's question: a headline sentence, and a sentence for each comparison that supports it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from reports.judge.comparisons import Comparison, Verdict
from reports.judge.costs import CostRatio, cost_ratio
from reports.judge.findings import Findings
from reports.judge.known import LEAST
from reports.judge.statistics import LEVEL
from reports.show.names import name_comparisons
from reports.show.rates import rate_sentence
from reports.show.sections import seeds_needed
from reports.show.tables import fixed, fixed_with_sign, interval_text

__all__ = [
    "answer",
    "costs_text",
    "effect_text",
    "frequency_text",
    "further_answers",
    "headline",
    "interval_of",
    "leading",
    "look_line",
    "seeds_or_infinity",
    "sentence",
    "why_no_answer",
]

_MOST = 8
_COSTS = (("flops_per_token", "FLOPs per token"), ("seconds", "time"))
_EQUAL = "equal"
_VERDICTS: tuple[Verdict, ...] = ("better", "worse", "equal", "identical", "differs", "unresolved")
_TITLES: dict[Verdict, str] = {
    "better": "Better",
    "worse": "Worse",
    "equal": "Equal",
    "identical": "Identical in every seed",
    "differs": "Depends on each other",
    "unresolved": "Unresolved",
}
_COMPARATIVES = ("better", "worse")
_MOST_IN_FULL = 3
"""The number of comparisons whose intervals the headline gives."""
_MOST_NAMES = 4
"""The number of comparisons of one verdict that the headline names."""


def headline(findings: Findings) -> str:
    """Returns the verdict on the comparisons that answer the study's question, with sizes and intervals, then how many
    of the others have each verdict; without a finished run, why there is none.

    Before it stands why no answer can be expected, where the baseline or a stage does not beat its floor, or the
    baseline gains nothing from the context in which arms differ; after it, which arms do not generalize, and whether
    the verdicts stand at other learning rates. Of a study that was withdrawn it is the reason alone.
    """
    if findings.study.withdrawn:
        return why_no_answer(findings)
    return " ".join(
        filter(None, [why_no_answer(findings), _main_result(findings), *_gaps(findings), rate_sentence(findings)])
    )


def why_no_answer(findings: Findings) -> str:
    """Returns why no answer can be expected, or nothing where one can, or neither floor nor context was measured."""
    if findings.study.withdrawn:
        return f"Withdrawn: {findings.study.withdrawn.rstrip('.')}."
    reasons = (_too_little_training, _too_little_before, _too_little_knowledge, _too_little_context)
    return " ".join(sentence for of_kind in reasons for sentence in of_kind(findings))


def _too_little_training(findings: Findings) -> Iterator[str]:
    for arm, floor in findings.below_floor.items():
        values = (findings.study.mean_of(arm), floor.value)
        mean, reachable = (fixed(value, findings.decimals) for value in values if value is not None)
        name = "the baseline" if arm == findings.study.plan.baseline else findings.study.plan.labels.alone(arm)
        reached = f"{name} reaches {mean} {findings.metric.title}"
        yield f"Trained too little to answer: {reached}, and a simple predictor reaches {reachable} ({floor.name})."


def _too_little_before(findings: Findings) -> Iterator[str]:
    """Yields a sentence for each stage that has learned less than a simple predictor."""
    for stage in findings.stages_below_floor:
        floor = stage.floor
        assert stage.value is not None and floor.best is not None
        arms = [findings.study.plan.labels.alone(arm) for arm in stage.arms[:_MOST_NAMES]]
        rest = [f"{len(stage.arms) - len(arms)} more"] if len(stage.arms) > len(arms) else []
        start = "starts" if len(stage.arms) == 1 else "start"
        reached = f"{floor.name}, from which {_join_with_and([*arms, *rest])} {start}, reaches {stage.value:.4g}"
        reachable = f"{floor.best.value:.4g} ({floor.best.name})"
        yield f"Trained too little to answer: {reached} {floor.metric}, and a simple predictor reaches {reachable}."


def _too_little_knowledge(findings: Findings) -> Iterator[str]:
    shares = findings.learned_too_little
    if not shares:
        return
    plan, names = findings.study.plan, sorted(shares, key=lambda arm: -shares[arm])[:_MOST_NAMES]
    alone = ["the baseline" if arm == plan.baseline else plan.labels.alone(arm) for arm in names]
    first, *others = (f"{name} {shares[arm]:.1%}" for arm, name in zip(names, alone, strict=True))
    name, _, learned = first.rpartition(" ")
    rest = [f"{len(shares) - len(names)} others less"] if len(shares) > len(names) else []
    text = _join_with_and([f"{name} has learned {learned}", *others, *rest])
    yield f"Trained too little to answer: of the known optimum, {text}; a comparison needs an arm at {LEAST:.0%}."


def _gaps(findings: Findings) -> Iterator[str]:
    for arm, gap in findings.gaps.items():
        training, measured = (fixed(value, findings.decimals) for value in (gap.training, gap.measured))
        learned = " by heart" if gap.memorized else ", and little of that holds for the rows that are measured"
        name = findings.study.plan.labels.alone(arm)
        yield f"{name} learned its training rows{learned} (training loss {training}, measured {measured})."


def _too_little_context(findings: Findings) -> Iterator[str]:
    length = findings.gains_nothing_beyond
    if length is not None:
        yield f"Cannot answer: the baseline gains nothing beyond {length:,} symbol{'s' if length > 1 else ''}."


def _main_result(findings: Findings) -> str:
    study = findings.study
    if not any(run.missing is None for run in study.runs):
        reasons = dict.fromkeys(run.missing for run in study.runs if run.missing)
        return f"No arm finished, so there is no answer yet: {'; '.join(reasons) or 'no runs are planned'}."
    primary = findings.primary
    if not primary:
        return "No comparison is planned: there is a single arm."
    chosen = {one.name for one in primary}
    others = [comparison for comparison in leading(findings) if comparison.name not in chosen]
    often = (frequency_text(findings, one) for one in primary)
    return " ".join(filter(None, [*_by_verdict(findings, primary), *often, _rest(others)]))


def _by_verdict(findings: Findings, primary: Sequence[Comparison]) -> Iterator[str]:
    """Yields a sentence for each verdict on the comparisons that answer the question, or why they have none."""
    against, _, names, _ = name_comparisons(findings.study.plan, primary)
    in_full = len(primary) <= _MOST_IN_FULL
    for verdict in _VERDICTS:
        group = [one for one in primary if one.verdict == verdict]
        if verdict in _COMPARATIVES:
            group.sort(key=_size, reverse=True)
        if in_full:
            parts = [f"{names[one.name]}: {_change_with_interval(findings, one)}" for one in group]
        else:
            parts = [f"{names[one.name]} ({_signed_difference(findings, one)})" for one in group]
        if group:
            reference = against and f" {'than' if verdict in _COMPARATIVES else 'against'} {against}"
            separator = "; " if in_full else ", "
            text = _listed(parts, separator) + _addition(findings, verdict, group, names)
            yield f"{_TITLES[verdict]}{reference}: {text}."
    for reason in dict.fromkeys(one.reason for one in primary if one.verdict is None):
        group = [one for one in primary if one.verdict is None and one.reason == reason]
        yield f"No verdict: {_listed([one.name for one in group], ', ')} ({reason})."
    if not in_full and any(one.verdict for one in primary):
        what = "Ratios of" if findings.ratio else "Differences in"
        yield f"{what} {findings.metric.title} are in brackets."


def _addition(findings: Findings, verdict: Verdict, group: Sequence[Comparison], names: Mapping[str, str]) -> str:
    """Returns the margin within which a difference is equal, or the number of seeds that would decide an unresolved
    one."""
    if verdict == "equal":
        return f" ({findings.margin}{_not_excluded(group)})"
    if verdict != "unresolved":
        return ""
    doubts = dict.fromkeys(one.doubt for one in group if one.doubt)
    if len(doubts) == 1 and all(one.doubt for one in group):
        return f" ({next(iter(doubts))})"
    nearest = min(group, key=lambda candidate: (seeds_or_infinity(candidate), -_size(candidate)))
    of_these = "" if len(group) == 1 else f" on {names[nearest.name]}"
    number, comma, otherwise = (seeds_needed(nearest) or "").partition(", ")
    return f"; a verdict{of_these} would take {number} seeds{comma}{otherwise}{_range(nearest)}" if number else ""


def _not_excluded(group: Iterable[Comparison]) -> str:
    """Returns which share of runs beyond the margin the seeds of equal comparisons do not exclude."""
    shares = [share for one in group if (share := one.share_not_excluded) is not None]
    return f"; up to {max(shares):.0%} of runs may lie beyond it" if shares else ""


def frequency_text(findings: Findings, comparison: Comparison) -> str:
    """Returns in a sentence how often the arms of a comparison learn; nothing where all or none of their seeds have."""
    frequency = comparison.frequency
    if frequency is None:
        return ""
    label = findings.study.plan.labels.alone
    parts = []
    for arm, count in frequency.learned.items():
        low, high = frequency.interval(arm)
        share = f"{count} of {frequency.seeds[arm]} seeds ({low:.0%} to {high:.0%})"
        parts.append(f"{label(arm)} {findings.metric.event or 'learns'} in {share}")
    decided = "decided" if frequency.is_decided else "unresolved"
    return f"{', '.join(parts)}: {decided} ({frequency.test}'s p = {frequency.p:.2g})."


def _range(comparison: Comparison) -> str:
    """Returns how many seeds would decide in half and in 95 % of cases."""
    fewest, most = ("over 1,000" if number is None else str(number) for number in comparison.seeds_range)
    return "" if fewest == most else f" (in half of cases {fewest}, in 95 % {most})"


def _signed_difference(findings: Findings, comparison: Comparison) -> str:
    assert comparison.estimate is not None
    return _signed(findings, comparison.estimate.difference)


def _listed(parts: Sequence[str], separator: str) -> str:
    rest = len(parts) - _MOST_NAMES
    return separator.join(parts[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _rest(others: Sequence[Comparison]) -> str:
    """Returns a sentence that counts the verdicts on the comparisons that do not answer the question."""
    if not others:
        return ""
    return f"Of {len(others)} other comparison{'s' if len(others) > 1 else ''} {_tally(others)}."


def _tally(comparisons: Iterable[Comparison]) -> str:
    """Returns the number of comparisons with each verdict."""
    counts = Counter(comparison.verdict for comparison in comparisons)
    tallies = [f"{counts[verdict]} {verdict}" for verdict in _VERDICTS if counts[verdict]]
    return _join_with_and([*tallies, *([f"{counts[None]} without a verdict"] if counts[None] else [])])


def look_line(findings: Findings, following: int) -> str:
    """Returns the result of a look in a line, with the seeds of the look that follows."""
    return (
        f"{findings.study.plan.study}: look at {findings.study.plan.seeds} seeds: {_tally(findings.comparisons)}; "
        f"next look at {following} seeds"
    )


def line_before_rates(findings: Findings, left: int) -> str:
    """Returns the result of a study in a line, with the number of runs at other learning rates that are left."""
    follow = "1 run at another learning rate follows" if left == 1 else f"{left} runs at other learning rates follow"
    return f"{findings.study.plan.study}: {_tally(findings.comparisons)}; {follow}"


def answer(findings: Findings) -> tuple[str, ...]:
    """Returns a sentence for each of the first eight comparisons, with costs and, if unresolved, the seeds needed; none
    of a study that was withdrawn."""
    if findings.study.withdrawn:
        return ()
    first = leading(findings) if any(run.missing is None for run in findings.study.runs) else []
    sentences = [sentence(findings, comparison) for comparison in first[:_MOST]]
    if len(first) > _MOST:
        sentences.append(f"The table holds {len(first) - _MOST} more.")
    return tuple(sentences)


def further_answers(findings: Findings) -> Iterator[str]:
    """Yields for each metric that does not judge a sentence with the comparisons that answer the question; none of a
    study that was withdrawn."""
    for further in () if findings.study.withdrawn else findings.further:
        estimated = [one for one in further.primary if one.estimate is not None][:_MOST_IN_FULL]
        parts = [f"{one.name}: {_change_with_interval(further, one)}" for one in estimated]
        if parts:
            yield f"{findings.metric.title} judges. Shown and not judged: {'; '.join(parts)}."


def sentence(findings: Findings, comparison: Comparison) -> str:
    """Returns the result of one comparison as a sentence that ends with a full stop."""
    cost = costs_text(findings, comparison)
    parts = [
        _result_text(findings, comparison),
        *([comparison.doubt] if comparison.doubt else []),
        *_detectable_texts(findings, comparison),
        *([f"at {cost}"] if cost else []),
        *([often] if (often := frequency_text(findings, comparison).rstrip(".")) else []),
    ]
    return f"{'; '.join(parts)}."


def effect_text(findings: Findings, comparison: Comparison) -> str:
    """Returns the difference of a comparison, its arm minus the arm that it is against, with its sign or, where the
    metric compares by ratio, its ratio, then the interval and the unit; nothing without an estimate."""
    if comparison.estimate is None:
        return ""
    interval = interval_of(findings, comparison)
    return (
        f"{_signed(findings, comparison.estimate.difference)}{f' ({interval})' if interval else ''} {_unit(findings)}"
    )


def _signed(findings: Findings, difference: float) -> str:
    """Returns a difference with its sign or, where the metric compares by ratio, the ratio."""
    write = fixed if findings.ratio else fixed_with_sign
    return write(findings.as_printed(difference), findings.difference_decimals)


def _unit(findings: Findings) -> str:
    return f"{'times the ' if findings.ratio else ''}{findings.metric.title}"


def interval_of(findings: Findings, comparison: Comparison) -> str:
    """Returns the ends of the interval as text, or nothing without one."""
    if comparison.estimate is None or comparison.estimate.interval is None:
        return ""
    low, high = map(findings.as_printed, comparison.estimate.interval)
    return interval_text(low, high, findings.difference_decimals)


def _join_with_and(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _size(comparison: Comparison) -> float:
    return abs(comparison.estimate.difference) if comparison.estimate else 0.0


def seeds_or_infinity(comparison: Comparison) -> float:
    """Returns how many seeds a verdict on a comparison needs, to sort by; infinity where no number is known."""
    needed = comparison.seeds_needed
    return float("inf") if needed is None else needed


def leading(findings: Findings) -> list[Comparison]:
    """Returns the comparisons that get a sentence each, those that answer the question first: the contrasts that the
    study names or, without any, the main effects of a product, after the interactions that limit them, or all contrasts
    with the baseline."""
    primary = findings.primary
    kinds = ("contrast",)
    if findings.study.plan.contrasts is None and any(one.kind == "main effect" for one in findings.comparisons):
        kinds = ("main effect",)
    limiting = [one for one in findings.effects if one.verdict == "differs"] if kinds == ("main effect",) else []
    rest = [*limiting, *(one for one in findings.comparisons if one.kind in kinds)]
    chosen = {one.name for one in primary}
    return [*primary, *(one for one in rest if one.name not in chosen)]


def _result_text(findings: Findings, comparison: Comparison) -> str:
    """Returns the name of a comparison with its difference, interval, seeds and verdict, without a full stop."""
    if comparison.estimate is None:
        return f"{_capitalized_name(findings, comparison)}: no answer ({comparison.reason})"
    verdict = comparison.verdict or f"no verdict ({comparison.reason})"
    if verdict == "equal":
        verdict = f"equal ({findings.margin}{_not_excluded([comparison])})"
    return f"{_capitalized_name(findings, comparison)}: {_change_with_interval(findings, comparison)}: {verdict}"


def _change_with_interval(findings: Findings, comparison: Comparison) -> str:
    """Returns the difference with its sign and unit, its interval and the number of seeds."""
    estimate = comparison.estimate
    assert estimate is not None
    interval = interval_of(findings, comparison)
    certainty = f"{estimate.seeds} seed{'s' if estimate.seeds > 1 else ''}"
    certainty = f"95 % interval {interval}, {certainty}" if interval else certainty
    if not findings.study.knows_configs and comparison.adjusted is not None:
        certainty += f", {_p_text(comparison.adjusted)}"
    elif _is_only_corrected(comparison):
        assert comparison.adjusted is not None
        certainty += f", {_p_text(comparison.adjusted)} after Holm's correction"
    if comparison.of_all_seeds:
        mean, seeds = comparison.of_all_seeds
        certainty += f"; {_signed(findings, mean)} in all {seeds}"
    return f"{_signed(findings, estimate.difference)} {_unit(findings)} ({certainty})"


def _is_only_corrected(comparison: Comparison) -> bool:
    """Whether a comparison is unresolved because the study makes several, though its interval excludes zero."""
    if comparison.verdict != "unresolved" or comparison.estimate is None or comparison.estimate.interval is None:
        return False
    low, high = comparison.estimate.interval
    return (low > 0 or high < 0) and comparison.adjusted is not None and comparison.adjusted >= LEVEL


def _p_text(p: float) -> str:
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}" if p < 0.1 else f"p = {p:.2f}"


def _capitalized_name(findings: Findings, comparison: Comparison) -> str:
    """Returns the name, capitalized if it begins with a plain word; a path, an arm or a level keeps its spelling."""
    first, space, rest = comparison.name.partition(" ")
    plan = findings.study.plan
    names = {arm.name for arm in plan.arms}.union(*plan.factors.values())
    is_plain = plan.contrasts is not None and first.isalpha() and first.islower() and first not in names
    return f"{first.capitalize()}{space}{rest}" if is_plain else comparison.name


def _detectable_texts(findings: Findings, comparison: Comparison) -> Iterator[str]:
    if comparison.verdict != "unresolved" or comparison.detectable is None:
        return
    detectable = fixed(findings.as_printed(comparison.detectable), findings.difference_decimals)
    kind = "ratio" if findings.ratio else "difference"
    seeds = comparison.estimate.seeds if comparison.estimate else 0
    yield f"{seeds} seeds can detect a {kind} of {detectable}"
    yield f"this one would need {seeds_needed(comparison)}{_range(comparison)}"


def costs_text(findings: Findings, comparison: Comparison, level: str = "95 % interval ") -> str:
    """Returns the costs of a contrast's first arm as multiples of the second's, with intervals if measured; nothing
    where none is informative. level: the text before an interval."""
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
