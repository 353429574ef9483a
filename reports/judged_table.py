"""Judges any table of results: CSV, JSON lines, parquet, or a DataFrame, whoever trained the runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from lit_transformers.config import nearest
from lit_transformers.records.measure import Goal
from reports.judge.findings import Findings
from reports.read.look_file import LookFile, committed, load_look_file
from reports.read.study import ReportError
from reports.read.table_columns import ColumnRoles, resolve
from reports.read.table_large import study_of_large
from reports.read.table_rows import TableRow, read_rows
from reports.read.table_study import TableQuestion, arms_of, baselines_of, metric_of, study_of
from reports.read.trackers.readers import is_tracked
from reports.read.trackers.selection import TrackerQuestion
from reports.read.trackers.tracked_rows import tracked_table
from reports.report import find

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["JudgedTable", "QuestionFields", "declare_looks", "judge_by", "judge_table", "question_of"]

_BUTTON = re.compile("<button[^>]*>(.*?)</button>")
"""A button of the page that sorts a table, by a script that a notebook does not have."""
_SHARE = "accuracy"
"""The name of a metric of counts that has none."""


@dataclass(frozen=True)
class JudgedTable(Findings):
    """The findings of a table, with figures and, in a notebook, with the answer and its tables."""

    def plot(self, name: str = "differences") -> Figure:
        """Returns a figure of the report as a figure of matplotlib: differences with their intervals, ``cost_quality``
        or ``learning_curves``. Raises ReportError for one that there is no data for."""
        from reports.show.figures import figures

        drawn = figures(self)
        if name not in drawn:
            raise ReportError(f"there is no figure {name!r}; {nearest(name, drawn)}")
        return drawn[name]

    def _repr_html_(self) -> str:
        """Returns the question, the answer, the tables and the notes, as a notebook shows them."""
        from reports.show.answer import headline
        from reports.show.markup import Html, element, items, joined
        from reports.show.sections import all_tables
        from reports.show.tables import to_html

        tables = (_BUTTON.sub(r"\1", to_html(table.shortened())) for table in all_tables(self))
        answer = element("p", element("strong", headline(self)))
        return joined([element("h3", self.study.plan.question), answer, *map(Html, tables), items(self.notes)])

    def to(self, folder: str | Path) -> Path:
        """Writes the whole report to a folder and returns the path of its page. Raises OSError where it cannot."""
        from reports.report import PAGE, write_study

        write_study(self.study, Path(folder))
        return Path(folder) / PAGE


def judge_table(
    table: str | Path | Sequence[Mapping[str, Any]] | Any,
    metric: str | None = None,
    *,
    plan: str | Path | None = None,
    of_tracker: TrackerQuestion | None = None,
    **question: Unpack[QuestionFields],
) -> JudgedTable:
    """Returns the findings of a table: its comparisons with intervals and verdicts, and notes on every guess.

    table: a path (``-`` for standard input), a list of rows, a pandas DataFrame, or the address of a tracker's runs: a
    folder, a database, or ``wandb:entity/project``; ``arm`` and ``seed`` are then keys of configs, and ``of_tracker``
    selects the runs. metric: the column of values, the name of the quantity in the cells of a wide table, or the name
    of the share that the counts ``correct`` and ``total`` give. plan: a file that declares the looks and the question.
    question: see ``QuestionFields``.

    A value that is infinite or NaN is that of a run that diverged; a run without a value has not finished. NaN in a
    DataFrame is no value. Raises ReportError, in one line, for a table that cannot be judged.
    """
    return judge_by(question_of(metric, **question), table, None if plan is None else Path(plan), of_tracker)


class QuestionFields(TypedDict, total=False):
    """The question to a table: the fields of ``TableQuestion`` and the columns of ``ColumnRoles``, which are guessed by
    their names where they are not given.

    ``baseline`` and ``arm`` are one name or several. step: the column of steps or, with ``to_target``, of the amount
    that a run needs to reach the target, such as seconds.
    """

    goal: Goal | None
    baseline: str | Sequence[str]
    margin: float | None
    target: float | None
    to_target: float | None
    ratio: bool
    unpaired: bool
    looks: Sequence[int]
    arms: Sequence[str]
    arm: str | Sequence[str]
    seed: str | None
    example: str | None
    cluster: str | None
    step: str | None
    status: str | None
    cost: str | None
    task: str | None
    correct: str | None
    total: str | None


_SEVERAL = {"baseline": "baselines", "arm": "arm", "looks": "looks", "arms": "arms"}
"""The fields of several values, by their names in a question."""


def question_of(metric: str | None, **given: Unpack[QuestionFields]) -> TableQuestion:
    """Returns the question to a table. Raises TypeError for a field that there is not."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in _SEVERAL:
            value = (value,) if isinstance(value, str) else tuple(cast(Sequence[str], value or ()))
        values[_SEVERAL.get(name, name)] = value
    of_columns = {one.name for one in fields(ColumnRoles)}
    columns = {name: values.pop(name) for name in [*values] if name in of_columns}
    name = metric or (_SHARE if columns.get("correct") else "")
    return TableQuestion(ColumnRoles(name, **columns), **values)


def judge_by(
    question: TableQuestion, table: Any, plan: Path | None = None, of_tracker: TrackerQuestion | None = None
) -> JudgedTable:
    """Returns the findings of a table. plan, of_tracker, and errors: as of ``judge_table``."""
    if plan is not None:
        question = load_look_file(plan).applied(question, plan)
    if not question.columns.metric:
        raise ReportError("no metric is named; give --metric COLUMN")
    is_of_tracker = _is_of_tracker(table, of_tracker)
    study = study_of_large(Path(table), question) if isinstance(table, str | Path) and not is_of_tracker else None
    study = study or study_of(*_asked(table, question, of_tracker))
    if plan is not None:
        study = replace(study, notes=(committed(plan), *study.notes))
    findings = find(study)
    return JudgedTable(study, findings.comparisons, findings.notes, findings.further)


def declare_looks(
    path: Path, question: TableQuestion, table: Any = None, of_tracker: TrackerQuestion | None = None
) -> None:
    """Writes the looks and the question to a file, to be committed before the runs.

    table: a table whose arms are judged, where ``question.arms`` names none; its values are not read. Raises
    ReportError without looks and without arms.
    """
    if not question.looks:
        raise ReportError("a plan declares looks; name their numbers of seeds: --looks 4,8,16")
    if not question.columns.metric:
        raise ReportError("no metric is named; give --metric COLUMN")
    arms, columns = question.arms, question.columns
    if not arms:
        if table is None:
            raise ReportError("a plan names its arms: --arms A,B, or give a table that has them")
        rows, question = _asked(table, question, of_tracker)
        rows, columns = resolve(rows, question.columns)
        arms = tuple(arms_of(rows, columns))
    notes: list[str] = []
    goal = metric_of(replace(question, to_target=None), columns, notes).goal
    assert goal is not None
    baselines = () if question.target is not None else baselines_of(question, arms, notes)
    LookFile.of(replace(question, columns=columns), goal, baselines, arms).write(path)


def _is_of_tracker(table: Any, of_tracker: TrackerQuestion | None) -> bool:
    """Whether a table is the address of a tracker's runs. Raises ReportError for a choice of runs that it lacks."""
    if isinstance(table, str | Path) and ((of_tracker and of_tracker.tracker) or is_tracked(str(table))):
        return True
    if of_tracker not in (None, TrackerQuestion()):
        raise ReportError("--where, --pick and --values are for runs of a tracker; a table has columns")
    return False


def _asked(
    table: Any, question: TableQuestion, of_tracker: TrackerQuestion | None
) -> tuple[list[TableRow], TableQuestion]:
    """Returns the rows of a table, and the question with the roles of columns that a tracker states."""
    if not _is_of_tracker(table, of_tracker):
        return _rows(table), question
    choice = replace(of_tracker or TrackerQuestion(), curves=question.to_target is not None)
    rows, columns, goal = tracked_table(str(table), question.columns, choice, question.goal)
    return rows, replace(question, columns=columns, goal=goal)


def _rows(table: Any) -> list[TableRow]:
    if isinstance(table, str | Path):
        return read_rows(table)
    if isinstance(table, Sequence):
        return [TableRow(f"row {number}", dict(entry)) for number, entry in enumerate(table, 1)]
    return [TableRow(f"row {number}", _without_nan(entry)) for number, entry in enumerate(table.to_dict("records"), 1)]


def _without_nan(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {str(column): None if cell != cell else cell for column, cell in entry.items()}
