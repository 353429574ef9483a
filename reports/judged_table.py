"""Judges any table of results: CSV, JSON lines, parquet, or a DataFrame, whoever trained the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_transformers.records.measure import Goal
from reports.judge.findings import Findings
from reports.read.table_columns import ColumnRoles
from reports.read.table_rows import TableRow, read_rows
from reports.read.table_study import TableQuestion, study_of
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
) -> Findings:
    """Returns the findings of a table: its comparisons with intervals and verdicts, and notes on every guess.

    table: a path (``-`` for standard input), a list of rows, or a pandas DataFrame. metric: the column of values, or
    the name of what the cells of a wide table hold. The other columns are guessed by their names where they are not
    given. ``arm`` may name several columns, which are factors. A value that is infinite or NaN is that of a run that
    diverged; a run without a value has not finished. NaN in a DataFrame is no value. Other arguments: as in
    ``TableQuestion``.

    Raises ReportError, in one line, for a table that cannot be judged.
    """
    columns = ColumnRoles(
        metric, (arm,) if isinstance(arm, str) else tuple(arm), seed, example, cluster, step, status, cost
    )
    question = TableQuestion(columns, goal, baseline, margin, target, ratio, tuple(looks))
    return find(study_of(_rows(table), question))


def _rows(table: Any) -> list[TableRow]:
    if isinstance(table, str | Path):
        return read_rows(table)
    if isinstance(table, Sequence):
        return [TableRow(f"row {number}", dict(entry)) for number, entry in enumerate(table, 1)]
    return [TableRow(f"row {number}", _without_nan(entry)) for number, entry in enumerate(table.to_dict("records"), 1)]


def _without_nan(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {str(column): None if cell != cell else cell for column, cell in entry.items()}
