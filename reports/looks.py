"""How figures look: colours, dashes, ink, and labels that stand apart. An arm looks the same in every figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports.markup import printable
from reports.plans import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, PAPER = "#1b1c1e", "#595d63", "#fdfdfc"
VERDICTS = {"better": "#0b6e4a", "worse": "#a63a12", "differs": "#1a5a9e"}
SERIES = ("#0068a8", "#b04600", "#007a58", "#a8478a", "#8f6400", "#4a5bb5", "#3a3d42")
"""Told apart by people who see no red or no green, and dark enough for lines on white."""

VARIABLES: Mapping[str, str] = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    PAPER: "var(--plate)",
    **{colour: f"var(--{verdict})" for verdict, colour in VERDICTS.items()},
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)},
}
"""The names of these colours in the page's style sheet, which has two of each: for light and for dark."""

STYLE: Any = {
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": MUTED,
    "grid.alpha": 0.2,
    "grid.linewidth": 0.6,
    "text.parse_math": False,
    "svg.hashsalt": "lit-transformers",
}

Look = Mapping[str, Any]

_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))


def looks(plan: Plan) -> dict[str, Look]:
    """Colour and dashes of every arm."""
    return {
        arm.name: {"color": SERIES[i % len(SERIES)], "linestyle": _DASHES[i // len(SERIES) % len(_DASHES)]}
        for i, arm in enumerate(plan.arms)
    }


def label(name: str, longest: int = 44) -> str:
    """A name as a figure has room for it, on one line."""
    text = " ".join(printable(name).split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def ticks(value: float, _: float | None = None) -> str:
    """A number of an axis that spans thousands."""
    for scale, unit in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= scale:
            return f"{value / scale:g}{unit}"
    return f"{value:g}"


def label_ends(panel: Axes, ends: Mapping[str, float], styles: Mapping[str, Look]) -> None:
    """Names each line at its end, in its colour, names apart from each other and tied to their lines.

    ends: where each ends, as a share of the panel's height.
    """
    order = sorted(ends, key=lambda name: ends[name])
    heights = spread([ends[name] for name in order], min(0.075, 1 / max(1, len(order))))
    for name, height in zip(order, heights, strict=True):
        panel.annotate(
            label(name),
            xy=(1.0, ends[name]),
            xytext=(1.06, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            color=styles[name]["color"],
            fontsize=8,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "linewidth": 0.8,
                "relpos": (0, 0.5),
                "shrinkA": 2,
                "shrinkB": 1,
                **styles[name],
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
