"""A study from the rows of a table of results: its plan, and a run for each arm, task and seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lit_transformers.config import nearest
from lit_transformers.records.measure import Goal
from lit_transformers.records.plan import Contrast, LookPlan, Margin, Metric, Plan, PlannedArm, PlannedRun
from lit_transformers.records.record import Record
from reports.read.study import FROM_TABLE, ReportError, Study, assemble
from reports.read.table_columns import ColumnRoles, goal_of, resolve
from reports.read.table_rows import Cell as TableCell
from reports.read.table_rows import TableRow, text
from reports.read.table_runs import TableRun

__all__ = [
    "TableQuestion",
    "arm_name",
    "arms_of",
    "baselines_of",
    "metric_of",
    "seed_numbers",
    "study_of",
    "study_of_runs",
]

_BASELINES = ("baseline", "base", "default", "control", "vanilla", "reference", "standard")
_VALID = "This is valid if runs are independent, and cannot use the variation that runs of one seed share."
_ARM = "arm"
_OTHER_UNIT = 50
"""The ratio of two values from which on their units may differ."""
_COUNTS = "examples: counts; intervals hold their binomial variance, as if each arm had its own, which all seeds share"

Cell = tuple[str, str]
"""An arm and a task; the task is empty where the table has none."""


@dataclass(frozen=True)
class TableQuestion:
    """The question to a table: its columns, and how its arms are compared.

    goal: the better direction of the metric, by default as its name says. baselines: the arms that the others are
    compared with, by default one. margin: the smallest effect that matters, in units of the metric or, with ``ratio``,
    a ratio above 1. target: a value that every arm is compared with, in place of a baseline. looks: the numbers of
    seeds at which results were to be judged, stated before the first of them. unpaired: whether seeds of arms have
    nothing in common. to_target: a value of the metric; the steps at which the runs reach it are then compared, by
    ratio. arms: the arms to judge, by default all.
    """

    columns: ColumnRoles
    goal: Goal | None = None
    baselines: tuple[str, ...] = ()
    margin: float | None = None
    target: float | None = None
    ratio: bool = False
    looks: tuple[int, ...] = ()
    unpaired: bool = False
    to_target: float | None = None
    arms: tuple[str, ...] = ()

    @property
    def by_ratio(self) -> bool:
        return self.ratio or self.to_target is not None


def study_of(rows: Sequence[TableRow], question: TableQuestion) -> Study:
    """Returns a table of results as a study, whose notes state every guess.

    Raises ReportError for a table that cannot be judged: one arm without a target, a text in place of a number, a run
    that occurs twice, no value at all.
    """
    rows, columns = resolve(rows, question.columns)
    notes: list[str] = []
    rows = _of_arms(rows, columns, question.arms, notes)
    names = {_name(row, columns): tuple(text(row.cells.get(column)) for column in columns.arm) for row in rows}
    return study_of_runs(_runs(rows, columns, notes), names, columns, question, notes)


def study_of_runs(
    runs: dict[Cell, dict[int, TableRun]],
    names: Mapping[str, tuple[str, ...]],
    columns: ColumnRoles,
    question: TableQuestion,
    notes: list[str],
) -> Study:
    """Returns the study of the runs of a table, by arm and task, and seed. names: the levels of each arm. notes: those
    on the table so far. Raises ReportError as ``study_of``."""
    runs = _renumbered(runs, question, columns.seed is not None, notes)
    metric = metric_of(question, columns, notes)
    notes += _units(runs, question.columns.metric)
    baselines = _baselines(question, runs, notes)
    if question.target is not None:
        for task in dict.fromkeys(task for _, task in runs):
            seeds = sorted({seed for (_, of_task), own in runs.items() if of_task == task for seed in own})
            runs[baselines[0], task] = {seed: TableRun.with_value(question.target) for seed in seeds}
    order = {name: place for place, name in enumerate(dict.fromkeys(arm for arm, _ in runs))}
    cells = sorted(runs, key=lambda cell: order[cell[0]])
    keys = {(cell, seed): "" for cell in cells for seed in sorted(runs[cell])}
    keys = {pair: f"{index:06d}" for index, pair in enumerate(keys)}
    levels = {cell: _levels(cell, columns, names, question.target) for cell in cells}
    arms = tuple(
        PlannedArm(
            _arm_name(cell), levels[cell], tuple(PlannedRun(seed, keys[cell, seed]) for seed in sorted(runs[cell]))
        )
        for cell in cells
    )
    if columns.total is not None:
        notes.append(_COUNTS)
    tasks = list(dict.fromkeys(task for _, task in cells))
    contrasts = tuple(_contrasts(cells, baselines, question.target))
    effects = _effects(tasks, columns)
    if effects:
        notes.append(f"tasks: {len(tasks)}; over tasks, each weighs the same, and all comparisons are one family")
    plan = Plan(
        study="table",
        question=_question_text(question, baselines, metric.name),
        metric=metric,
        factors={
            name: tuple(dict.fromkeys(one[name] for one in levels.values())) for name in next(iter(levels.values()))
        },
        design=FROM_TABLE,
        baseline=_arm_name((baselines[0], tasks[0])),
        arms=arms,
        contrasts=contrasts,
        effects=effects or None,
        answer=effects or tuple(contrast.name for contrast in contrasts),
        looks=_looks(question, arms),
        unpaired=question.unpaired,
    )
    plan.check()
    if question.to_target is not None:
        notes += _ends(runs, columns)
    less = (question.goal or goal_of(question.columns.metric)) == "minimize"
    data = {
        key: runs[cell][seed].data(key, seed, question.columns.metric, metric, question.to_target, less)
        for (cell, seed), key in keys.items()
    }
    own = (data[key].record for ((arm, _), _), key in keys.items() if arm in names)
    _require_values([record for record in own if isinstance(record, Record)], metric)
    return assemble(plan, data, (*columns.guesses, *notes))


def _require_values(records: Sequence[Record], metric: Metric) -> None:
    """Raises ReportError where no run has a value; where the metric is when an event comes, it may never come."""
    reasons = Counter(filter(None, (_why_no_value(record, metric) for record in records)))
    if reasons.total() == len(records):
        counts = ", ".join(f"{reason}: {count}" for reason, count in reasons.items())
        raise ReportError(
            f"no run has a value of {metric.name}, so that nothing can be judged ({counts}); name the column of the "
            "values: --metric COLUMN"
        )


def _why_no_value(record: Record, metric: Metric) -> str | None:
    if record.outcome != "finished":
        return record.reason
    value = record.metrics.get(metric.name)
    return None if metric.event or (value is not None and math.isfinite(value)) else "NaN or infinite"


def arms_of(rows: Sequence[TableRow], columns: ColumnRoles) -> list[str]:
    """Returns the names of all arms in their order."""
    return list(dict.fromkeys(_name(row, columns) for row in rows))


def _name(row: TableRow, columns: ColumnRoles) -> str:
    return arm_name(row.cells, columns)


def arm_name(cells: Mapping[str, TableCell], columns: ColumnRoles) -> str:
    """Returns the name of the arm of a run by its cells."""
    levels = [text(cells.get(column)) for column in columns.arm]
    if len(levels) == 1:
        return levels[0] or "unnamed"
    return " ".join(f"{column}={level}" for column, level in zip(columns.arm, levels, strict=True))


def _of_arms(rows: list[TableRow], columns: ColumnRoles, arms: Sequence[str], notes: list[str]) -> list[TableRow]:
    """Returns the rows of the arms that are to be judged. Raises ReportError for one that the table does not have."""
    known = arms_of(rows, columns)
    for arm in arms:
        if arm not in known:
            raise ReportError(f"there is no arm {arm!r}; {nearest(arm, known)}")
    others = [arm for arm in known if arms and arm not in arms]
    if others:
        notes.append(f"not judged, as it is not among the arms that were named: {', '.join(others)}")
        rows = [row for row in rows if _name(row, columns) in arms]
    return rows


def _runs(rows: Sequence[TableRow], columns: ColumnRoles, notes: list[str]) -> dict[Cell, dict[int, TableRun]]:
    """Returns the contents of the rows of each run, by arm and task, and seed. Seeds that are no whole numbers are
    numbered."""
    runs: dict[Cell, dict[int, TableRun]] = {}
    seeds = seed_numbers(list(dict.fromkeys(text(row.cells.get(columns.seed)) for row in rows)) if columns.seed else ())
    for row in rows:
        cell = _name(row, columns), text(row.cells.get(columns.task)) or "unnamed" if columns.task else ""
        own = runs.setdefault(cell, {})
        if columns.seed is not None:
            seed = seeds[text(row.cells.get(columns.seed))]
        else:
            seed = 0 if columns.example is not None or columns.step is not None else len(own)
        own.setdefault(seed, TableRun()).add(row, columns)
    if columns.seed is None:
        notes.append(f"No column holds seeds: the runs of each arm are paired in the order of the table. {_VALID}")
    return runs


def seed_numbers(texts: Sequence[str]) -> dict[str, int]:
    """Returns the numbers of seeds: themselves, or their places where one is no number."""
    if all(one.isdigit() for one in texts):
        return {one: int(one) for one in texts}
    return {one: index for index, one in enumerate(texts)}


def _renumbered(
    runs: dict[Cell, dict[int, TableRun]], question: TableQuestion, has_seeds: bool, notes: list[str]
) -> dict[Cell, dict[int, TableRun]]:
    """Returns the runs with the seeds of each arm numbered in order where they are not paired: where they are said to
    have nothing in common, and where no seed is one of all arms. With looks, all seeds are numbered in order. A note
    says how seeds are paired, and which of them only some arms have."""
    seeds: dict[str, set[int]] = {}
    for (arm, _), own in runs.items():
        seeds.setdefault(arm, set()).update(own)
    shared, union = set.intersection(*seeds.values()), sorted(set().union(*seeds.values()))
    is_alone = len(seeds) == 1
    if question.unpaired or not shared:
        ranks = {arm: {seed: rank for rank, seed in enumerate(sorted(own))} for arm, own in seeds.items()}
        if question.unpaired:
            notes.append("pairing: none; the seeds of arms are independent samples, as --unpaired says")
        else:
            notes.append(f"The arms share no seed: their runs are paired in the order of their seeds. {_VALID}")
    else:
        numbers = {seed: rank if question.looks else seed for rank, seed in enumerate(union)}
        ranks = dict.fromkeys(seeds, numbers)
        if has_seeds and not is_alone:
            seeds_text = f"{len(shared)} {'seed' if len(shared) == 1 else 'seeds'}"
            notes.append(f"pairing: the {seeds_text} that all arms share; --unpaired if they have nothing in common")
        if partial := [seed for seed in union if seed not in shared]:
            names = ", ".join(map(str, partial[:8])) + (f" and {len(partial) - 8} more" if len(partial) > 8 else "")
            notes.append(f"Not every arm has a run of the seeds {names}; a comparison uses the seeds of all its arms.")
    return {cell: {ranks[cell[0]][seed]: run for seed, run in own.items()} for cell, own in runs.items()}


def metric_of(question: TableQuestion, columns: ColumnRoles, notes: list[str]) -> Metric:
    """Returns the metric that is judged; adds a note on a goal that its name states.

    Raises ReportError where the goal is not known.
    """
    name = question.columns.metric
    goal = question.goal or goal_of(name)
    if goal is None:
        raise ReportError(f"whether less or more of {name} is better is not known; add --minimize or --maximize")
    if question.goal is None:
        notes.append(f"goal: {goal}, by the name of {name}")
    margin = None if question.margin is None else Margin(question.margin, "stated with the command")
    compare: Literal["ratio", "difference"] = "ratio" if question.by_ratio else "difference"
    if question.to_target is None:
        return Metric(name, goal, compare=compare, margin=margin)
    if columns.step is None:
        raise ReportError("--to-target needs rows of several steps; name their column: --over COLUMN")
    event = f"reaches {question.to_target:g} {name}"
    return Metric(
        f"{columns.step} to {question.to_target:g} {name}", "minimize", compare=compare, margin=margin, event=event
    )


def baselines_of(question: TableQuestion, arms: Sequence[str], notes: list[str]) -> tuple[str, ...]:
    """Returns the arms that others are compared with; adds a note on one that was guessed.

    Raises ReportError for an arm that is not there.
    """
    for baseline in question.baselines:
        if baseline not in arms:
            raise ReportError(f"there is no arm {baseline!r}; {nearest(baseline, arms)}")
    if question.baselines:
        return tuple(dict.fromkeys(question.baselines))
    named = [arm for name in _BASELINES for arm in arms if name in arm.casefold().replace("_", " ").split()]
    baseline = named[0] if named else arms[0]
    notes.append(f"baseline: {baseline}, {'by its name' if named else 'the first arm of the table'}")
    return (baseline,)


def _baselines(
    question: TableQuestion, runs: Mapping[Cell, Mapping[int, TableRun]], notes: list[str]
) -> tuple[str, ...]:
    arms = list(dict.fromkeys(arm for arm, _ in runs))
    if question.target is not None:
        if question.to_target is not None or question.baselines or question.unpaired:
            raise ReportError("--target stands in place of a baseline; omit --baseline, --unpaired and --to-target")
        return (f"target {question.target:g}",)
    if len(arms) == 1:
        raise ReportError(f"the table has one arm, {arms[0]}; give a second one, or --target VALUE")
    return baselines_of(question, arms, notes)


def _units(runs: Mapping[Cell, Mapping[int, TableRun]], metric: str) -> Iterator[str]:
    """Yields a doubt where values differ so much that some may be in another unit, such as shares and per cent."""
    values = sorted(
        (abs(run.value), arm) for (arm, _), own in runs.items() for run in own.values() if math.isfinite(run.value)
    )
    if values and 0 < values[0][0] * _OTHER_UNIT <= values[-1][0]:
        (least, low), (most, high) = values[0], values[-1]
        yield f"One unit? {metric} lies between {least:g} ({low}) and {most:g} ({high}); write all values in one unit."


def _ends(runs: Mapping[Cell, Mapping[int, TableRun]], columns: ColumnRoles) -> Iterator[str]:
    """Yields where the runs end, where this differs: a run that ended sooner may not have reached a target for this."""
    ends = [max(run.curve) for own in runs.values() for run in own.values() if run.curve]
    if ends and min(ends) < max(ends):
        yield f"The runs end at {min(ends):g} to {max(ends):g} {columns.step}: one that ended sooner had less time."


def _arm_name(cell: Cell) -> str:
    arm, task = cell
    return f"{arm} on {task}" if task else arm


def _levels(
    cell: Cell, columns: ColumnRoles, names: Mapping[str, tuple[str, ...]], target: float | None
) -> dict[str, str]:
    """Returns the levels of an arm by factor: of each column of arms or, with tasks, of all of them together."""
    arm, task = cell
    if columns.task is not None:
        return {columns.arm[0] if len(columns.arm) == 1 else _ARM: arm, columns.task: task}
    if arm not in names:
        return dict.fromkeys(columns.arm, f"{target:g}")
    return dict(zip(columns.arm, names[arm], strict=True))


def _contrasts(cells: Sequence[Cell], baselines: Sequence[str], target: float | None) -> list[Contrast]:
    """Returns every arm against each baseline of its task; of two baselines, the later against the earlier."""
    contrasts = []
    for number, baseline in enumerate(baselines):
        for arm, task in cells:
            if arm in baselines[: number + 1] or (baseline, task) not in cells:
                continue
            against = baseline if target is None else f"{target:g}"
            name = f"{arm} against {against}" + (f" on {task}" if task else "")
            contrasts.append(Contrast(name, _arm_name((arm, task)), _arm_name((baseline, task))))
    return contrasts


def _effects(tasks: Sequence[str], columns: ColumnRoles) -> tuple[str, ...]:
    """Returns the factor whose effect over tasks is compared, where there are several."""
    return (columns.arm[0] if len(columns.arm) == 1 else _ARM,) if columns.task is not None and len(tasks) > 1 else ()


def _question_text(question: TableQuestion, baselines: Sequence[str], metric: str) -> str:
    if question.target is not None:
        return f"Which arms are better than {question.target:g} in {metric}?"
    if question.to_target is not None:
        return (
            f"Which arms reach {question.to_target:g} {question.columns.metric} sooner than {' and '.join(baselines)}?"
        )
    return f"Which arms are better than {' and '.join(baselines)} in {metric}?"


def _looks(question: TableQuestion, arms: Sequence[PlannedArm]) -> LookPlan | None:
    """Returns the looks that were stated, those taken that the arms have seeds for, and one more where they have seeds
    beyond the last of them."""
    if not question.looks:
        return None
    seeds = min(len(arm.runs) for arm in arms)
    taken = tuple(look for look in question.looks if look <= seeds)
    added = (seeds,) if seeds > question.looks[-1] else ()
    return LookPlan(question.looks, (*taken, *added))
