"""The picture with which a page opens: every comparison as a row with its interval, and the arms' learning curves.

Both are drawn in percent of the room that they get, so that text keeps its size on a phone. Every mark has its value as
a tooltip, and every row the whole result as text for a screen reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from lit_transformers.printing.amounts import count
from reports.judge.comparisons import Comparison
from reports.judge.findings import Findings
from reports.read.measurements import Array
from reports.show.answer import interval_of, leading, sentence
from reports.show.curves import SETTLED, band, curve_title, falls_early, load_curves, progress_title
from reports.show.markup import Html, details, element, escape, joined, name_of
from reports.show.names import name_comparisons
from reports.show.screen import IntervalScale
from reports.show.sections import excludes_zero
from reports.show.tables import VERDICT_STYLES, fixed

__all__ = [
    "MOST_ROWS",
    "curve_chart",
    "interval_chart",
    "interval_mark",
    "interval_row",
    "line_mark",
    "mean_mark",
    "seed_values",
]

MOST_ROWS = 16
"""The comparisons that are shown at once; further ones open."""
_SERIES = 7
"""The colours of arms; further arms repeat them with another dash."""
_DASHES = 3
"""The dashes that the style sheet has for them."""
_WIDE, _HIGH = 1000, 500
"""The units of the drawing of learning curves, which is stretched to its room."""


def seed_values(findings: Findings, comparison: Comparison) -> dict[int, float]:
    """Returns the difference of each seed that all arms of a comparison have finished, in its own units."""
    values = {arm: {run.seed: run.value for run in findings.study.finished(arm)} for arm in comparison.weights}
    seeds = sorted(set.intersection(*map(set, values.values()))) if values else []
    if findings.ratio:
        seeds = [seed for seed in seeds if all(of_arm[seed] > 0 for of_arm in values.values())]
    scale = math.log if findings.ratio else float
    return {
        seed: sum(weight * scale(values[arm][seed]) for arm, weight in comparison.weights.items()) for seed in seeds
    }


def interval_chart(findings: Findings) -> Html:
    """Returns a row for each comparison with an estimate: its name, interval, seeds and verdict, on one scale."""
    first = leading(findings)
    ordered = [*first, *(one for one in findings.shown if one not in first)]
    shown = [one for one in ordered if one.estimate is not None]
    if not shown:
        return Html()
    names, scale = name_comparisons(findings.study.plan, shown), IntervalScale.of(shown)
    seeds = [value for one in shown for value in seed_values(findings, one).values()]
    scale = scale._replace(low=min(scale.low, *seeds), high=max(scale.high, *seeds)).wider()
    rows = [_row(findings, one, names.levels[one.name], scale) for one in shown]
    further = f"{len(rows) - MOST_ROWS} more comparisons"
    return element(
        "div",
        element("h2", names.heading("Comparisons"), id="comparisons"),
        element("div", *rows[:MOST_ROWS], _axis(findings, scale), role="list", class_="intervals"),
        details(further, element("div", *rows[MOST_ROWS:], role="list", class_="intervals"))
        if len(rows) > MOST_ROWS
        else Html(),
        element("p", _legend(findings), class_="note"),
        class_="picture",
    )


def _row(findings: Findings, comparison: Comparison, name: str, scale: IntervalScale) -> Html:
    marks, effect = _marks(findings, comparison, scale), escape(_effect(findings, comparison))
    if means := _means(findings, comparison):
        effect = joined([effect, element("small", means)])
    doubt, text = _doubt(findings, comparison), sentence(findings, comparison)
    return interval_row(name, marks, effect, comparison.verdict or "none", doubt, text)


def interval_row(name: str, marks: Sequence[Html], effect: Html, verdict: str, note: str, text: str) -> Html:
    """Returns the row of a comparison: its name, its interval as a drawing, its effect, and its verdict.

    marks: the marks of the drawing, in the colour of the verdict. note: a remark below the verdict. text: the row as a
    sentence, for a screen reader.
    """
    colour = verdict if verdict in VERDICT_STYLES else "none"
    drawing = element("svg", *marks, class_=colour, aria_hidden="true", focusable="false")
    return element(
        "div",
        element("span", name_of(name), class_="name"),
        element("span", drawing if marks else Html(), class_="strip"),
        element("span", effect, class_="effect"),
        element("span", verdict, element("small", note) if note else Html(), class_=f"verdict {colour}"),
        role="listitem",
        aria_label=text,
        class_="row",
    )


def _doubt(findings: Findings, comparison: Comparison) -> str:
    """Returns why there is no verdict, or why one is unresolved though the interval of the comparison excludes zero."""
    if comparison.verdict is None:
        return comparison.reason or ""
    if comparison.doubt:
        return comparison.doubt
    if comparison.verdict != "unresolved" or not excludes_zero(comparison):
        return ""
    family = len([one for one in findings.comparisons if one.adjusted is not None])
    return f"p = {comparison.adjusted:.2g} after correction for {family} comparisons" if comparison.adjusted else ""


def _effect(findings: Findings, comparison: Comparison) -> str:
    estimate = comparison.estimate
    assert estimate is not None
    text = fixed(findings.as_printed(estimate.difference), findings.difference_decimals)
    if estimate.interval is None:
        return text
    return f"{text} ({interval_of(findings, comparison)})"


def _means(findings: Findings, comparison: Comparison) -> str:
    """Returns the means of the two arms of a contrast; nothing for other comparisons."""
    means = [findings.study.mean_of(arm) for arm in comparison.weights] if comparison.kind == "contrast" else []
    known = [fixed(mean, findings.decimals) for mean in means if mean is not None]
    return f"means {known[0]} and {known[1]}" if len(means) == len(known) == 2 else ""


def line_mark(at: str, kind: str, title: str = "") -> Html:
    """Returns a vertical line across a row, such as zero; ``at`` is its place in percent."""
    tooltip = element("title", title) if title else Html()
    return element("line", tooltip, x1=at, x2=at, y1="0", y2="100%", class_=kind)


def interval_mark(low: str, high: str, title: str) -> Html:
    """Returns an interval between two places in percent."""
    return element("line", element("title", title), x1=low, x2=high, y1="50%", y2="50%", class_="interval")


def mean_mark(at: str, title: str) -> Html:
    """Returns the point of a mean."""
    return element("circle", element("title", title), cx=at, cy="50%", r="5", class_="mean")


def _marks(findings: Findings, comparison: Comparison, scale: IntervalScale) -> list[Html]:
    """Returns the marks of one row: the margin as a band, zero, the interval, the seeds, and the mean."""
    estimate = comparison.estimate
    assert estimate is not None
    at, write = scale.percent, _writer(findings)
    marks: list[Html] = []
    if scale.margin:
        band_width = f"{100 * (scale.share(scale.margin) - scale.share(-scale.margin)):.2f}%"
        marks.append(element("rect", x=at(-scale.margin), width=band_width, y="0", height="100%", class_="margin"))
    marks.append(line_mark(at(0.0), "zero"))
    if estimate.interval:
        low, high = estimate.interval
        marks.append(interval_mark(at(low), at(high), f"95 % interval: {write(low)} to {write(high)}"))
    seeds = {} if findings.study.is_large else seed_values(findings, comparison)
    for seed, value in seeds.items():
        title = element("title", f"seed {seed}: {write(value)}")
        marks.append(element("circle", title, cx=at(value), cy="50%", r="3", class_="seed"))
    return [*marks, mean_mark(at(estimate.difference), f"mean: {write(estimate.difference)}")]


def _writer(findings: Findings) -> Callable[[float], str]:
    """Returns a function that writes a difference with one decimal more than tables do."""
    return lambda value: fixed(findings.as_printed(value), findings.difference_decimals + 1)


def _axis(findings: Findings, scale: IntervalScale) -> Html:
    """Returns the values at the ends of the scale, and zero where it has room, below the rows."""
    low, high = (f"{findings.as_printed(end):.3g}" for end in (scale.low, scale.high))
    no_difference = "1" if findings.ratio else "0"
    ends = [element("span", low, style="left:0"), element("span", high, style="right:0")]
    zero = 100 * scale.share(0.0)
    if _ROOM < zero < 100 - _ROOM:
        ends.insert(1, element("span", no_difference, style=f"left:{zero:.2f}%", class_="middle"))
    return element("div", element("span"), element("span", *ends, class_="ends"), class_="row axis", aria_hidden="true")


_ROOM = 18
"""The percent of the scale that the text at an end takes."""


def _legend(findings: Findings) -> str:
    """Returns the meaning of the marks, the unit, and which direction is better."""
    better = "left" if findings.study.plan.goal == "minimize" else "right"
    unit = findings.difference_unit
    margin = f" The band is the margin of equality: {findings.margin}." if findings.margin else ""
    return (
        f"{unit[0].upper()}{unit[1:]}; {better} is better. Bars are 95 % intervals, large points means, small points "
        f"seeds.{margin}"
    )


def curve_chart(findings: Findings) -> Html:
    """Returns the learning curves of the arms: of the metric if it was measured during training, else of the loss.

    They begin after the first fifth of training where that spans most of the values.
    """
    curves = load_curves(findings.study)
    if not curves or findings.battery:
        return Html()
    name, by_arm = list(curves.items())[-1]
    start = SETTLED if falls_early(by_arm) else 0.0
    lines = {arm: line for arm, seeds in by_arm.items() if len(line := _line(seeds, start))}
    if not lines:
        return Html()
    every = np.concatenate([*lines.values()])
    (first, low), (last, high) = every.min(axis=0), every.max(axis=0)
    spans = last - first or 1.0, high - low or 1.0
    labels, drawn, legend = findings.study.plan.labels, [], []
    for number, (arm, line) in enumerate(lines.items()):
        style = f"series-{number % _SERIES + 1} dash-{number // _SERIES % _DASHES}"
        final = f"{labels.alone(arm)}: {fixed(float(line[-1, 1]), findings.decimals)}"
        points = " ".join(f"{(x - first) / spans[0] * _WIDE:.1f},{(high - y) / spans[1] * _HIGH:.1f}" for x, y in line)
        drawn.append(element("polyline", element("title", final), points=points, class_=style))
        legend.append(element("li", element("i", class_=style), name_of(final)))
    chart = element(
        "svg", *drawn, viewBox=f"0 0 {_WIDE} {_HIGH}", preserveAspectRatio="none", aria_hidden="true", focusable="false"
    )
    since = f" from {start:.0%} of training on" if start else ""
    return element(
        "div",
        element("h2", "Learning curves", id="curves"),
        element("p", f"{curve_title(findings, name)}, mean over seeds{since}", class_="note"),
        element(
            "div",
            element("span", fixed(float(high), findings.decimals), class_="high"),
            element("span", fixed(float(low), findings.decimals), class_="low"),
            chart,
            element(
                "span",
                f"{count(float(first))} to {count(float(last))} {progress_title(findings.study)}",
                class_="progress",
            ),
            class_="plot",
        ),
        element("ul", *legend, class_="legend"),
        class_="picture",
    )


def _line(seeds: Sequence[Array], start: float) -> Array:
    """Returns the mean over seeds (n, 2) from a share of training on: progress and value."""
    tokens, mean, _, _ = band(seeds)
    line = np.stack([tokens, mean], axis=1)
    return line[tokens >= start * tokens[-1]] if len(tokens) else line
