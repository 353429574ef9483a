"""Shares of tables that hold counts: of examples that are correct, and of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lit_transformers.config import nearest
from reports.read.study import ReportError
from reports.read.table_rows import TableRow, number

if TYPE_CHECKING:
    from reports.read.table_columns import ColumnRoles

__all__ = ["with_shares"]


def with_shares(rows: Sequence[TableRow], columns: ColumnRoles) -> list[TableRow]:
    """Returns the rows with the share of correct examples as the metric.

    Raises ReportError where a column is missing, where there is a share already, and for counts that are none.
    """
    correct, total = columns.correct, columns.total
    if correct is None or total is None:
        raise ReportError("--correct and --total go together; name the column of each count")
    names = list(dict.fromkeys(column for row in rows for column in row.cells))
    for column in (correct, total):
        if column not in names:
            raise ReportError(f"the table has no column {column!r}; {nearest(column, names)}")
    if columns.metric in names:
        raise ReportError(f"the table has a column {columns.metric!r}; with counts, give another name as --metric")
    return [_with_share(row, correct, total, columns.metric) for row in rows]


def _with_share(row: TableRow, correct: str, total: str, metric: str) -> TableRow:
    if row.cells.get(correct) is None or row.cells.get(total) is None:
        return TableRow(row.place, {**row.cells, metric: None})
    counts = number(row.cells[correct], row.place, correct), number(row.cells[total], row.place, total)
    if not all(count.is_integer() for count in counts) or not 0 <= counts[0] <= counts[1] or not counts[1]:
        raise ReportError(
            f"{row.place}: {counts[0]:g} correct of {counts[1]:g} are no counts; give whole numbers of examples"
        )
    return TableRow(row.place, {**row.cells, metric: counts[0] / counts[1]})
