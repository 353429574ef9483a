"""The effects of all published studies and of their sources, drawn on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reports.judge.effects import RelativeEffect
from reports.show.charts import marker_style
from reports.show.style import INK, MUTED, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PUBLISHED: dict[str, Any] = {"marker": "|", "markersize": 9, "markeredgewidth": 2.2, "color": INK, "linestyle": "none"}
_LINEAR = 1.0
"""The change in per cent up to which the scale is linear; beyond it is logarithmic."""
_TICKS = (1, 10, 100, 1000, 10_000)
_ROW, _LONGEST = 0.175, 52
"""The height of a row in inches, and the longest name in characters."""
_PANELS = (
    (True, "the metric of the source, up to the unit"),
    (False, "another metric than the source's: signs can be compared, sizes cannot"),
)


def draw_effects(effects: Sequence[RelativeEffect]) -> Figure:
    """Draws a row for each comparison, under the name of its study: ours with its interval in the colour of its
    verdict, and a mark at the published one. Comparisons by another metric than the source's have a separate panel.
    """
    from matplotlib.figure import Figure

    groups = [(title, [one for one in effects if one.same_metric == same]) for same, title in _PANELS]
    rows = [(title, _rows(group)) for title, group in groups if group]
    heights = [len(group) + 1.0 for _, group in rows]
    figure = Figure(figsize=(9.0, 1.4 + _ROW * sum(heights)), layout="constrained")
    panels = list(figure.subplots(len(rows), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0])
    for panel, (title, group) in zip(panels, rows, strict=True):
        panel.set_title(f"Measured by {title}", loc="left", fontsize=9, color=INK)
        _draw_panel(panel, group)
    _set_scale(panels, effects)
    _draw_legend(figure, effects)
    return figure


def _rows(effects: Sequence[RelativeEffect]) -> list[str | RelativeEffect]:
    """Returns the effects, those of a study below its name."""
    rows: list[str | RelativeEffect] = []
    for study in dict.fromkeys(effect.study for effect in effects):
        rows += [study, *(effect for effect in effects if effect.study == study)]
    return rows


def _draw_panel(panel: Axes, rows: Sequence[str | RelativeEffect]) -> None:
    names = []
    for place, row in enumerate(rows):
        if isinstance(row, str):
            names.append(label(row, _LONGEST))
            continue
        style = marker_style(_verdict(row))
        if row.interval is not None:
            panel.plot([*row.interval], [place, place], color=style["color"], linewidth=2, solid_capstyle="butt")
        panel.plot([row.ours], [place], **style | {"markersize": 4.5})
        if row.published is not None:
            panel.plot([row.published], [place], **_PUBLISHED)
        names.append(label(row.judged.comparison.name.removesuffix(" against the baseline"), _LONGEST))
    panel.set_yticks(range(len(rows)), names)
    for name, row in zip(panel.get_yticklabels(), rows, strict=True):
        name.set_fontsize(8)
        name.set_fontweight("bold" if isinstance(row, str) else "normal")
        name.set_color(INK)
    panel.tick_params(axis="y", length=0)
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.grid(visible=False, axis="y")
    panel.axvline(0.0, color=MUTED, linewidth=0.9, zorder=1)


def _verdict(effect: RelativeEffect) -> str | None:
    """Returns the verdict on a comparison; None without one, and where the study was not able to answer."""
    return None if effect.judged.agreement == "not judged" else effect.judged.comparison.verdict


def _set_scale(panels: Sequence[Axes], effects: Sequence[RelativeEffect]) -> None:
    """Sets the common scale, linear near zero and logarithmic beyond, with ticks as far as there are effects."""
    largest = max(abs(value) for one in effects for value in (one.ours, one.published or 0.0, *(one.interval or ())))
    panels[0].set_xscale("symlog", linthresh=_LINEAR, linscale=0.7)
    ticks = [tick for tick in _TICKS if tick <= largest] or [1]
    places = [*(-tick for tick in reversed(ticks)), 0, *ticks]
    for panel in panels:
        panel.set_xticks(places, [f"{place:+,}" if place else "0" for place in places])
        panel.minorticks_off()
        panel.tick_params(axis="x", labelbottom=True)
    panels[0].set_xlim(-1.3 * max(largest, 1.0), 1.3 * max(largest, 1.0))
    panels[-1].set_xlabel("change in per cent of the value of the arm compared with (right is better)")


def _draw_legend(figure: Figure, effects: Sequence[RelativeEffect]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linewidth=2, label=verdict or "not judged", **marker_style(verdict))
        for verdict in dict.fromkeys(map(_verdict, effects))
    ]
    handles.append(Line2D([], [], label="published", **_PUBLISHED))
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=8)
