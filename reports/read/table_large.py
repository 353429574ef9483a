"""Large tables with a value for each example: read in batches into an array for each run, never into rows.

Tables of ten million rows are read so in bounded memory: a number for each value and, while they are read, one for its
example. The roles of columns are resolved by the first rows; the findings are the same as for a small table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reports.read.measurements import Array, DocumentLosses
from reports.read.study import ReportError, Study
from reports.read.table_columns import ColumnRoles, resolve
from reports.read.table_rows import as_rows, text
from reports.read.table_runs import DIVERGED, FINISHED, TableRun
from reports.read.table_study import TableQuestion, arm_name, seed_numbers, study_of_runs

__all__ = ["LARGE", "study_of_large"]

LARGE = 32 * 2**20
"""The size of a file in bytes from which on it is read in batches."""
_FIRST = 1000
_BATCH = 2**17
_BLOCK = 8 * 2**20
_DELIMITERS = {".csv": ",", ".tsv": "\t"}

Codes = NDArray[np.int64]
Numbers = NDArray[np.int32]
"""Of examples, in half of the memory."""


def study_of_large(path: Path, question: TableQuestion) -> Study | None:
    """Returns the study of a large table with a column of examples; None for any other table, which is read by rows.

    Raises ReportError as ``study_of``.
    """
    if path.suffix not in (".parquet", *_DELIMITERS) or not path.is_file() or path.stat().st_size < LARGE:
        return None
    first = next(_batches(path, None), None)
    if first is None:
        return None
    _, columns = resolve(as_rows(first.slice(0, _FIRST).to_pylist()), question.columns)
    is_long = columns.metric in first.schema.names and set(columns.arm) <= set(first.schema.names)
    if columns.example is None or columns.seed is None or columns.step is not None or not is_long or columns.total:
        return None
    return _Reader(columns).study(path, question)


def _batches(path: Path, columns: list[str] | None) -> Iterator[Any]:
    """Yields the batches of a file, with these columns. Raises ReportError where it cannot be read."""
    import pyarrow
    from pyarrow import csv, parquet

    try:
        if path.suffix == ".parquet":
            yield from parquet.ParquetFile(path).iter_batches(_BATCH, columns=columns)
            return
        yield from csv.open_csv(
            path,
            csv.ReadOptions(block_size=_BLOCK, use_threads=False),
            csv.ParseOptions(delimiter=_DELIMITERS[path.suffix]),
            csv.ConvertOptions(include_columns=columns, null_values=[""], strings_can_be_null=True),
        )
    except pyarrow.ArrowException as error:
        raise ReportError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None


class _Numbering:
    """The numbers of texts, in the order in which they occur."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def codes(self, column: Any) -> Codes:
        """Returns the number of each cell of a column of a batch."""
        encoded = column.dictionary_encode(null_encoding="encode")
        own = [self.numbers.setdefault(text(cell), len(self.numbers)) for cell in encoded.dictionary.to_pylist()]
        return np.array(own, dtype=np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]

    def texts(self) -> list[str]:
        return list(self.numbers)


class _Reader:
    """The contents of a large table: for each run, the numbers of its examples and their values."""

    def __init__(self, columns: ColumnRoles) -> None:
        self.columns = columns
        names = (*columns.arm, *([columns.task] if columns.task else ()), columns.seed, columns.status)
        self.of_run = [name for name in names if name is not None]
        self.numberings = {name: _Numbering() for name in self.of_run}
        self.examples, self.clusters = _Numbering(), _Numbering()
        self.cluster_of: dict[int, int] = {}
        self.parts: dict[tuple[int, ...], list[tuple[Numbers, Array]]] = {}
        self.seconds: dict[tuple[int, ...], float] = {}

    def study(self, path: Path, question: TableQuestion) -> Study:
        columns = self.columns
        optional = (columns.example, columns.cluster, columns.cost)
        needed = [*self.of_run, columns.metric, *(name for name in optional if name is not None)]
        for batch in _batches(path, list(dict.fromkeys(needed))):
            self._add(batch)
        runs, names = self._runs()
        return study_of_runs(runs, names, columns, question, [])

    def _add(self, batch: Any) -> None:
        """Adds the rows of a batch to their runs."""
        columns = self.columns
        values = self._values(batch.column(columns.metric))
        examples = self.examples.codes(batch.column(columns.example))
        if columns.cluster is not None:
            clusters = self.clusters.codes(batch.column(columns.cluster))
            numbers, places = np.unique(examples, return_index=True)
            self.cluster_of |= dict(zip(numbers.tolist(), clusters[places].tolist(), strict=True))
        keys = np.column_stack([self.numberings[name].codes(batch.column(name)) for name in self.of_run])
        run_keys, run_of = np.unique(keys, axis=0, return_inverse=True)
        order = np.argsort(run_of.ravel(), kind="stable")
        ends = np.cumsum(np.bincount(run_of.ravel(), minlength=len(run_keys)))
        seconds = self._seconds(batch)
        for key, rows in zip(map(tuple, run_keys.tolist()), np.split(order, ends[:-1]), strict=True):
            self.parts.setdefault(key, []).append((examples[rows].astype(np.int32), values[rows]))
            if seconds is not None and np.isfinite(seconds[rows]).any():
                self.seconds[key] = float(seconds[rows][np.isfinite(seconds[rows])][-1])

    def _values(self, column: Any) -> Array:
        """Returns the values of a column, of which an empty cell is minus infinity. Raises ReportError for a text."""
        import pyarrow

        try:
            numbers = column.cast(pyarrow.float64())
        except pyarrow.ArrowException:
            raise ReportError(
                f"{self.columns.metric} holds a text; leave the cell empty where a run has no value"
            ) from None
        values: Array = np.array(numbers.fill_null(0.0).to_numpy(zero_copy_only=False), dtype=np.float64)
        values[np.isinf(values)] = np.nan
        values[column.is_null().to_numpy(zero_copy_only=False)] = -np.inf
        return values

    def _seconds(self, batch: Any) -> Array | None:
        import pyarrow

        if self.columns.cost is None:
            return None
        numbers = batch.column(self.columns.cost).cast(pyarrow.float64())
        return np.array(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)

    def _runs(self) -> tuple[dict[tuple[str, str], dict[int, TableRun]], dict[str, tuple[str, ...]]]:
        """Returns the runs by arm and task, and seed, and the levels of each arm."""
        columns, texts = self.columns, {name: one.texts() for name, one in self.numberings.items()}
        seeds = seed_numbers(texts[columns.seed or ""])
        documents = _Documents(self.examples.texts(), self.clusters.texts(), self.cluster_of)
        runs: dict[tuple[str, str], dict[int, TableRun]] = {}
        names: dict[str, tuple[str, ...]] = {}
        for key in list(self.parts):
            cells = {name: texts[name][code] for name, code in zip(self.of_run, key, strict=True)}
            arm, levels = arm_name(cells, columns), tuple(cells[column] for column in columns.arm)
            names.setdefault(arm, levels)
            task = (cells[columns.task] or "unnamed") if columns.task else ""
            seed = seeds[cells[columns.seed or ""]]
            parts = self.parts.pop(key)
            own = runs.setdefault((arm, task), {})
            status = cells[columns.status].casefold() if columns.status else ""
            run = own.setdefault(seed, TableRun(seconds=self.seconds.get(key)))
            if status in DIVERGED:
                run.diverged = True
            elif status not in FINISHED:
                run.reason = status
            else:
                documents.give(run, parts, f"{arm}, seed {cells[columns.seed or '']}", columns.metric)
        return runs, names


class _Documents:
    """The examples of a large table, which runs share."""

    def __init__(self, examples: list[str], clusters: list[str], cluster_of: Mapping[int, int]) -> None:
        cells = [clusters[cluster_of[number]] if clusters else name for number, name in enumerate(examples)]
        self.names = ["_".join(name.split()) + f" {cell}" for name, cell in zip(examples, cells, strict=True)]
        self.texts = examples
        order = sorted(range(len(examples)), key=examples.__getitem__)
        self.rank = np.empty(len(examples), dtype=np.int64)
        self.rank[order] = np.arange(len(examples))
        self.shared: dict[bytes, tuple[tuple[str, ...], Array, Array]] = {}

    def give(self, run: TableRun, parts: list[tuple[Numbers, Array]], place: str, metric: str) -> None:
        """Gives a run its values by example. Raises ReportError where an example occurs twice."""
        numbers, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(self.rank[numbers], kind="stable")
        numbers, values = numbers[order], values[order]
        if run.kept is not None or (len(numbers) > 1 and (twice := numbers[1:] == numbers[:-1]).any()):
            name = self.texts[int(numbers[1:][twice][0])] if run.kept is None else "an example"
            raise ReportError(f"{place}: the run has example {name} twice; name the columns that tell runs apart")
        run.diverged = run.diverged or bool(np.isnan(values).any())
        run.lacks_value = bool(np.isneginf(values).any())
        if run.diverged or run.lacks_value:
            return
        shared = self.shared.get(key := numbers.tobytes())
        if shared is None:
            names = tuple(self.names[number] for number in numbers.tolist())
            shared = self.shared[key] = names, np.zeros(len(names)), np.ones(len(names))
        names, zeros, ones = shared
        run.value = float(np.mean(values))
        run.kept = DocumentLosses(names, zeros, ones, ones, {metric.rpartition("/")[2]: values})
