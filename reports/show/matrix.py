"""The accuracies of a product of two factors, drawn as a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.judge.matrix import Accuracy, Matrix
from reports.show.style import INK, PAPER, SERIES, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DARKEST = 0.55
"""The opacity of a cell of accuracy 1, on which text is still read."""
MEANS_APART = 0.25
"""The gap between the last column and the means, and the last row and chance, in sizes of a cell."""


def accuracies(matrix: Matrix) -> Figure:
    """Draws a cell for each pair of levels, the darker the more accurate, the means of rows apart on the right, and
    chance, where it is known, apart below.

    A cell holds its accuracy and half of its interval, in percent; it is empty where no run has finished.
    """
    from matplotlib.figure import Figure

    places = {label(task, 24): float(column) for column, task in enumerate(matrix.tasks)}
    if matrix.means:
        places["mean"] = len(matrix.tasks) + MEANS_APART
    lines = {label(level, 32): float(row) for row, level in enumerate(matrix.levels)}
    if matrix.chance:
        lines["chance"] = len(matrix.levels) + MEANS_APART
    figure = Figure(figsize=(9.0, 1.3 + 0.32 * len(lines)), layout="constrained")
    panel = figure.subplots()
    for row, level in enumerate(matrix.levels):
        for column, task in enumerate(matrix.tasks):
            _draw_cell(panel, row, column, matrix.cells.get((level, task)))
        if matrix.means:
            _draw_cell(panel, row, places["mean"], matrix.means.get(level), "bold")
    for column, task in enumerate(matrix.tasks):
        if task in matrix.chance:
            _draw_cell(panel, lines["chance"], column, Accuracy(matrix.chance[task], None))
    panel.set_xlim(-0.5, max(places.values()) + 0.5)
    panel.set_ylim(max(lines.values()) + 0.5, -0.5)
    panel.set_xticks([*places.values()], [*places], rotation=30, ha="left", rotation_mode="anchor")
    panel.set_yticks([*lines.values()], [*lines])
    panel.set_xlabel(label(matrix.columns))
    panel.set_ylabel(label(matrix.rows))
    panel.xaxis.tick_top()
    panel.xaxis.set_label_position("top")
    panel.tick_params(length=0, labelcolor=INK)
    panel.spines[:].set_visible(False)
    panel.grid(visible=False)
    return figure


def _draw_cell(panel: Axes, row: float, column: float, accuracy: Accuracy | None, weight: str = "normal") -> None:
    from matplotlib.patches import Rectangle

    if accuracy is None:
        return
    opacity = DARKEST * min(1.0, max(0.0, accuracy.mean))
    panel.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=SERIES[0], alpha=opacity, linewidth=0))
    panel.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=PAPER, linewidth=1.5))
    text = f"{100 * accuracy.mean:.1f}"
    if accuracy.interval is not None:
        text += f" ± {50 * (accuracy.interval.high - accuracy.interval.low):.1f}"
    panel.text(column, row, text, ha="center", va="center", fontsize=7.5, fontweight=weight, color=INK)
