"""A study from the rows of a table of results: its plan, and a run for each arm and seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lit_transformers.config import nearest
from lit_transformers.records.measure import Goal
from lit_transformers.records.plan import Contrast, LookPlan, Margin, Metric, Plan, PlannedArm, PlannedRun
from lit_transformers.records.record import VERSION, Outcome, Record
from reports.read.measurements import Array, DocumentLosses, Measurements, as_documents, rounded, thinned
from reports.read.study import FROM_TABLE, ReportError, RunData, Study, assemble
from reports.read.table_columns import ColumnRoles, goal_of, number, resolve, text
from reports.read.table_rows import TableRow

__all__ = ["TableQuestion", "study_of"]

_BASELINES = ("baseline", "base", "default", "control", "vanilla", "reference", "standard")
_FINISHED = ("", "finished", "completed", "complete", "done", "success", "ok")
_DIVERGED = ("diverged", "nan", "exploded")
_VALID = "This is valid if runs are independent, and cannot use what runs of one seed have in common."


@dataclass(frozen=True)
class TableQuestion:
    """The question to a table: its columns, and how its arms are compared.

    goal: what is better of the metric, by default as its name says. baseline: the arm that the others are compared
    with. margin: the smallest effect that matters, in units of the metric or, with ``ratio``, a ratio above 1. target:
    a value that every arm is compared with, in place of a baseline. looks: the numbers of seeds at which results were
    to be judged, stated before the first of them.
    """

    columns: ColumnRoles
    goal: Goal | None = None
    baseline: str | None = None
    margin: float | None = None
    target: float | None = None
    ratio: bool = False
    looks: tuple[int, ...] = ()


@dataclass
class _Outcome:
    """What the rows of a run say: its value or, by example, its values; its curve; and why it has no value."""

    value: float = math.nan
    examples: dict[str, tuple[float, str]] = field(default_factory=dict)
    """The value and the cluster of each example."""
    curve: dict[float, float] = field(default_factory=dict)
    seconds: float | None = None
    diverged: bool = False
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
        if status in _DIVERGED or (cell is not None and not math.isfinite(value)):
            self.diverged = True
        elif status not in _FINISHED:
            self.reason = status
        elif cell is None:
            self.lacks_value = columns.step is None or columns.example is not None
        elif columns.example is not None:
            name = text(row.cells.get(columns.example))
            _require_new(name in self.examples, row, columns.example, name)
            self.examples[name] = value, text(row.cells.get(columns.cluster)) if columns.cluster else name
        elif columns.step is not None:
            step = number(row.cells.get(columns.step), row.place, columns.step)
            _require_new(step in self.curve, row, columns.step, f"{step:g}")
            self.curve[step] = value
            self.value = self.curve[max(self.curve)]
        else:
            _require_new(math.isfinite(self.value), row, "the run", "")
            self.value = value

    @property
    def _sorted(self) -> list[tuple[str, tuple[float, str]]]:
        """The examples by name, so that runs whose rows are in another order are equal."""
        return sorted(self.examples.items())

    def data(self, key: str, seed: int, metric: str) -> RunData:
        """Returns the record of the run and its measurements."""
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
            metrics={metric: value},
            measured={"seconds": self.seconds, metric.removeprefix("measured/"): value},
        )
        return RunData(record, Measurements(self._curves(metric), self._documents(metric)))

    def _curves(self, metric: str) -> Mapping[str, Array]:
        points = sorted(self.curve.items())
        return {metric: rounded(thinned(np.array(points, dtype=np.float64)))} if len(points) > 1 else {}

    def _documents(self, metric: str) -> DocumentLosses | None:
        if not self.examples or self.diverged or self.lacks_value or self.reason is not None:
            return None
        count = len(self.examples)
        names = [f"{'_'.join(name.split())} {cluster}" for name, (_, cluster) in self._sorted]
        sums = {"nats": np.zeros(count), "tokens": np.ones(count), "bytes": np.ones(count)}
        return as_documents(
            names, sums | {metric.rpartition("/")[2]: np.array([value for _, (value, _) in self._sorted])}
        )


def _require_new(is_there: bool, row: TableRow, column: str, value: str) -> None:
    if is_there:
        what = f"{column} {value}" if value else "it"
        raise ReportError(
            f"{row.place}: the run has {what} twice; name the columns that tell runs apart: --arm, --seed, --step or "
            "--example COLUMN"
        )


def study_of(rows: Sequence[TableRow], question: TableQuestion) -> Study:
    """Returns a table of results as a study, whose notes state every guess.

    Raises ReportError for a table that cannot be judged: one arm without a target, a text in place of a number, a run
    that occurs twice.
    """
    rows, columns = resolve(rows, question.columns)
    runs, notes = _runs(rows, columns)
    runs = _with_shared_seeds(runs, notes)
    levels = {arm: dict(zip(columns.arm, names, strict=True)) for arm, names in _arms(rows, columns).items()}
    if len(levels) == 1 and question.target is None:
        raise ReportError(f"the table has one arm, {next(iter(levels))}; give a second one, or --target VALUE")
    metric = _metric(question, notes)
    baseline = f"target {question.target:g}" if question.target is not None else _baseline(question, [*levels], notes)
    if question.target is not None:
        seeds = sorted({seed for _, seed in runs})
        levels[baseline] = dict.fromkeys(columns.arm, f"{question.target:g}")
        runs |= {(baseline, seed): _Outcome(question.target) for seed in seeds}
    keys = {pair: f"{index:06d}" for index, pair in enumerate(runs)}
    arms = tuple(
        PlannedArm(arm, named, tuple(PlannedRun(seed, key) for (owner, seed), key in keys.items() if owner == arm))
        for arm, named in levels.items()
    )
    plan = Plan(
        study="table",
        question=_question_text(question, baseline, columns.metric),
        metric=metric,
        factors={column: tuple(dict.fromkeys(named[column] for named in levels.values())) for column in columns.arm},
        design=FROM_TABLE,
        baseline=baseline,
        arms=arms,
        contrasts=tuple(
            Contrast(f"{arm} against {baseline if question.target is None else f'{question.target:g}'}", arm, baseline)
            for arm in levels
            if arm != baseline
        ),
        looks=_looks(question, arms),
    )
    plan.check()
    data = {keys[pair]: outcome.data(keys[pair], pair[1], columns.metric) for pair, outcome in runs.items()}
    return assemble(plan, data, (*columns.guesses, *notes))


def _arms(rows: Sequence[TableRow], columns: ColumnRoles) -> dict[str, tuple[str, ...]]:
    """Returns the names of all arms in their order, with their levels."""
    levels = dict.fromkeys(tuple(text(row.cells.get(column)) for column in columns.arm) for row in rows)
    return {" ".join(_name(columns, one)): one for one in levels}


def _name(columns: ColumnRoles, levels: Sequence[str]) -> list[str]:
    if len(levels) == 1:
        return [levels[0] or "unnamed"]
    return [f"{column}={level}" for column, level in zip(columns.arm, levels, strict=True)]


def _runs(rows: Sequence[TableRow], columns: ColumnRoles) -> tuple[dict[tuple[str, int], _Outcome], list[str]]:
    """Returns what the rows say of each run, by arm and seed. Seeds that are no whole numbers are numbered."""
    runs: dict[tuple[str, int], _Outcome] = {}
    names = {levels: name for name, levels in _arms(rows, columns).items()}
    seeds = _seed_numbers(rows, columns)
    counts: dict[str, int] = {}
    for row in rows:
        arm = names[tuple(text(row.cells.get(column)) for column in columns.arm)]
        if columns.seed is not None:
            seed = seeds[text(row.cells.get(columns.seed))]
        else:
            repeated = columns.example is not None or columns.step is not None
            seed = 0 if repeated else counts.get(arm, 0)
            counts[arm] = seed + 1
        runs.setdefault((arm, seed), _Outcome()).add(row, columns)
    order, notes = {arm: place for place, arm in enumerate(names.values())}, []
    if columns.seed is None:
        notes.append(f"No column holds seeds: the runs of each arm are paired in the order of the table. {_VALID}")
    return dict(sorted(runs.items(), key=lambda item: (order[item[0][0]], item[0][1]))), notes


def _with_shared_seeds(runs: dict[tuple[str, int], _Outcome], notes: list[str]) -> dict[tuple[str, int], _Outcome]:
    """Returns the runs with the seeds of each arm numbered in order where no seed is one of all arms; a note says so,
    and which seeds only some arms have."""
    seeds: dict[str, list[int]] = {}
    for arm, seed in runs:
        seeds.setdefault(arm, []).append(seed)
    shared = set.intersection(*map(set, seeds.values()))
    if not shared:
        notes.append(f"The arms share no seed: their runs are paired in the order of their seeds. {_VALID}")
        return {(arm, seeds[arm].index(seed)): outcome for (arm, seed), outcome in runs.items()}
    partial = sorted(set().union(*seeds.values()) - shared)
    if partial:
        names = ", ".join(map(str, partial[:8])) + (f" and {len(partial) - 8} more" if len(partial) > 8 else "")
        notes.append(f"Not every arm has a run of the seeds {names}; a comparison uses the seeds of all its arms.")
    return runs


def _seed_numbers(rows: Sequence[TableRow], columns: ColumnRoles) -> dict[str, int]:
    if columns.seed is None:
        return {}
    texts = list(dict.fromkeys(text(row.cells.get(columns.seed)) for row in rows))
    if all(one.isdigit() for one in texts):
        return {one: int(one) for one in texts}
    return {one: index for index, one in enumerate(texts)}


def _metric(question: TableQuestion, notes: list[str]) -> Metric:
    name = question.columns.metric
    goal = question.goal or goal_of(name)
    if goal is None:
        raise ReportError(f"whether less or more of {name} is better is not known; add --minimize or --maximize")
    if question.goal is None:
        notes.append(f"goal: {goal}, by the name of {name}")
    margin = None if question.margin is None else Margin(question.margin, "stated with the command")
    return Metric(name, goal, compare="ratio" if question.ratio else "difference", margin=margin)


def _baseline(question: TableQuestion, arms: Sequence[str], notes: list[str]) -> str:
    if question.baseline is not None:
        if question.baseline not in arms:
            raise ReportError(f"there is no arm {question.baseline!r}; {nearest(question.baseline, arms)}")
        return question.baseline
    named = [arm for name in _BASELINES for arm in arms if name in arm.casefold().replace("_", " ").split()]
    baseline = named[0] if named else arms[0]
    notes.append(f"baseline: {baseline}, {'by its name' if named else 'the first arm of the table'}")
    return baseline


def _question_text(question: TableQuestion, baseline: str, metric: str) -> str:
    if question.target is not None:
        return f"Which arms are better than {question.target:g} in {metric}?"
    return f"Which arms are better than {baseline} in {metric}?"


def _looks(question: TableQuestion, arms: Sequence[PlannedArm]) -> LookPlan | None:
    """Returns the looks that were stated, those taken that the arms have seeds for, and one more where they have seeds
    beyond the last of them."""
    if not question.looks:
        return None
    seeds = min(len(arm.runs) for arm in arms)
    taken = tuple(look for look in question.looks if look <= seeds)
    added = (seeds,) if seeds > question.looks[-1] else ()
    return LookPlan(question.looks, (*taken, *added))
