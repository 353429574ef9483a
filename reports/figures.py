"""Figures, as PNG and SVG: learning curves per arm, and paired differences with their intervals.

The same records give the same bytes: no date, no version and no random identifier is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.comparisons import Comparison
from reports.records import Study, read_curves
from reports.sections import Findings
from reports.statistics import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINING_LOSS = "train/loss"

# Okabe and Ito's palette without its yellow, which is too pale for lines on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_VERDICTS = {"better": "#009E73", "worse": "#D55E00", "differs": "#0072B2"}
_POINTS = 120
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "text.parse_math": False,
    "svg.hashsalt": "lit-transformers",
    "svg.fonttype": "path",
}


def draw_figures(findings: Findings, directory: Path) -> dict[str, str]:
    """Writes the figures for which there is something to draw; returns captions by file name without ending."""
    import matplotlib

    captions = {}
    with matplotlib.rc_context(_STYLE):
        curves = load_curves(findings.study)
        if curves:
            _save(_learning_curves(findings, curves), directory / "learning_curves")
            captions["learning_curves"] = "Learning curves: mean over seeds, the band from the least to the greatest."
        comparisons = [c for c in findings.comparisons if c.estimate and c.estimate.interval]
        if comparisons:
            _save(_differences(findings, comparisons), directory / "differences")
            captions["differences"] = "Paired differences with their 95 % intervals."
    return captions


Curves = dict[str, dict[str, list[Array]]]
"""Per name of a curve and per arm, the curves of its seeds, each [points, 2] of tokens and value."""


def load_curves(study: Study) -> Curves:
    """The metric's and the training loss's curves that have two points or more."""
    names = tuple(dict.fromkeys((TRAINING_LOSS, study.plan.metric.name)))
    curves: Curves = {}
    for run in study.runs:
        if run.missing is not None:
            continue
        for name, curve in read_curves(run.directory / "metrics.csv", names).items():
            if len(curve) > 1:
                curves.setdefault(name, {}).setdefault(run.arm, []).append(curve)
    return {name: curves[name] for name in names if name in curves}


def band(curves: Sequence[Array]) -> tuple[Array, Array, Array, Array]:
    """Tokens, mean, least and greatest value over seeds, where all of them have been; long curves in steps' means."""
    thinned = [_thin(curve) for curve in curves]
    start, stop = max(c[0, 0] for c in thinned), min(c[-1, 0] for c in thinned)
    grid = np.unique(np.concatenate([c[:, 0] for c in thinned]))
    grid = grid[(grid >= start) & (grid <= stop)]
    values = np.stack([np.interp(grid, c[:, 0], c[:, 1]) for c in thinned])
    return grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def _thin(curve: Array) -> Array:
    """Means of neighbouring points, so that a noisy loss reads as a line."""
    if len(curve) <= _POINTS:
        return curve
    return np.stack([part.mean(axis=0) for part in np.array_split(curve, _POINTS)])


def _learning_curves(findings: Findings, curves: Curves) -> Figure:
    from matplotlib.figure import Figure

    arms = [arm.name for arm in findings.study.plan.arms if any(arm.name in by_arm for by_arm in curves.values())]
    looks = {
        arm: {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _DASHES[i // len(_COLOURS) % len(_DASHES)]}
        for i, arm in enumerate(arms)
    }
    longest = max(len(arm) for arm in arms)
    figure = Figure(
        figsize=(4.0 * len(curves) + min(4.5, 0.6 + 0.07 * longest), max(3.6, 0.3 * len(arms))), layout="constrained"
    )
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for panel, (name, by_arm) in zip(panels, curves.items(), strict=True):
        ends = _panel(panel, by_arm, looks)
        panel.set_xlabel("tokens seen in training")
        panel.xaxis.set_major_formatter(_token_ticks)
        panel.set_ylabel(_title(findings, name))
        if panel is panels[-1]:
            _label_ends(panel, ends, looks)
    figure.suptitle(findings.study.plan.question, x=0.01, ha="left", fontsize=10, wrap=True)
    return figure


def _title(findings: Findings, name: str) -> str:
    if name == findings.metric.name:
        return f"{findings.metric.title} ({name.partition('/')[0]})" if "/" in name else findings.metric.title
    return "training loss (nats per token)"


def _token_ticks(value: float, _: int) -> str:
    for scale, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= scale:
            return f"{value / scale:g}{unit}"
    return f"{value:g}"


def _panel(panel: Axes, by_arm: Mapping[str, list[Array]], looks: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Draws the arms and returns the height at which each line ends."""
    ends, lows, highs, last = {}, [], [], 0.0
    for arm, look in looks.items():
        if arm not in by_arm:
            continue
        tokens, mean, least, greatest = band(by_arm[arm])
        if not len(tokens):
            continue
        panel.plot(tokens, mean, linewidth=1.6, **look)
        panel.fill_between(tokens, least, greatest, color=look["color"], alpha=0.18, linewidth=0)
        ends[arm], last = float(mean[-1]), max(last, float(tokens[-1]))
        # The first fifth of training spans most of the range and holds none of the question.
        settled = tokens >= 0.2 * tokens[-1]
        lows.append(float(least.min()))
        highs.append(float(max(greatest[settled].max(), mean[-1])))
    if lows and max(highs) > min(lows):
        margin = 0.05 * (max(highs) - min(lows))
        panel.set_ylim(min(lows) - margin, max(highs) + margin)
        panel.set_xlim(0, last)
    return ends


def _label_ends(panel: Axes, ends: Mapping[str, float], looks: Mapping[str, Mapping[str, Any]]) -> None:
    """Names each line at its end, in its colour, names apart from each other and tied to their lines."""
    if not ends:
        return
    low, high = panel.get_ylim()
    order = sorted(ends, key=lambda arm: ends[arm])
    heights = spread([(ends[arm] - low) / (high - low) for arm in order], min(0.075, 1 / len(order)))
    for arm, height in zip(order, heights, strict=True):
        panel.annotate(
            arm,
            xy=(1.0, (ends[arm] - low) / (high - low)),
            xytext=(1.06, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            color=looks[arm]["color"],
            fontsize=8,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "linewidth": 0.8,
                "relpos": (0, 0.5),
                "shrinkA": 2,
                "shrinkB": 1,
                **looks[arm],
            },
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights in [0, 1], moved so that they are ``gap`` apart; their number times the gap is at most 1."""
    up = _pushed_up(heights, gap)
    down = [1 - height for height in reversed(_pushed_up([1 - height for height in reversed(heights)], gap))]
    # Both keep the gap, so their mean does, and it moves labels to either side.
    return [(one + two) / 2 for one, two in zip(up, down, strict=True)]


def _pushed_up(heights: Sequence[float], gap: float) -> list[float]:
    moved = list(heights)
    for index in range(1, len(moved)):
        moved[index] = max(moved[index], moved[index - 1] + gap)
    ceiling = 1.0
    for index in range(len(moved) - 1, -1, -1):
        moved[index] = min(moved[index], ceiling)
        ceiling = moved[index] - gap
    return moved


def _differences(findings: Findings, comparisons: Sequence[Comparison]) -> Figure:
    from matplotlib.figure import Figure

    names = [c.name if c.kind == "contrast" else f"{c.name} ({c.kind})" for c in comparisons]
    size = (4.5 + 0.07 * max(map(len, names)), 1.3 + 0.3 * len(comparisons))
    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    for row, comparison in enumerate(comparisons):
        _whisker(panel, findings, comparison, row)
    panel.set_yticks(range(len(comparisons)), names)
    panel.set_ylim(len(comparisons) - 0.5, -0.5)
    panel.grid(visible=False, axis="y")
    panel.axvline(findings.shown(0.0), color="#444444", linewidth=0.9, zorder=1)
    side = "left" if findings.metric.goal == "minimize" else "right"
    what = f"ratio of {findings.metric.title}" if findings.ratio else f"difference in {findings.metric.title}"
    panel.set_xlabel(f"{what} ({side} is better)")
    if findings.ratio:
        panel.set_xscale("log")
    _legend(panel, comparisons)
    return figure


def _whisker(panel: Axes, findings: Findings, comparison: Comparison, row: int) -> None:
    found = comparison.estimate
    if found is None or found.interval is None:
        return
    colour = _VERDICTS.get(comparison.verdict or "", "#777777")
    ends = [findings.shown(end) for end in found.interval]
    panel.plot(ends, [row, row], color=colour, linewidth=2, solid_capstyle="butt")
    filled = colour if comparison.verdict in _VERDICTS else "white"
    panel.plot([findings.shown(found.difference)], [row], "o", color=colour, markerfacecolor=filled, markersize=6)


def _legend(panel: Axes, comparisons: Sequence[Comparison]) -> None:
    from matplotlib.lines import Line2D

    present = dict.fromkeys(c.verdict or "no verdict" for c in comparisons)
    handles = [
        Line2D([], [], color=_VERDICTS[v], marker="o", linewidth=2, label=v)
        if v in _VERDICTS
        else Line2D([], [], color="#777777", marker="o", markerfacecolor="white", linewidth=2, label=v)
        for v in present
    ]
    panel.figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=8)


def _save(figure: Figure, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.savefig(path.with_suffix(".png"), dpi=150, metadata={"Software": None})
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
