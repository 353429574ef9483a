"""Charts of the results of a study: differences with intervals, cost against quality, and cost against length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reports.judge.comparisons import Comparison
from reports.judge.fairness import cost_of
from reports.judge.matrix import Matrix
from reports.read.records import Study
from reports.show.looks import (
    INK,
    MUTED,
    PAPER,
    VERDICTS,
    LineStyle,
    label,
    label_ends,
    line_styles,
    spread,
    ticks,
)
from reports.show.observed import read
from reports.show.sections import Findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COSTS = (
    ("flops_per_token", "FLOPs per token"),
    ("seconds", "seconds of training"),
    ("peak_memory_bytes", "bytes of peak memory"),
    ("parameters", "parameters"),
)
_PANELS = 2
_SAME = 1.02
"""Costs of arms whose ratio of largest to smallest is at most this count as equal."""
_LOGARITHMIC = 8.0


class Point(NamedTuple):
    """The mean cost and the mean metric value of an arm over its seeds, and a ``deviation`` of the value, which is the
    standard one or, of means over tasks, half of the interval."""

    arm: str
    cost: float
    value: float
    deviation: float


def cost_points(findings: Findings) -> dict[str, list[Point]]:
    """Returns the points of all finished arms, or of the rows of a battery that have a mean, for the first two costs in
    which they differ, by title of the cost."""
    points_by_cost: dict[str, list[Point]] = {}
    for key, title in _COSTS:
        if findings.battery:
            points = _battery_points(findings.study, findings.battery, key)
        else:
            points = [point for name in findings.study.arm_names if (point := _point(findings.study, name, key))]
        if len(points_by_cost) < _PANELS and _differ([point.cost for point in points]):
            points_by_cost[title] = points
    return points_by_cost


def _point(study: Study, arm: str, key: str) -> Point | None:
    runs = study.finished(arm)
    costs = [cost for run in runs if (cost := cost_of(run, key)) is not None]
    if not costs:
        return None
    values = [run.value for run in runs]
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Point(arm, float(np.mean(costs)), float(np.mean(values)), deviation)


def _battery_points(study: Study, battery: Matrix, key: str) -> list[Point]:
    points = []
    for level in battery.means:
        arms = [arm for task in battery.tasks if (arm := battery.arms.get((level, task)))]
        costs = [point.cost for arm in arms if (point := _point(study, arm, key))]
        if len(costs) == len(arms):
            points.append(_mean_point(battery, level, float(np.mean(costs))))
    return points


def state_points(matrix: Matrix) -> list[Point]:
    """Returns a point for each row of a matrix with a mean and a known state, if rows differ in their states."""
    points = [_mean_point(matrix, level, state) for level, state in matrix.states.items()]
    return points if _differ([point.cost for point in points]) else []


def _mean_point(matrix: Matrix, level: str, cost: float) -> Point:
    mean, interval = matrix.means[level].mean, matrix.means[level].interval
    return Point(level, cost, mean, (interval.high - interval.low) / 2 if interval else 0.0)


def _differ(costs: Sequence[float]) -> bool:
    """Whether positive costs lie far enough apart to be drawn on an axis."""
    return len(costs) > 1 and min(costs) > 0 and max(costs) > _SAME * min(costs)


def front(points: Sequence[Point], goal: str) -> list[Point]:
    """Returns the Pareto front: the points that no other beats in both cost and value, by rising cost."""
    sign = 1 if goal == "minimize" else -1
    undominated: list[Point] = []
    for point in sorted(points, key=lambda point: (point.cost, sign * point.value)):
        if not undominated or sign * point.value < sign * undominated[-1].value:
            undominated.append(point)
    return undominated


def cost_against_quality(findings: Findings, points_by_cost: Mapping[str, Sequence[Point]]) -> Figure:
    """Draws a panel for each cost; a line joins the points of the Pareto front."""
    from matplotlib.figure import Figure

    styles = _styles(findings)
    most = max(map(len, points_by_cost.values()))
    figure = Figure(figsize=(9.0, max(3.6, 0.26 * most)), layout="constrained")
    panels = figure.subplots(1, len(points_by_cost), squeeze=False, sharey=True)[0]
    for panel, (title, points) in zip(panels, points_by_cost.items(), strict=True):
        _quality_panel(panel, points, styles, findings.metric.goal)
        panel.set_xlabel(f"{title} (left is cheaper)")
    better = "lower" if findings.metric.goal == "minimize" else "higher"
    title = f"{'mean ' if findings.battery else ''}{label(findings.metric.title)}"
    panels[0].set_ylabel(f"{title} ({better} is better)")
    return figure


def state_against_accuracy(findings: Findings, matrix: Matrix, points: Sequence[Point]) -> Figure:
    """Draws the means of the rows of a matrix against their states; a line joins those of the Pareto front."""
    from matplotlib.figure import Figure

    styles = line_styles(matrix.levels)
    figure = Figure(figsize=(9.0, max(3.6, 0.32 * len(points))), layout="constrained")
    panel = figure.subplots()
    _quality_panel(panel, points, styles, "maximize", gap=0.035)
    panel.set_xlabel("numbers held in decoding (left is cheaper)")
    panel.set_ylabel(f"mean {label(findings.metric.title)} (higher is better)")
    return figure


def _styles(findings: Findings) -> dict[str, LineStyle]:
    """Returns the styles of what costs are drawn of: the rows of a battery, or else the arms."""
    return line_styles(findings.battery.levels if findings.battery else findings.study.arm_names)


def _quality_panel(
    panel: Axes, points: Sequence[Point], styles: Mapping[str, LineStyle], goal: str, gap: float = 0.07
) -> None:
    best = front(points, goal)
    panel.plot([p.cost for p in best], [p.value for p in best], color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    for point in points:
        colour = styles[point.arm]["color"]
        panel.errorbar(point.cost, point.value, yerr=point.deviation or None, color=colour, linewidth=1.2, zorder=3)
        filled = colour if point in best else PAPER
        panel.plot(point.cost, point.value, "o", color=colour, markerfacecolor=filled, markersize=6, zorder=4)
    costs = [point.cost for point in points]
    logarithmic = max(costs) > _LOGARITHMIC * min(costs)
    if logarithmic:
        panel.set_xscale("log")
    panel.xaxis.set_major_formatter(ticks)
    panel.xaxis.set_minor_formatter(lambda value, _: "")
    _widen(panel, costs, logarithmic)
    _label_points(panel, points, styles, gap)


def _widen(panel: Axes, costs: Sequence[float], logarithmic: bool) -> None:
    """Widens the cost axis so that labels have room on either side."""
    low, high = (math.log(min(costs)), math.log(max(costs))) if logarithmic else (min(costs), max(costs))
    room = 0.45 * (high - low)
    ends = (low - room, high + room)
    panel.set_xlim(*(map(math.exp, ends) if logarithmic else ends))


def _label_points(panel: Axes, points: Sequence[Point], styles: Mapping[str, LineStyle], gap: float) -> None:
    """Labels the points on the side that has more room, without overlaps: ``gap`` of the panel's height apart."""
    low, high = panel.get_ylim()
    order = sorted(points, key=lambda point: point.value)
    heights = spread([(p.value - low) / (high - low) for p in order], min(gap, 1 / len(order)))
    middle = panel.transData.inverted().transform(panel.transAxes.transform((0.5, 0.5)))[0]
    for point, height in zip(order, heights, strict=True):
        left = point.cost > middle
        across = panel.transAxes.inverted().transform(panel.transData.transform((point.cost, point.value)))[0]
        panel.annotate(
            label(point.arm),
            xy=(point.cost, point.value),
            xytext=(across - 0.035 if left else across + 0.035, height),
            textcoords="axes fraction",
            ha="right" if left else "left",
            va="center",
            fontsize=8,
            color=styles[point.arm]["color"],
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": styles[point.arm]["color"], "shrinkB": 3},
        )


Line = tuple[tuple[int, float], ...]
"""Pairs of row length in tokens, ascending, and FLOPs per token at that length."""


def costs_by_length(findings: Findings) -> dict[str, tuple[str, Line]]:
    """Returns, by label, an arm and its line of costs; arms that cost the same at all lengths share one label.

    Of a battery the rows stand for the arms of its first task: other tasks differ in their vocabularies alone.
    """
    battery, names = findings.battery, dict[Line, list[str]]()
    arms = {name: name for name in findings.study.arm_names}
    if battery:
        arms = {level: battery.arms.get((level, battery.tasks[0]), "") for level in battery.levels}
    for name, arm in arms.items():
        lines = [
            observation.flops_by_length
            for run in findings.study.finished(arm)
            if (observation := read(run)) is not None
        ]
        line = lines[0] if lines else ()
        if len(line) > 1 and all(length > 0 and flops > 0 for length, flops in line):
            names.setdefault(line, []).append(name)
    labels = findings.study.plan.labels
    return {_shared_label([labels.alone(name) for name in group]): (group[0], line) for line, group in names.items()}


def _shared_label(names: Sequence[str]) -> str:
    return label(names[0]) if len(names) == 1 else f"{label(names[0], 32)} and {len(names) - 1} more"


def cost_against_length(findings: Findings, lines_by_name: Mapping[str, tuple[str, Line]]) -> Figure:
    """Draws FLOPs per token against the length of a row in tokens, a line for each label, on logarithmic axes."""
    from matplotlib.figure import Figure

    all_styles = _styles(findings)
    styles = {name: all_styles[arm] for name, (arm, _) in lines_by_name.items()}
    figure = Figure(figsize=(9.0, max(3.4, 0.3 * len(lines_by_name))), layout="constrained")
    panel = figure.subplots()
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for name, (_, line) in lines_by_name.items():
        panel.plot(*zip(*line, strict=True), marker="o", markersize=3.5, linewidth=1.6, **styles[name])
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(ticks)
    panel.yaxis.set_minor_formatter(ticks)
    panel.tick_params(axis="y", which="minor", labelsize=7)
    lengths = sorted({length for _, line in lines_by_name.values() for length, _ in line})
    panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
    panel.minorticks_off() if _decades(lines_by_name) > 1 else panel.xaxis.set_minor_formatter(lambda value, _: "")
    panel.set_xlabel("tokens in a row")
    panel.set_ylabel("FLOPs per token")
    low, high = map(math.log, panel.get_ylim())
    label_ends(
        panel, {n: (math.log(line[-1][1]) - low) / (high - low) for n, (_, line) in lines_by_name.items()}, styles
    )
    return figure


def _decades(lines_by_name: Mapping[str, tuple[str, Line]]) -> float:
    """Returns how many powers of ten the costs span."""
    costs = [flops for _, line in lines_by_name.values() for _, flops in line]
    return math.log10(max(costs) / min(costs))


def differences(findings: Findings, comparisons: Sequence[Comparison]) -> Figure:
    """Draws the difference and interval of each comparison in the colour of its verdict."""
    from matplotlib.figure import Figure

    names = [label(c.name if c.kind == "contrast" else f"{c.name} ({c.kind})", 64) for c in comparisons]
    figure = Figure(figsize=(9.0, 1.3 + 0.3 * len(comparisons)), layout="constrained")
    panel = figure.subplots()
    for row, comparison in enumerate(comparisons):
        _whisker(panel, findings, comparison, row)
    panel.set_yticks(range(len(comparisons)), names)
    panel.tick_params(axis="y", labelcolor=INK)
    panel.set_ylim(len(comparisons) - 0.5, -0.5)
    panel.grid(visible=False, axis="y")
    panel.axvline(findings.as_printed(0.0), color=MUTED, linewidth=0.9, zorder=1)
    if margin := next((comparison.margin for comparison in comparisons if comparison.margin), None):
        panel.axvspan(findings.as_printed(-margin), findings.as_printed(margin), color=MUTED, alpha=0.12, linewidth=0)
    side = "left" if findings.metric.goal == "minimize" else "right"
    title = label(findings.metric.title)
    panel.set_xlabel(f"{f'ratio of {title}' if findings.ratio else f'difference in {title}'} ({side} is better)")
    if findings.ratio:
        panel.set_xscale("log")
    _legend(panel, comparisons)
    return figure


def _whisker(panel: Axes, findings: Findings, comparison: Comparison, row: int) -> None:
    estimate = comparison.estimate
    if estimate is None or estimate.interval is None:
        return
    style = marker_style(comparison.verdict)
    ends = [findings.as_printed(end) for end in estimate.interval]
    panel.plot(ends, [row, row], color=style["color"], linewidth=2, solid_capstyle="butt")
    panel.plot([findings.as_printed(estimate.difference)], [row], **style)


def marker_style(verdict: str | None) -> dict[str, Any]:
    """Returns the marker style of a verdict: filled where it is decided, a diamond without a verdict."""
    colour = VERDICTS.get(verdict or "", MUTED)
    shape = {"marker": "o", "markersize": 6} if verdict else {"marker": "D", "markersize": 5}
    return shape | {"color": colour, "markerfacecolor": colour if verdict in VERDICTS else PAPER}


def _legend(panel: Axes, comparisons: Sequence[Comparison]) -> None:
    from matplotlib.lines import Line2D

    present = dict.fromkeys(comparison.verdict for comparison in comparisons)
    handles = [
        Line2D([], [], linewidth=2, label=verdict or "no verdict", **marker_style(verdict)) for verdict in present
    ]
    panel.figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=8)
