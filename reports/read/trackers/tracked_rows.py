"""The rows of a table from the runs of a tracker: a row for each value of a run, next to its arm and seed."""

from __future__ import annotations

import math
from typing import NamedTuple

from lit_transformers.records.measure import Goal
from reports.read.study import ReportError
from reports.read.table_columns import ColumnRoles, goal_of
from reports.read.table_rows import Cell, TableRow
from reports.read.trackers.selection import Pick, TrackerQuestion, select_runs
from reports.read.trackers.tracked_run import FINISHED, TrackedRun

__all__ = ["TrackedTable", "picked", "tracked_table"]

_SEED, _STEP, _STATUS, _SECONDS = "seed", "step", "status", "seconds"
_POINTS = 200
"""The most points of a curve that are kept of a run, next to the last one."""


class TrackedTable(NamedTuple):
    """The rows of a store of runs, the roles of their columns, and the better direction of the metric where it is
    known."""

    rows: list[TableRow]
    columns: ColumnRoles
    goal: Goal | None


def tracked_table(source: str, columns: ColumnRoles, question: TrackerQuestion, goal: Goal | None) -> TrackedTable:
    """Returns the runs of a store as a table, whose columns state every guess.

    source: a folder, a file, a database or a project. columns: the metric and, where given, the config keys of arms and
    seeds. goal: the better direction of the metric, by default as the tracker knows it.

    Raises ReportError, in one line, where there are no runs, or none logged the metric, or runs cannot be
    distinguished.
    """
    _require_own_columns(columns)
    metric = columns.metric
    selection = select_runs(source, metric, question, columns.arm, columns.seed)
    goal = goal or selection.goal
    has_seconds = any(one.run.seconds for one in selection.runs)
    names = tuple(f"config.{key}" if key in (metric, _SEED, _STEP, _STATUS, _SECONDS) else key for key in selection.arm)
    rows = [
        TableRow(
            f"run {one.run.name}",
            {
                **dict(zip(names, one.levels, strict=True)),
                _SEED: one.seed,
                _STATUS: one.run.status or FINISHED,
                **({_SECONDS: one.run.seconds} if has_seconds else {}),
                **cells,
            },
        )
        for one in selection.runs
        for cells in _values(one.run, metric, question, goal)
    ]
    notes = [*selection.notes, *(["value: the best of each run over its steps"] if question.pick == "best" else [])]
    cost = _SECONDS if has_seconds else None
    roles = ColumnRoles(metric, names, _SEED, step=_STEP, status=_STATUS, cost=cost, guesses=tuple(notes))
    return TrackedTable(rows, roles, goal)


def _require_own_columns(columns: ColumnRoles) -> None:
    for option in ("example", "cluster", "step", "status", "cost"):
        if getattr(columns, option) is not None:
            raise ReportError(f"--{option}: is for tables; a tracker keeps it itself, so leave the option out")


def _values(run: TrackedRun, metric: str, question: TrackerQuestion, goal: Goal | None) -> list[dict[str, Cell]]:
    """Returns the cells of a run that change with its steps: those of a curve, or one that says there is no value."""
    if run.has_diverged:
        return [{_STEP: max(step for step, _ in run.points), metric: math.nan}]
    if not run.points:
        return [{_STEP: None, metric: None}]
    points = [picked(run, metric, "best", goal)] if question.pick == "best" else sorted(dict(run.points).items())
    every = 1 if question.curves else max(1, len(points) // _POINTS)
    return [{_STEP: step, metric: value} for step, value in (*points[:-1:every], points[-1])]


def picked(run: TrackedRun, metric: str, pick: Pick, goal: Goal | None) -> tuple[float, float]:
    """Returns the step and the value by which a run is judged. Raises ReportError where the best one is not known."""
    points = sorted(dict(run.points).items())
    if pick == "last":
        return points[-1]
    goal = goal or goal_of(metric)
    if goal is None:
        raise ReportError(f"--pick best: whether less or more of {metric} is better is not known; add --minimize")
    return (min if goal == "minimize" else max)(points, key=lambda point: point[1])
