"""The tables of a report as columns of plain values, for programs that show their own tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from reports.judge.comparisons import Comparison
from reports.judge.findings import Findings
from reports.show.picture import seed_values
from reports.show.sections import all_tables
from reports.show.tables import Cell, Column, Table, plain

__all__ = ["PlainTable", "answer_tables", "plain_table"]

Value = str | float | None


class PlainTable(NamedTuple):
    """A table of values: numbers where a column has numbers, and None where a cell is empty."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


def answer_tables(findings: Findings) -> dict[str, PlainTable]:
    """Returns the tables that answer the question of a study, by name: verdicts with their intervals, the difference of
    every seed, the value of every run, and all tables of the report."""
    tables = {"verdicts": _verdicts(findings), "seeds": _seeds(findings), "runs": _runs(findings)}
    tables |= {table.name: plain_table(table) for table in all_tables(findings)}
    return {name: table for name, table in tables.items() if table.rows}


def plain_table(table: Table) -> PlainTable:
    """Returns the values of a table. An interval has two columns, and a value with a spread another one; where a cell
    of numbers is empty for a reason, a further column has the reasons."""
    columns: list[str] = []
    values: list[list[Value]] = [[] for _ in table.rows]
    for index, (column, heading) in enumerate(zip(table.columns, table.headings(), strict=True)):
        cells = [row[index] for row in table.rows]
        for title, column_values in _value_columns(heading, column, cells):
            columns.append(title)
            for row, value in zip(values, column_values, strict=True):
                row.append(value)
    return PlainTable(tuple(columns), tuple(map(tuple, values)))


def _value_columns(heading: str, column: Column, cells: list[Cell]) -> Iterator[tuple[str, list[Value]]]:
    if column.kind == "interval":
        yield f"{heading}, low", [cell.low for cell in cells]
        yield f"{heading}, high", [cell.high for cell in cells]
    elif any(isinstance(cell.value, float | int) for cell in cells):
        yield heading, [_number(cell.value) for cell in cells]
        if any(cell.spread is not None for cell in cells):
            yield f"{heading}, spread", [cell.spread for cell in cells]
        texts = [cell.value if isinstance(cell.value, str) else cell.missing for cell in cells]
        if any(texts):
            yield f"{heading}, in words", [*texts]
    else:
        yield heading, [plain(cell, column) for cell in cells]


def _number(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, float | int) and math.isfinite(value) else None


def _verdicts(findings: Findings) -> PlainTable:
    """Returns the comparisons that a report shows, those that answer the question first."""
    primary = findings.primary
    ordered = [*primary, *(one for one in findings.shown if one not in primary)]
    effect = "ratio" if findings.ratio else "difference"
    columns = (
        "comparison", "answers the question", "verdict", effect, "low", "high", "unit", "p (Holm)", "seeds", "note",
    )  # fmt: skip
    return PlainTable(columns, tuple(_verdict_row(findings, one, one in primary) for one in ordered))


def _verdict_row(findings: Findings, comparison: Comparison, is_primary: bool) -> tuple[Value, ...]:
    estimate = comparison.estimate
    interval = estimate.interval if estimate else None
    low, high = (findings.as_printed(end) for end in interval) if interval else (None, None)
    difference = findings.as_printed(estimate.difference) if estimate else None
    seeds = len(seed_values(findings, comparison))
    note = comparison.reason or comparison.doubt or ""
    return (
        comparison.name, "yes" if is_primary else "no", comparison.verdict or "none", difference, low, high,
        findings.difference_unit, comparison.adjusted, float(seeds), note,
    )  # fmt: skip


def _seeds(findings: Findings) -> PlainTable:
    """Returns the points of a picture of paired differences: one for each comparison and seed."""
    effect = "ratio" if findings.ratio else "difference"
    rows = [
        (comparison.name, float(seed), findings.as_printed(value))
        for comparison in findings.shown
        for seed, value in seed_values(findings, comparison).items()
    ]
    return PlainTable(("comparison", "seed", effect), tuple(rows))


def _runs(findings: Findings) -> PlainTable:
    """Returns the value of every run that has finished, and why another one has none."""
    study = findings.study
    rows = [
        (run.arm, float(run.seed), _number(run.value) if run.missing is None else None, run.missing or "finished")
        for run in study.runs
    ]
    return PlainTable(("arm", "seed", findings.metric.name, "outcome"), tuple(rows))
