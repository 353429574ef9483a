"""The table of hyperparameter search results of each arm, where a study was tuned."""

from __future__ import annotations

from lit_transformers.printing.amounts import assignments
from reports.read.study import Study
from reports.show.tables import Cell, Column, Table

__all__ = ["tuned"]


def tuned(study: Study, decimals: int) -> Table:
    """Returns a table with a row for each arm: the extent of its search, and its best values with their result.

    It is empty where the study was not tuned.
    """
    tuning = study.plan.tuning
    if tuning is None:
        return Table("tuning", "", (), ())
    columns = (
        Column(study.plan.labels.heading("Arm")),
        Column("Trials", "count"),
        Column("Pruned", "count", detail=True),
        Column("Failed", "count", detail=True),
        Column("Tokens", "count", detail=True),
        Column(f"Best on {tuning.selected_on}", "number", decimals=max(3, decimals)),
        Column("Best values"),
    )
    rows = tuple(
        (
            Cell(name, label=study.plan.labels.in_column(name)),
            Cell(arm.trials),
            Cell(arm.pruned),
            Cell(arm.failed),
            Cell(arm.tokens or None),
            Cell(arm.value),
            Cell("none finished" if arm.values is None else " ".join(assignments(arm.values))),
        )
        for name, arm in tuning.arms.items()
    )
    search_split, report_split = tuning.selected_on, tuning.reported_on
    note = f"The best of many trials on {search_split} flatters; the comparison was measured on {report_split}."
    return Table("tuning", "Tuned values", columns, rows, (note,))
