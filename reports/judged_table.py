"""Judges any table of results: CSV, JSON lines, parquet, or a DataFrame, whoever trained the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_transformers.records.measure import Goal
from reports.judge.findings import Findings
from reports.read.study import ReportError
from reports.read.table_columns import ColumnRoles
from reports.read.table_rows import TableRow, read_rows
from reports.read.table_study import TableQuestion, study_of
from reports.read.trackers.readers import is_tracked
from reports.read.trackers.selection import Pick, TrackerQuestion
from reports.read.trackers.tracked_rows import tracked_table
from reports.report import find

__all__ = ["judge_table"]


def judge_table(
    table: str | Path | Sequence[Mapping[str, Any]] | Any,
    metric: str,
    *,
    goal: Goal | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    target: float | None = None,
    ratio: bool = False,
    looks: Sequence[int] = (),
    arm: str | Sequence[str] = (),
    seed: str | None = None,
    example: str | None = None,
    cluster: str | None = None,
    step: str | None = None,
    status: str | None = None,
    cost: str | None = None,
    tracker: str | None = None,
    where: Mapping[str, str] | None = None,
    pick: Pick = "last",
    values: str | None = None,
) -> Findings:
    """Returns the findings of a table: its comparisons with intervals and verdicts, and notes on every guess.

    table: a path (``-`` for standard input), a list of rows, a pandas DataFrame, or the address of a tracker's runs: a
    folder, a database, or ``wandb:entity/project``. ``tracker``, ``where``, ``pick`` and ``values`` choose among its
    runs and values as in ``TrackerQuestion``; ``arm`` and ``seed`` are then keys of configs. metric: the column of
    values, or the name of what the cells of a wide table hold. The other columns are guessed by their names where they
    are not given. ``arm`` may name several columns, which are factors. A value that is infinite or NaN is that of a
    run that diverged; a run without a value has not finished. NaN in a DataFrame is no value. Other arguments: as in
    ``TableQuestion``.

    Raises ReportError, in one line, for a table that cannot be judged.
    """
    columns = ColumnRoles(
        metric, (arm,) if isinstance(arm, str) else tuple(arm), seed, example, cluster, step, status, cost
    )
    of_tracker = TrackerQuestion(tracker, where or {}, pick, values)
    if isinstance(table, str | Path) and (tracker is not None or is_tracked(str(table))):
        rows, columns, goal = tracked_table(str(table), columns, of_tracker, goal)
    elif of_tracker != TrackerQuestion():
        raise ReportError("--where, --pick and --values are for runs of a tracker; a table has columns")
    else:
        rows = _rows(table)
    question = TableQuestion(columns, goal, baseline, margin, target, ratio, tuple(looks))
    return find(study_of(rows, question))


def _rows(table: Any) -> list[TableRow]:
    if isinstance(table, str | Path):
        return read_rows(table)
    if isinstance(table, Sequence):
        return [TableRow(f"row {number}", dict(entry)) for number, entry in enumerate(table, 1)]
    return [TableRow(f"row {number}", _without_nan(entry)) for number, entry in enumerate(table.to_dict("records"), 1)]


def _without_nan(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {str(column): None if cell != cell else cell for column, cell in entry.items()}
