"""The figures of a report: as PNG and SVG files, and as inline SVG that takes its colours from the style of a page.

The same records give the same bytes: no date, no version and no random identifier is written.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reports.judge.comparisons import Comparison
from reports.judge.effects import RelativeEffect
from reports.judge.findings import Findings
from reports.show.charts import (
    Point,
    cost_against_length,
    cost_against_quality,
    cost_points,
    costs_by_length,
    differences,
    state_against_accuracy,
    state_points,
)
from reports.show.curves import (
    MOST_BANDS,
    battery_curves,
    learning_curves,
    load_auxiliary,
    load_curves,
    load_further,
)
from reports.show.distances import bits_against_distance, recovered_bits
from reports.show.effects import draw_effects
from reports.show.markup import Html
from reports.show.matrix import accuracies
from reports.show.sections import excludes_zero
from reports.show.seeds import SEEDS_CAPTION, draw_seeds
from reports.show.style import STYLE, VARIABLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMATS = ("png", "svg")
MOST_DRAWN = 100
"""The most comparisons, or arms, that a figure shows."""
EFFECTS, EFFECTS_TITLE = "effects", "Effects and published effects"
EFFECTS_CAPTION = """\
Every comparison that has a published number: ours with its 95 % interval, and the published one. Both are the change \
of the metric in per cent of the value of the arm compared with, which is the baseline where none is named; right is \
better. Perplexities enter by their logarithms, which change as bits do. The scale is linear up to one per cent and \
logarithmic beyond."""
RANKED = "the best is on top, the dashed line is the baseline, and full points are beaten by none in quality and cost."
NO_METADATA: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
"""The metadata that are omitted in the files of each format."""


class Drawing(NamedTuple):
    """A figure with the name of its file (without extension), its title and its caption."""

    name: str
    title: str
    caption: str
    figure: Figure


def draw_figures(findings: Findings, directory: Path, formats: Sequence[str] = FORMATS) -> dict[str, str]:
    """Writes the figures for which there are data, in each format, and returns their captions by name of the file
    without extension."""
    return _write(_make_drawings(findings), directory, formats)


def captions_of(findings: Findings) -> dict[str, str]:
    """Returns the captions of the figures that ``draw_figures`` writes, by name of the file without extension."""
    return {drawing.name: drawing.caption for drawing in drawings(findings)}


def draw_gallery_figures(effects: Sequence[RelativeEffect], directory: Path, formats: Sequence[str]) -> dict[str, str]:
    """Writes the figure of the effects of all studies, if there are any; else as ``draw_figures``."""
    return _write(_make_gallery_drawings(effects), directory, formats)


def _write(drawings_to_write: Iterator[Drawing], directory: Path, formats: Sequence[str]) -> dict[str, str]:
    captions = {}
    with _style(as_text=False):
        for drawing in drawings_to_write:
            for file_format in formats:
                _save(drawing.figure, directory / f"{drawing.name}.{file_format}")
            captions[drawing.name] = drawing.caption
    return captions


def figures(findings: Findings) -> dict[str, Figure]:
    """Returns the figures for which there are data, as their files show them, by name of the file without extension."""
    with _style(as_text=False):
        return {drawing.name: drawing.figure for drawing in _make_drawings(findings)}


def drawings(findings: Findings) -> list[Drawing]:
    """Returns the figures for which there are data, styled for a page."""
    with _style(as_text=True):
        return list(_make_drawings(findings))


def _make_gallery_drawings(effects: Sequence[RelativeEffect]) -> Iterator[Drawing]:
    if effects:
        yield Drawing(EFFECTS, EFFECTS_TITLE, EFFECTS_CAPTION, draw_effects(effects))


def _make_drawings(findings: Findings) -> Iterator[Drawing]:
    study = findings.study
    if matrix := findings.matrix:
        caption = f"Accuracies in percent by {matrix.rows} and {matrix.columns}, with half of their 95 % intervals."
        yield Drawing("accuracies", "Accuracies", caption, accuracies(matrix))
        if states := state_points(matrix):
            caption = (
                f"Mean accuracy over {matrix.columns} with 95 % intervals, and the numbers that all mixers hold of a "
                f"row in decoding; {RANKED}"
            )
            yield Drawing(
                "state_accuracy", "State against accuracy", caption, state_against_accuracy(findings, matrix, states)
            )
    if curves := load_curves(study):
        caption = (
            f"Learning curves: mean over seeds, of up to {MOST_BANDS} arms with a band from the least to the greatest."
        )
        battery = findings.battery
        figure = battery_curves(findings, battery, curves) if battery else learning_curves(findings, curves)
        yield Drawing("learning_curves", "Learning curves", caption, figure)
    if further := load_further(study):
        caption = "Curves of metrics that are shown and judge nothing."
        yield Drawing("further_curves", "Curves of further metrics", caption, learning_curves(findings, further))
    if recovered := recovered_bits(study):
        caption = (
            "Bits recovered against distance: the knowledge of an arm whose context is cut to this length, at a sample "
            "of positions. Dotted lines count the symbols at the lags alone; other symbols of the context may add a "
            "little."
        )
        yield Drawing("distances", "Bits recovered against distance", caption, bits_against_distance(study, recovered))
    if comparisons := [c for c in findings.shown if c.estimate and c.estimate.interval]:
        kind = "Differences" if study.plan.unpaired else "Paired differences"
        caption = f"{kind} with their 95 % intervals."
        caption += " The band is the margin within which two are called equal." if findings.margin else ""
        if any(one.verdict == "unresolved" and excludes_zero(one) for one in comparisons):
            caption += " Verdicts allow for all comparisons, so an interval without zero may be unresolved."
        drawn = _largest(comparisons)
        if len(drawn) < len(comparisons):
            caption += f" The {len(drawn)} largest of {len(comparisons)} are drawn."
        yield Drawing("differences", kind, caption, differences(findings, drawn))
    if study.plan.seeds > 1 and len(study.arm_names) <= MOST_DRAWN and any(run.missing is None for run in study.runs):
        yield Drawing("seeds", "The value of each seed", SEEDS_CAPTION, draw_seeds(findings))
    if points := _drawn(cost_points(findings), findings):
        caption = f"Quality, with one standard deviation over seeds, with cost; {RANKED}"
        if battery := findings.battery:
            caption = f"Mean accuracy over {battery.columns} with 95 % intervals, with mean cost; {RANKED}"
        yield Drawing("cost_quality", "Cost against quality", caption, cost_against_quality(findings, points))
    if costs := costs_by_length(findings):
        caption = "Cost against length: FLOPs of the forward pass for a token, were rows so long."
        yield Drawing("cost_length", "Cost against length", caption, cost_against_length(findings, costs))
    if losses := load_auxiliary(study):
        caption = "Losses that are added to the objective, and to no reported number."
        yield Drawing("auxiliary_losses", "Auxiliary losses", caption, learning_curves(findings, losses))


def _largest(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns the comparisons that are drawn, in their order: of many those of the largest differences."""
    sizes = sorted((-abs(one.estimate.difference), n) for n, one in enumerate(comparisons) if one.estimate)
    return [comparisons[n] for n in sorted(n for _, n in sizes[:MOST_DRAWN])]


def _drawn(points_by_cost: dict[str, list[Point]], findings: Findings) -> dict[str, list[Point]]:
    """Returns the points that are drawn: of many, the baseline and those of the best values."""
    baseline, sign = findings.study.plan.baseline, 1 if findings.study.plan.goal == "minimize" else -1
    return {
        cost: points
        if len(points) <= MOST_DRAWN
        else sorted(points, key=lambda point: (point.arm != baseline, sign * point.value))[:MOST_DRAWN]
        for cost, points in points_by_cost.items()
    }


@contextmanager
def _style(as_text: bool) -> Iterator[None]:
    """Sets the style of figures for a context.

    as_text: SVG holds text, which the page shows in its own fonts, rather than outlines of letters.
    """
    import matplotlib

    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none" if as_text else "path"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in a script that the font lacks
        yield


def _save(figure: Figure, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150, metadata=NO_METADATA[path.suffix[1:]])


def inline_svg(drawing: Drawing) -> Html:
    """Returns a figure as an SVG element with the colours of the page; its ids begin with the figure's name."""
    file = io.StringIO()
    no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with _style(as_text=True):
        drawing.figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    # The style sheet within the SVG would apply to the whole page, which has its own rules.
    text = re.sub(r"<defs>\s*<style.*?</defs>", "", file.getvalue(), flags=re.DOTALL)
    return Html(re.sub(r"<[^>]+>", lambda tag: _adapt_tag(tag[0], drawing.name), text[text.index("<svg") :].strip()))


def _adapt_tag(tag: str, name: str) -> str:
    """Returns one tag of an SVG figure with ids, fonts, colours and size adapted to the page."""
    tag = re.sub(r'(?<=\bid=")|(?<=href="#)|(?<=url\(#)', f"{name}-", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    tag = re.sub(r"#[0-9a-f]{6}(?=[;\"])", lambda colour: VARIABLES.get(colour[0], colour[0]), tag)
    if tag.startswith("<svg"):
        tag = re.sub(r' (width|height|version|xmlns(:\w+)?)="[^"]*"', "", tag)[:-1] + ' aria-hidden="true">'
    return tag
