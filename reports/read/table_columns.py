"""The roles of the columns of a table of results: the metric, the arm, the seed, and the optional ones.

Columns that are not given are guessed by their names, and every guess is stated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lit_transformers.config import nearest
from lit_transformers.records.measure import Goal
from reports.read.study import ReportError
from reports.read.table_counts import with_shares
from reports.read.table_rows import Cell, TableRow

__all__ = ["ColumnRoles", "goal_of", "resolve"]

_ARM = (
    "arm",
    "model",
    "method",
    "variant",
    "system",
    "algorithm",
    "optimizer",
    "group",
    "config",
    "experiment",
    "name",
)
_SEED = ("seed", "random_seed", "random_state", "rng", "replicate", "trial", "fold", "run")
_STEP = ("step", "global_step", "_step", "iteration", "iter", "epoch", "tokens")
_EXAMPLE = ("example", "example_id", "document", "doc_id", "item", "sample_id", "sentence_id", "question_id")
_CLUSTER = ("cluster", "source", "origin")
_COST = ("seconds", "wall_time", "train_seconds", "train_time", "duration", "_runtime")
_STATUS = ("status", "state", "outcome")
_SEED_COLUMN = re.compile(r"(?:seed|run|s|fold)?[ _-]?(\d+)", re.IGNORECASE)
_LESS = ("loss", "nll", "nats", "bpb", "bpc", "ppl", "perplexity", "error", "err", "wer", "cer", "mse", "rmse", "mae")
_MORE = ("acc", "accuracy", "f1", "bleu", "rouge", "chrf", "auc", "auroc", "score", "recall", "precision", "mrr", "em")


@dataclass(frozen=True)
class ColumnRoles:
    """The columns of a table by their roles. ``arm``: one, or several factors whose levels name an arm. None stands for
    a column that the table does not have. cost: of seconds. task: of data sets, each of which is judged. correct and
    total: counts of examples, whose share is the metric. guesses: a sentence on each guess."""

    metric: str
    arm: tuple[str, ...] = ()
    seed: str | None = None
    example: str | None = None
    cluster: str | None = None
    step: str | None = None
    status: str | None = None
    cost: str | None = None
    task: str | None = None
    correct: str | None = None
    total: str | None = None
    guesses: tuple[str, ...] = ()


def resolve(rows: Sequence[TableRow], given: ColumnRoles) -> tuple[list[TableRow], ColumnRoles]:
    """Returns the rows as a long table, a value each, and its columns.

    A wide table has a column for each seed, or no column of arms and one for each arm; ``given.metric`` is then the
    name of the quantity in its cells.

    Raises ReportError for a column that is missing, and where arms cannot be distinguished.
    """
    if not rows:
        raise ReportError("the table has a header and no rows; give a row for each run")
    if given.correct is not None or given.total is not None:
        rows = with_shares(rows, given)
    rows, given = _long(rows, _names(rows), given)
    columns = _names(rows)
    for column in (
        given.metric,
        *given.arm,
        given.seed,
        given.example,
        given.cluster,
        given.step,
        given.status,
        given.cost,
        given.task,
    ):
        if column is not None and column not in columns:
            raise ReportError(f"the table has no column {column!r}; {nearest(column, columns)}")
    return rows, _guessed(rows, columns, given)


def _names(rows: Sequence[TableRow]) -> list[str]:
    """Returns the columns that any row has, in their order."""
    return list(dict.fromkeys(column for row in rows for column in row.cells))


def _long(rows: Sequence[TableRow], columns: Sequence[str], given: ColumnRoles) -> tuple[list[TableRow], ColumnRoles]:
    if given.metric in columns:
        return list(rows), given
    seeds = {column: match[1] for column in columns if (match := _SEED_COLUMN.fullmatch(column))}
    if len(seeds) > 1:
        guess = f"each of the columns {_listed(list(seeds))} is a seed"
        melted = _melted(rows, seeds, "seed", given.metric)
        return melted, replace(given, seed="seed", guesses=(*given.guesses, guess))
    known = {column for column in columns if column.casefold() in (*_SEED, *_STEP, *_EXAMPLE, *_CLUSTER, *_ARM, *_COST)}
    arms = [column for column in columns if column not in known and column != given.seed and _is_numeric(rows, column)]
    if given.arm or len(arms) < 2 or any(column.casefold() in _ARM for column in columns):
        return list(rows), given
    guess = f"each of the columns {_listed(arms)} is an arm"
    melted = _melted(rows, {arm: arm for arm in arms}, "arm", given.metric)
    return melted, replace(given, arm=("arm",), guesses=(*given.guesses, guess))


def _melted(rows: Sequence[TableRow], values: Mapping[str, str], column: str, metric: str) -> list[TableRow]:
    """Returns a row for each cell of the columns of ``values``, whose value there stands in ``column`` and whose cell
    stands in ``metric``, next to the cells of all other columns."""
    return [
        TableRow(row.place, {**others, column: value, metric: row.cells.get(name)})
        for row in rows
        for others in ({other: cell for other, cell in row.cells.items() if other not in values},)
        for name, value in values.items()
    ]


def _guessed(rows: Sequence[TableRow], columns: Sequence[str], given: ColumnRoles) -> ColumnRoles:
    """Returns the columns with those that were not given, by their names."""
    free = [
        column for column in columns if column not in (given.metric, given.task, given.correct, given.total, *given.arm)
    ]
    guessed: dict[str, Any] = {}
    for role, names in (
        ("seed", _SEED),
        ("example", _EXAMPLE),
        ("cluster", _CLUSTER),
        ("step", _STEP),
        ("status", _STATUS),
        ("cost", _COST),
    ):
        column = getattr(given, role)
        if column is None:
            column = next((one for name in names for one in free if one.casefold() == name), None)
            if column is not None:
                guessed[role] = column
        if column is not None:
            free = [one for one in free if one != column]
    given = replace(given, **guessed)
    guesses = [f"{role}: the column {column}" for role, column in guessed.items()]
    if not given.arm:
        given = replace(given, arm=_arm_columns(rows, free))
        guesses.insert(0, f"arm: the column{'s' * (len(given.arm) > 1)} {_listed(given.arm)}")
    return replace(given, guesses=(*given.guesses, *guesses))


def _arm_columns(rows: Sequence[TableRow], free: Sequence[str]) -> tuple[str, ...]:
    named = next((one for name in _ARM for one in free if one.casefold() == name), None)
    if named is not None:
        return (named,)
    varied = [one for one in free if len({row.cells.get(one) for row in rows}) > 1 and not _is_numeric(rows, one)]
    if not varied:
        raise ReportError(f"no column says which arm a run belongs to; name it: --arm COLUMN, one of {_listed(free)}")
    return tuple(varied)


def _is_numeric(rows: Sequence[TableRow], column: str) -> bool:
    cells = [cell for row in rows if (cell := row.cells.get(column)) is not None]
    return bool(cells) and all(_reads_as_number(cell) for cell in cells)


def _reads_as_number(cell: Cell) -> bool:
    try:
        float(cell or 0)
    except ValueError:
        return False
    return not isinstance(cell, bool)


def goal_of(metric: str) -> Goal | None:
    """Returns the goal of a metric by the words of its name, or None where they do not say."""
    words = set(re.split(r"[^a-z0-9]+", metric.casefold()))
    less, more = bool(words.intersection(_LESS)), bool(words.intersection(_MORE))
    return None if less == more else "minimize" if less else "maximize"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(_shortened(names)) or "none"


def _shortened(names: Sequence[str]) -> Iterator[str]:
    yield from names[:4]
    if len(names) > 4:
        yield f"{len(names) - 4} more"
