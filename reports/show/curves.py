"""Learning curves: the mean over seeds of each arm, with a band from the smallest to the largest value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from lit_transformers.records.measurement import named_on
from lit_transformers.records.plan import Metric
from reports.judge.fairness import cost_of, place_of
from reports.judge.findings import Findings
from reports.judge.matrix import Matrix
from reports.read.measurements import Array, thinned
from reports.read.study import Study
from reports.show.style import INK, LineStyle, label, label_ends, line_styles, ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINING_LOSS = "train/loss"
_TRAINING = ("train/loss", "train/nats")
_PANELS_ACROSS = 2
_LEGEND_COLUMNS = 5
SETTLED = 0.2
"""The share of training whose values span most of their range, and tell little about a study's question."""
MOST_FURTHER = 3
"""The number of further metrics whose curves are drawn side by side."""
MOST_BANDS = 8
"""The number of arms from which bands over seeds would cover each other, so that none are drawn."""

Curves = dict[str, dict[str, list[Array]]]
"""The curves of all seeds by name of the curve and by arm, each [points, 2] of tokens and value."""


def load_curves(study: Study) -> Curves:
    """Returns the curves of the training loss and of the metric that have at least two points."""
    return curves_of(study, dict.fromkeys((TRAINING_LOSS, *curve_names(study.plan.metric))))


def load_auxiliary(study: Study) -> Curves:
    """Returns the curves of losses that are added to the objective, such as those of spans, pondering, compression."""
    names = {name for run in study.runs for name in run.measurements.curves if name.startswith("train/")}
    return curves_of(study, sorted(names - {*_TRAINING, *curve_names(study.plan.metric)}))


def load_further(study: Study) -> Curves:
    """Returns the curves of the first metrics that are shown and not judged."""
    return curves_of(study, [name for metric in study.plan.also[:MOST_FURTHER] for name in curve_names(metric)])


def curve_names(metric: Metric) -> tuple[str, ...]:
    """Returns the names of curves of a metric: its own, and that of validations while another split is measured."""
    return tuple(dict.fromkeys((metric.name, named_on(metric.name, "validation"))))


def curves_of(study: Study, names: Iterable[str]) -> Curves:
    """Returns the curves of finished runs that have these names and at least two points, in the order of the names.
    Those of runs that were brought in are over steps, and are omitted where others are over tokens."""
    requested, curves = tuple(names), Curves()
    for run in study.runs:
        if run.missing is not None or (place_of(run) and _counts_tokens(study)):
            continue
        for name, curve in run.curves(requested).items():
            if len(curve) > 1:
                curves.setdefault(name, {}).setdefault(run.arm, []).append(curve)
    return {name: curves[name] for name in requested if name in curves}


def band(curves: Sequence[Array]) -> tuple[Array, Array, Array, Array]:
    """Returns tokens, mean, minimum and maximum over seeds, each [points], on the range of tokens that all seeds cover.

    Long curves are thinned to means of neighbouring points first.
    """
    short = [thinned(curve) for curve in curves]
    start, stop = max(c[0, 0] for c in short), min(c[-1, 0] for c in short)
    grid = np.unique(np.concatenate([c[:, 0] for c in short]))
    grid = grid[(grid >= start) & (grid <= stop)]
    values = np.stack([np.interp(grid, c[:, 0], c[:, 1]) for c in short])
    return grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def learning_curves(findings: Findings, curves: Curves) -> Figure:
    """Draws a panel for each curve name, and below each the same without the first fifth of training where that spans
    most of the values. The arms are labelled at the line ends of the last panel."""
    from matplotlib.figure import Figure

    labels = findings.study.plan.labels
    styles = {
        arm: style
        for arm, style in line_styles(findings.study.arm_names).items()
        if any(arm in by_arm for by_arm in curves.values())
    }
    longest = max(len(label(labels.alone(arm))) for arm in styles)
    width = max(9.0, 3.4 * len(curves) + min(4.5, 0.6 + 0.07 * longest))
    starts = [0.0, SETTLED] if any(map(falls_early, curves.values())) else [0.0]
    height = max(3.6, 0.3 * len(styles))
    figure = Figure(figsize=(width, height + 3.0 * (len(starts) - 1)), layout="constrained")
    rows = figure.subplots(len(starts), len(curves), squeeze=False, height_ratios=[3.0, height][-len(starts) :])
    for start, panels in zip(starts, rows, strict=True):
        for panel, (name, by_arm) in zip(panels, curves.items(), strict=True):
            ends = _panel(panel, by_arm, styles, start)
            panel.xaxis.set_major_formatter(ticks)
            panel.set_ylabel(curve_title(findings, name))
            if len(starts) > 1:
                part = "without the first fifth" if start else "all of training"
                panel.set_title(part, loc="left", fontsize=9, color=INK)
    for panel in rows[-1]:
        panel.set_xlabel(progress_title(findings.study))
    label_ends(rows[-1][-1], ends, styles, labels)
    return figure


def falls_early(by_arm: Mapping[str, list[Array]]) -> bool:
    """Whether values of the first fifth of training leave less than half of an axis to all others."""
    curves = [curve for seeds in by_arm.values() for curve in seeds]
    later = [curve[curve[:, 0] >= SETTLED * curve[-1, 0], 1] for curve in curves]
    return _range(curve[:, 1] for curve in curves) > 2 * _range(later)


def _range(values: Iterable[Array]) -> float:
    """Returns the distance between the least and the greatest value."""
    together = np.concatenate([*values])
    return float(together.max() - together.min())


def battery_curves(findings: Findings, battery: Matrix, curves: Curves) -> Figure:
    """Draws a panel for each task of a battery, with a line for each row, of the metric's curves where there are any,
    else of the training loss. Losses of different tasks cannot be compared, so that each panel has its own axis."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    name, by_arm = list(curves.items())[-1]
    styles = line_styles(battery.levels)
    count = -(-len(battery.tasks) // _PANELS_ACROSS)
    figure = Figure(figsize=(9.0, 2.3 * count + 0.16 * len(styles)), layout="constrained")
    panels = figure.subplots(count, _PANELS_ACROSS, squeeze=False)
    for panel in panels[-1]:
        panel.set_xlabel(progress_title(findings.study))
    for panel, task in zip_longest(panels.flat, battery.tasks):
        if task is None:
            panel.set_axis_off()
            continue
        arms = {level: battery.arms.get((level, task), "") for level in battery.levels}
        _panel(panel, {level: by_arm[arm] for level, arm in arms.items() if arm in by_arm}, styles)
        panel.set_title(label(task), loc="left", fontsize=9, color=INK)
        panel.xaxis.set_major_formatter(ticks)
    figure.supylabel(curve_title(findings, name), fontsize=9)
    handles = [Line2D([], [], linewidth=1.6, label=label(level), **style) for level, style in styles.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=_LEGEND_COLUMNS, frameon=False, fontsize=8)
    return figure


def progress_title(study: Study) -> str:
    """Returns the title of the axis over which curves are drawn: the planned tokens of training or, where none are
    counted, its steps."""
    return "planned tokens of training" if _counts_tokens(study) else "steps of training"


def _counts_tokens(study: Study) -> bool:
    return any(cost_of(run, "planned_tokens") is not None for run in study.runs)


def curve_title(findings: Findings, name: str) -> str:
    """Returns the title of a curve with its unit."""
    for metric in (findings.metric, *findings.study.plan.also):
        if name in curve_names(metric):
            return label(f"{metric.title} ({name.partition('/')[0]})" if "/" in name else metric.title)
    if name == TRAINING_LOSS:
        # Of a module that counts no tokens the unit of the loss is its own.
        return "training loss (nats per target)" if _counts_tokens(findings.study) else "training loss"
    return label(f"{name.partition('/')[2]} loss")


def _panel(
    panel: Axes, by_arm: Mapping[str, list[Array]], styles: Mapping[str, LineStyle], start: float = 0.0
) -> dict[str, float]:
    """Draws the arms from a share of training on, and returns where each line ends, as a share of the panel's height.
    Every point is within the axes."""
    ends, lows, highs, last = {}, [], [], 0.0
    for arm, style in styles.items():
        if arm not in by_arm:
            continue
        tokens, mean, least, greatest = band(by_arm[arm])
        if not len(tokens):
            continue
        is_drawn = tokens >= start * tokens[-1]
        tokens, mean, least, greatest = tokens[is_drawn], mean[is_drawn], least[is_drawn], greatest[is_drawn]
        panel.plot(tokens, mean, linewidth=1.6, **style)
        if len(by_arm) <= MOST_BANDS:
            panel.fill_between(tokens, least, greatest, color=style["color"], alpha=0.18, linewidth=0)
        ends[arm], last = float(mean[-1]), max(last, float(tokens[-1]))
        lows.append(float(least.min()))
        highs.append(float(greatest.max()))
    if lows and max(highs) > min(lows):
        margin = 0.05 * (max(highs) - min(lows))
        panel.set_ylim(min(lows) - margin, max(highs) + margin)
        panel.set_xlim(start * last, last)
    low, high = panel.get_ylim()
    return {arm: (end - low) / (high - low) for arm, end in ends.items()}
