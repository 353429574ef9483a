"""Bits recovered against distance: how much each arm knows of its data, by how far back it may look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reports.read.study import Study
from reports.show.style import MUTED, label, label_ends, line_styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["bits_against_distance", "recovered_bits"]

Line = tuple[tuple[int, float], ...]
"""Pairs of the length of the context in symbols, ascending, and of the bits per symbol that it is worth to an arm."""


def recovered_bits(study: Study) -> dict[str, Line]:
    """Returns the line of each arm: the loss of a model that knows no context, less the arm's loss with contexts of a
    length.

    Empty where no optimum of the data is known, or the arms were not measured with their contexts cut.
    """
    if not study.plan.references or study.context is None:
        return {}
    blind = study.plan.references[0].value
    return {arm.arm: tuple((loss.length, blind - loss.bits) for loss in arm.losses) for arm in study.context.arms}


def bits_against_distance(study: Study, lines: Mapping[str, Line]) -> Figure:
    """Draws a line for each arm on a logarithmic axis of symbols, and a dotted one for all that each lag is worth."""
    from matplotlib.figure import Figure

    styles = line_styles(study.arm_names)
    figure = Figure(figsize=(9.0, max(3.6, 0.3 * len(lines))), layout="constrained")
    panel = figure.subplots()
    panel.set_xscale("log", base=2)
    panel.xaxis.set_minor_formatter(lambda value, _: "")
    for arm, line in lines.items():
        panel.plot(*zip(*line, strict=True), marker="o", markersize=3.5, linewidth=1.6, **styles[arm])
    blind, *known = study.plan.references
    for reference in known:
        worth = blind.value - reference.value
        panel.axhline(worth, color=MUTED, linewidth=1, linestyle=(0, (1, 2)))
        panel.annotate(
            label(reference.name),
            xy=(0.01, worth),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=8,
            color=MUTED,
        )
    best = blind.value - known[-1].value
    panel.set_ylim(-0.12 * best, 1.1 * best)
    lengths = sorted({length for line in lines.values() for length, _ in line})
    panel.set_xticks(lengths, [f"{length:,}" for length in lengths])
    panel.set_xlabel("symbols of context")
    panel.set_ylabel("bits recovered per symbol")
    low, high = panel.get_ylim()
    ends = {arm: min(max((line[-1][1] - low) / (high - low), 0), 1) for arm, line in lines.items()}
    label_ends(panel, ends, styles, study.plan.labels)
    return figure
