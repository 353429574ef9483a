"""Charts of the results of a study: differences with intervals, cost against quality, and cost against length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reports.judge.comparisons import Comparison
from reports.judge.costs import is_measured
from reports.judge.fairness import at_one_place, mean_cost
from reports.judge.findings import NOT_ALONE, Findings
from reports.judge.matrix import Matrix
from reports.read.study import Run
from reports.show.names import ComparisonNames, name_comparisons
from reports.show.observed import read
from reports.show.style import (
    INK,
    MUTED,
    PAPER,
    SERIES,
    VERDICTS,
    label,
    label_ends,
    line_styles,
    ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_COSTS = (
    ("packed_bytes", "packed checkpoint (bytes)"),
    ("time_ratio", "time of a batch (ratio to the start)"),
    ("passage_bytes", "states of a passage (bytes)"),
    ("flops_per_token", "FLOPs per token"),
    ("seconds", "time of training (s)"),
    ("peak_memory_bytes", "peak memory (bytes)"),
    ("parameters", "parameters"),
)
_PANELS = 2
_SAME = 1.02
"""Costs of arms whose ratio of largest to smallest is at most this count as equal."""
_LOGARITHMIC = 8.0
"""The ratio of the largest to the smallest cost from which an axis is logarithmic."""
_DECADES = 100.0
"""The ratio from which its ticks are powers of ten alone."""


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
    finished = {arm: findings.study.finished(arm) for arm in findings.study.arm_names}
    for key, title in _COSTS:
        is_timed = is_measured([run for runs in finished.values() for run in runs], key)
        costly = at_one_place(finished) if is_timed else finished
        mean_costs = {arm: cost for arm, runs in costly.items() if (cost := mean_cost(runs, key)) is not None}
        if findings.battery:
            points = _battery_points(findings.battery, mean_costs)
        else:
            points = [_point(arm, cost, finished[arm]) for arm, cost in mean_costs.items()]
        if len(points_by_cost) < _PANELS and _differ([point.cost for point in points]):
            points_by_cost[title] = points
    return points_by_cost


def _point(arm: str, cost: float, runs: Sequence[Run]) -> Point:
    values = [run.value for run in runs]
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Point(arm, cost, float(np.mean(values)), deviation)


def _battery_points(battery: Matrix, mean_costs: Mapping[str, float]) -> list[Point]:
    points = []
    for level in battery.means:
        arms = [arm for task in battery.tasks if (arm := battery.arms.get((level, task)))]
        costs = [mean_costs[arm] for arm in arms if arm in mean_costs]
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
    """Returns the Pareto front by rising cost: the points that no other beats in value at the same cost or a lower one.
    Costs whose ratio is at most ``_SAME`` count as equal, since times vary, and sizes of files by a few bytes."""
    sign = 1 if goal == "minimize" else -1
    by_value = sorted(points, key=lambda point: (sign * point.value, point.cost))
    undominated: list[Point] = []
    for point in by_value:
        if not undominated or point.cost * _SAME < undominated[-1].cost:
            undominated.append(point)
    return undominated[::-1]


def cost_against_quality(findings: Findings, points_by_cost: Mapping[str, Sequence[Point]]) -> Figure:
    """Draws the arms, or the rows of a battery, from the best to the worst, with their costs next to them."""
    plan, battery = findings.study.plan, findings.battery
    if battery:
        return _ranked(findings, points_by_cost, {level: level for level in battery.levels}, battery.rows)
    labels = {arm: plan.labels.marked(arm) for arm in findings.study.arm_names}
    return _ranked(findings, points_by_cost, labels, plan.labels.heading(""))


def state_against_accuracy(findings: Findings, matrix: Matrix, points: Sequence[Point]) -> Figure:
    """Draws the rows of a matrix from the best mean to the worst, with their states next to them."""
    return _ranked(
        findings, {"numbers held in decoding": points}, {level: level for level in matrix.levels}, matrix.rows
    )


def _ranked(
    findings: Findings, points_by_cost: Mapping[str, Sequence[Point]], labels: Mapping[str, str], heading: str
) -> Figure:
    """Draws a row for each point, the best on top: a panel of values with their deviations, and a panel for each cost.

    A point in a panel of costs is full where no other beats it in both. A line marks the value of the baseline.
    """
    from matplotlib.figure import Figure

    goal = findings.study.plan.goal
    points = {point.arm: point for of_cost in points_by_cost.values() for point in of_cost}
    order = sorted(points, key=lambda arm: points[arm].value, reverse=goal == "maximize")
    rows = {arm: row for row, arm in enumerate(order)}
    figure = Figure(figsize=(9.0, 1.1 + 0.26 * max(4, len(order))), layout="constrained")
    widths = [1.5, *[1.0] * len(points_by_cost)]
    values, *costs = figure.subplots(1, len(widths), squeeze=False, sharey=True, width_ratios=widths)[0]
    for arm, row in rows.items():
        point = points[arm]
        values.errorbar(point.value, row, xerr=point.deviation or None, color=SERIES[0], linewidth=2, zorder=3)
        values.plot(point.value, row, "o", color=SERIES[0], markersize=6, zorder=4)
    if (baseline := _baseline_row(findings)) in points:
        values.axvline(points[baseline].value, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    if findings.ratio:
        values.set_xscale("log")
        _set_log_ticks(values.xaxis, [point.value for point in points.values()])
    better = "left" if goal == "minimize" else "right"
    values.set_xlabel(f"{'mean ' if findings.battery else ''}{label(findings.metric.title)} ({better} is better)")
    values.set_yticks(range(len(order)), [label(labels[arm]) for arm in order])
    values.tick_params(axis="y", labelcolor=INK)
    values.set_ylim(len(order) - 0.5, -0.5)
    values.set_ylabel(label(heading))
    for panel, (title, of_cost) in zip(costs, points_by_cost.items(), strict=True):
        _cost_panel(panel, of_cost, rows, goal)
        panel.set_xlabel(title)
    return figure


def _baseline_row(findings: Findings) -> str:
    """Returns the name of the row of the baseline: an arm, or a level of the rows of a battery."""
    plan = findings.study.plan
    if findings.battery is None:
        return plan.baseline
    return next(arm.levels[findings.battery.rows] for arm in plan.arms if arm.name == plan.baseline)


def _cost_panel(panel: Axes, points: Sequence[Point], rows: Mapping[str, int], goal: str) -> None:
    """Draws costs on an axis from zero or, where they span magnitudes, on a logarithmic one."""
    from matplotlib.ticker import MaxNLocator

    best, costs = front(points, goal), [point.cost for point in points]
    logarithmic = max(costs) > _LOGARITHMIC * min(costs)
    for point in points:
        row, filled = rows[point.arm], SERIES[1] if point in best else PAPER
        if not logarithmic:
            panel.plot([0, point.cost], [row, row], color=SERIES[1], linewidth=1.2, alpha=0.5, zorder=2)
        panel.plot(point.cost, row, "o", color=SERIES[1], markerfacecolor=filled, markersize=6, zorder=4)
    if logarithmic:
        panel.set_xscale("log")
        panel.margins(x=0.12)
        _set_log_ticks(panel.xaxis, costs)
    else:
        panel.set_xlim(0, 1.08 * max(costs))
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.xaxis.set_major_formatter(ticks)


def _set_log_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Sets the ticks of a logarithmic axis: at powers of ten and, where values span less than two, at twice and five
    times these; evenly where they span less than one."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    span = max(values) / min(values)
    steps = (1.0, 2.0, 5.0) if span < _DECADES else (1.0,)
    axis.set_major_locator(MaxNLocator(6) if span < _LOGARITHMIC else LogLocator(subs=steps))
    axis.set_major_formatter(ticks)
    axis.set_minor_formatter(lambda value, _: "")


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

    all_styles = line_styles(findings.battery.levels if findings.battery else findings.study.arm_names)
    styles = {name: all_styles[arm] for name, (arm, _) in lines_by_name.items()}
    figure = Figure(figsize=(9.0, max(3.4, 0.3 * len(lines_by_name))), layout="constrained")
    panel = figure.subplots()
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for name, (_, line) in lines_by_name.items():
        panel.plot(*zip(*line, strict=True), marker="o", markersize=3.5, linewidth=1.6, **styles[name])
    _set_log_ticks(panel.yaxis, [flops for _, line in lines_by_name.values() for _, flops in line])
    lengths = sorted({length for _, line in lines_by_name.values() for length, _ in line})
    panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
    panel.minorticks_off()
    panel.set_xlabel("tokens in a row")
    panel.set_ylabel("FLOPs per token")
    low, high = map(math.log, panel.get_ylim())
    label_ends(
        panel, {n: (math.log(line[-1][1]) - low) / (high - low) for n, (_, line) in lines_by_name.items()}, styles
    )
    return figure


def differences(findings: Findings, comparisons: Sequence[Comparison]) -> Figure:
    """Draws the difference and interval of each comparison in the colour of its verdict, the best on top where all
    compare levels with the same level and levels have no order."""
    from matplotlib.figure import Figure

    shared = name_comparisons(findings.study.plan, comparisons)
    if shared.factor and shared.levels == shared.short:
        comparisons = sorted(comparisons, key=_difference, reverse=findings.metric.goal == "maximize")
    names = [label(_name(comparison, shared), 64) for comparison in comparisons]
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
    panel.set_ylabel(label(shared.heading("")))
    side = "left" if findings.metric.goal == "minimize" else "right"
    title = label(findings.metric.title)
    panel.set_xlabel(f"{f'ratio of {title}' if findings.ratio else f'difference in {title}'} ({side} is better)")
    if findings.ratio:
        panel.set_xscale("log")
        ends = [end for one in comparisons if one.estimate and one.estimate.interval for end in one.estimate.interval]
        _set_log_ticks(panel.xaxis, [findings.as_printed(end) for end in (0.0, *ends)])
    _legend(panel, comparisons)
    return figure


def _name(comparison: Comparison, shared: ComparisonNames) -> str:
    name = shared.levels[comparison.name]
    is_named = comparison.kind == "contrast" or name.endswith(NOT_ALONE)
    return name if shared.reference or is_named else f"{name} ({comparison.kind})"


def _difference(comparison: Comparison) -> float:
    return comparison.estimate.difference if comparison.estimate else math.inf


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
