"""The value of each seed: a table of all of them by arm, and a figure with a dot for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reports.judge.findings import Findings
from reports.read.study import Run
from reports.show.style import INK, MUTED, SERIES, label
from reports.show.tables import Cell, Column, Table, fixed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SEEDS_CAPTION", "draw_seeds", "seed_table"]

SEEDS_CAPTION = "The value of each seed: a dot each, from the first seed above to the last below. The line is the mean."

MOST = 64
"""The most seeds of an arm whose values a table has; results.jsonl has all."""
_HEIGHT = 0.18
"""How far up and down the dots of an arm are spread, as a share of its row."""


def seed_table(findings: Findings) -> Table:
    """Returns a table of the value of each seed of each arm, or of why it has none; empty where arms have one seed
    each, and of a large study, whose page has them next to its arms."""
    study = findings.study
    columns = (Column(study.plan.labels.heading("Arm")), Column("Seed: value"))
    rows = []
    for arm in study.arm_names if study.plan.seeds > 1 and not study.is_large else ():
        runs = study.of(arm)
        values = ", ".join(f"{run.seed}: {_value(findings, run)}" for run in runs[:MOST])
        more = f", and {len(runs) - MOST} more in results.jsonl" if len(runs) > MOST else ""
        rows.append((Cell(arm, label=study.plan.labels.in_column(arm)), Cell(f"{values}{more}")))
    return Table("seed_values", "The value of each seed", columns, tuple(rows), (), findings.metric.title)


def _value(findings: Findings, run: Run) -> str:
    if run.missing is None:
        return fixed(run.value, findings.decimals)
    return "diverged" if run.diverged else "missing"


def draw_seeds(findings: Findings) -> Figure:
    """Draws a dot for the value of each seed of each arm, its mean as a line, and how many have no value."""
    from matplotlib.figure import Figure

    study = findings.study
    figure = Figure(figsize=(9.0, 1.2 + 0.34 * len(study.arm_names)), layout="constrained")
    panel = figure.subplots()
    for row, arm in enumerate(study.arm_names):
        values = [run.value for run in study.finished(arm)]
        if values:
            spread = [
                _HEIGHT * (2 * place / (len(values) - 1) - 1) if len(values) > 1 else 0.0
                for place in range(len(values))
            ]
            panel.plot(values, [row + height for height in spread], "o", color=SERIES[0], markersize=4, alpha=0.7)
            mean = sum(values) / len(values)
            panel.plot([mean, mean], [row - 2 * _HEIGHT, row + 2 * _HEIGHT], color=INK, linewidth=1.5)
        if without := [run for run in study.of(arm) if run.missing is not None]:
            diverged = sum(run.diverged for run in without)
            parts = [
                f"{number} {what}"
                for number, what in ((diverged, "diverged"), (len(without) - diverged, "missing"))
                if number
            ]
            panel.annotate(
                ", ".join(parts), (1.0, row), xycoords=("axes fraction", "data"), ha="right", va="center", color=MUTED,
                fontsize=8,
            )  # fmt: skip
    panel.set_yticks(
        range(len(study.arm_names)), [label(study.plan.labels.in_column(arm), 48) for arm in study.arm_names]
    )
    panel.tick_params(axis="y", labelcolor=INK)
    panel.set_ylim(len(study.arm_names) - 0.5, -0.5)
    panel.grid(visible=False, axis="y")
    side = "left" if findings.metric.goal == "minimize" else "right"
    panel.set_xlabel(f"{label(findings.metric.title)} ({side} is better)")
    return figure
