"""The style of figures: colours, dashes and labels that do not overlap. An arm looks the same in every figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lit_transformers.records.labels import ArmLabels
from reports.show.markup import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, PAPER = "#1b1c1e", "#595d63", "#fdfdfc"
VERDICTS = {"better": "#0b6e4a", "worse": "#a63a12", "equal": "#5b3a9a", "differs": "#1a5a9e"}
SERIES = ("#0068a8", "#b04600", "#007a58", "#a8478a", "#8f6400", "#4a5bb5", "#3a3d42")
"""Colours of arms that people who see no red or no green can distinguish, and dark enough for lines on white."""

VARIABLES: Mapping[str, str] = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    PAPER: "var(--plate)",
    **{colour: f"var(--{verdict})" for verdict, colour in VERDICTS.items()},
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)},
}
"""The names of these colours in the page's style sheet, which defines each for light and for dark mode."""

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

LineStyle = Mapping[str, Any]

_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))


def line_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """Returns the colour and the dashes of every one of these, such as the names of all arms of a plan."""
    return {
        name: {"color": SERIES[i % len(SERIES)], "linestyle": _DASHES[i // len(SERIES) % len(_DASHES)]}
        for i, name in enumerate(names)
    }


def label(name: str, longest: int = 44) -> str:
    """Returns a name on one line, cut to ``longest`` characters, for use in a figure."""
    text = " ".join(printable(name).split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def ticks(value: float, _: float | None = None) -> str:
    """Returns the label of an axis tick, with a suffix such as k or M from a thousand on."""
    for scale, unit in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= scale:
            return f"{value / scale:g}{unit}"
    return f"{value:g}"


def label_ends(
    panel: Axes, ends: Mapping[str, float], styles: Mapping[str, LineStyle], labels: ArmLabels | None = None
) -> None:
    """Labels each line at its end in its colour, without overlaps, and joins each label to its line.

    ends: the height at which each line ends, as a share of the panel's height. labels: how lines that are arms are
    named.
    """
    labels = labels or ArmLabels()
    order = sorted(ends, key=lambda name: ends[name])
    heights = spread([ends[name] for name in order], min(0.075, 1 / max(1, len(order))))
    for name, height in zip(order, heights, strict=True):
        panel.annotate(
            label(labels.alone(name)),
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
    """Moves ascending heights in [0, 1] so that neighbours are at least ``gap`` apart.

    The number of heights times the gap must be at most 1.
    """
    up = _pushed_up(heights, gap)
    down = [1 - height for height in reversed(_pushed_up([1 - height for height in reversed(heights)], gap))]
    # Both keep the gap, so their mean does too, and it moves labels to either side.
    return [(raised + lowered) / 2 for raised, lowered in zip(up, down, strict=True)]


def _pushed_up(heights: Sequence[float], gap: float) -> list[float]:
    moved = list(heights)
    for index in range(1, len(moved)):
        moved[index] = max(moved[index], moved[index - 1] + gap)
    ceiling = 1.0
    for index in range(len(moved) - 1, -1, -1):
        moved[index] = min(moved[index], ceiling)
        ceiling = moved[index] - gap
    return moved
