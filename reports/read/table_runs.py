"""The runs of a table of results, each with the contents of its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from lit_transformers.records.plan import Metric
from lit_transformers.records.record import VERSION, Outcome, Record
from reports.read.measurements import Array, DocumentLosses, Measurements, as_documents, rounded, thinned
from reports.read.study import COUNTED, ReportError, RunData
from reports.read.table_columns import ColumnRoles
from reports.read.table_rows import TableRow, number, text

__all__ = ["DIVERGED", "FINISHED", "TableRun"]

FINISHED = ("", "finished", "completed", "complete", "done", "success", "ok")
DIVERGED = ("diverged", "nan", "exploded")


@dataclass
class TableRun:
    """The contents of the rows of a run: its value or, by example, its values; its curve; and why it has no value."""

    value: float = math.nan
    examples: dict[str, tuple[float, str]] = field(default_factory=dict)
    """The value and the cluster of each example."""
    curve: dict[float, float] = field(default_factory=dict)
    seconds: float | None = None
    counted: float | None = None
    """The examples of which the value is a share."""
    diverged: bool = False
    kept: DocumentLosses | None = None
    """The values of examples, where they were read as an array."""
    lacks_value: bool = False
    """Whether a cell is empty that has to hold a value; not every step has one."""
    reason: str | None = None

    def add(self, row: TableRow, columns: ColumnRoles) -> None:
        """Adds a row. Raises ReportError where the run has the same step or example already."""
        status = text(row.cells.get(columns.status)).casefold() if columns.status else ""
        cell = row.cells.get(columns.metric)
        value = number(cell, row.place, columns.metric)
        if columns.cost is not None and row.cells.get(columns.cost) is not None:
            self.seconds = number(row.cells[columns.cost], row.place, columns.cost)
        if status in DIVERGED or (cell is not None and not math.isfinite(value)):
            self.diverged = True
        elif status not in FINISHED:
            self.reason = status
        elif cell is None:
            self.lacks_value = columns.step is None or columns.example is not None
        elif columns.example is not None:
            name = text(row.cells.get(columns.example))
            _require_new(name in self.examples, row, columns, f"{columns.example} {name}")
            self.examples[name] = value, text(row.cells.get(columns.cluster)) if columns.cluster else name
        elif columns.step is not None:
            step = number(row.cells.get(columns.step), row.place, columns.step)
            _require_new(step in self.curve, row, columns, f"{columns.step} {step:g}")
            self.curve[step] = value
            self.value = self.curve[max(self.curve)]
        else:
            _require_new(math.isfinite(self.value), row, columns, columns.metric)
            self.value = value
            if columns.total is not None:
                self.counted = number(row.cells[columns.total], row.place, columns.total)

    @property
    def _sorted(self) -> list[tuple[str, tuple[float, str]]]:
        """The examples by name, so that runs whose rows are in another order are equal."""
        return sorted(self.examples.items())

    @classmethod
    def with_value(cls, value: float) -> TableRun:
        return cls(value=value)

    def data(self, key: str, seed: int, column: str, metric: Metric, to_target: float | None, less: bool) -> RunData:
        """Returns the record of the run and its measurements.

        column: the name of its values. to_target: the value of the column of which ``metric`` is the first step that
        reaches it; None where the metric is the value itself. less: whether less of the column is better.
        """
        if to_target is not None:
            return self._until(key, seed, column, metric, to_target, less)
        value = float(np.mean([value for _, (value, _) in self._sorted])) if self.examples else self.value
        value = math.nan if self.diverged else value
        reason = self.reason or ("no value" if self.lacks_value or math.isnan(value) else None)
        outcome: Outcome = "finished" if reason is None or self.diverged else "failed"
        record = Record(
            version=VERSION,
            key=key,
            outcome=outcome,
            reason=reason,
            seed=seed,
            metrics={metric.name: value},
            measured={
                "seconds": self.seconds,
                metric.name.removeprefix("measured/"): value,
                **({COUNTED: self.counted} if self.counted else {}),
            },
        )
        return RunData(record, Measurements(self._curves(column), self._documents(column)))

    def _until(self, key: str, seed: int, column: str, metric: Metric, target: float, less: bool) -> RunData:
        """Returns the record of when the run first had a value as good as the target, which is no number where it never
        had. A run that was lost before says nothing."""
        steps = (step for step, value in sorted(self.curve.items()) if (value <= target if less else value >= target))
        step = next(steps, math.nan)
        lost = None if math.isfinite(step) or self.diverged else self.reason
        if lost is None and not self.curve and not self.diverged:
            lost = "no value"
        record = Record(
            version=VERSION,
            key=key,
            outcome="failed" if lost else "finished",
            reason=lost,
            seed=seed,
            metrics={metric.name: step},
            measured={"seconds": self.seconds},
        )
        return RunData(record, Measurements(self._curves(column)))

    def _curves(self, metric: str) -> Mapping[str, Array]:
        points = sorted(self.curve.items())
        return {metric: rounded(thinned(np.array(points, dtype=np.float64)))} if len(points) > 1 else {}

    def _documents(self, metric: str) -> DocumentLosses | None:
        if self.kept is not None:
            return self.kept
        if not self.examples or self.diverged or self.lacks_value or self.reason is not None:
            return None
        count = len(self.examples)
        names = [f"{'_'.join(name.split())} {cluster}" for name, (_, cluster) in self._sorted]
        sums = {"nats": np.zeros(count), "tokens": np.ones(count), "bytes": np.ones(count)}
        return as_documents(
            names, sums | {metric.rpartition("/")[2]: np.array([value for _, (value, _) in self._sorted])}
        )


def _require_new(is_there: bool, row: TableRow, columns: ColumnRoles, part: str) -> None:
    """Raises ReportError where a row repeats a part of its run: a step, an example, or the value."""
    if is_there:
        levels = [text(row.cells.get(column)) for column in columns.arm]
        seed = f", seed {text(row.cells.get(columns.seed))}" if columns.seed else ""
        raise ReportError(
            f"{row.place}: {' '.join(levels)}{seed} has {part} twice; drop a row, or name the columns that tell runs "
            "apart: --arm, --seed, --step or --example COLUMN"
        )
