"""The table of forgetting: scores of another task, before and after the runs of each arm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.judge.retention import Forgetting, forgetting
from reports.read.study import Study
from reports.show.tables import Cell, Column, Table

__all__ = ["forgetting_table"]

DECIMALS = 4
METHOD = (
    "Before: the weights that the first stage of an arm starts from. After: the weights of its finished runs. The "
    "interval is over seeds."
)
LIMIT = "An arm gets a verdict only if the interval of its loss lies within the limit."


def forgetting_table(study: Study) -> Table:
    """Returns the table of each arm's scores before and after its runs, and their difference."""
    lines = [*forgetting(study)]
    has_limit = any(one.limit for one in study.plan.retention)
    columns = (
        Column(study.plan.labels.heading("Arm")),
        Column("Measurement"),
        Column("Before", "number", decimals=DECIMALS),
        Column("After", "number", decimals=DECIMALS),
        Column("Difference", "number", decimals=DECIMALS),
        Column("95 % interval", "interval", decimals=DECIMALS),
        *([Column("May get worse by"), Column("Within the limit")] if has_limit else []),
    )
    rows = tuple((*_measured(study, one), *(_limit(one) if has_limit else ())) for one in lines)
    title = "Forgetting: scores before and after the runs"
    return Table("forgetting", title, columns, rows, tuple(_notes(study, lines)))


def _measured(study: Study, one: Forgetting) -> tuple[Cell, ...]:
    """Returns the cells of an arm's scores before and after its runs, or the reason that they are missing."""
    arm, what = Cell(one.arm, label=study.plan.labels.in_column(one.arm)), Cell(one.retention.name)
    if one.difference is None:
        return arm, what, Cell(missing=one.missing), *[Cell()] * 3
    low, high = one.difference.interval or (None, None)
    return arm, what, Cell(one.before), Cell(one.after), Cell(one.difference.difference), Cell(low=low, high=high)


def _limit(one: Forgetting) -> tuple[Cell, Cell]:
    """Returns the limit of an arm's loss, and whether the arm keeps it."""
    limit = one.retention.limit
    if limit is None:
        return Cell("no limit"), Cell()
    return Cell(f"{limit.size:g}"), Cell("yes") if one.reason is None else Cell(missing=f"no: {one.reason}")


def _notes(study: Study, lines: Sequence[Forgetting]) -> Iterator[str]:
    """Yields the notes: the metric of each measurement, the limits with their reasons, and missing seeds."""
    label = study.plan.labels.alone
    for retention in study.plan.retention:
        better = "less" if retention.metric.goal == "minimize" else "more"
        yield f"{retention.name}: {retention.metric.title}; {better} is better."
        if retention.limit:
            yield f"Limit of {retention.name}: {retention.limit.reason.rstrip('.')}. {LIMIT}"
    for one in lines:
        if one.missing and one.difference:
            yield f"Without {one.retention.name} after {label(one.arm)}: {one.missing}."
    fresh = [arm for arm in study.arm_names if not any(one.arm == arm for one in lines)]
    if fresh:
        yield f"No weights to start from, so nothing to forget: {', '.join(map(label, fresh))}."
    yield METHOD
