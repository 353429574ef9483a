"""The order of the levels of a factor in two studies, as a table whose notes say how alike the two orders are."""

from __future__ import annotations

import math
from collections.abc import Iterator

from reports.judge.findings import Findings
from reports.judge.order import LevelMeans, LevelOrder
from reports.read.study import Study
from reports.show.answer import why_no_answer
from reports.show.tables import Cell, Column, Table, fixed, interval_text

__all__ = ["order_table"]

_DECIMALS = 3
_DECIMALS_OF_CORRELATION = 2


def order_table(order: LevelOrder, one: Study, other: Study) -> Table:
    """Returns a table of the levels with their means and ranks, from the best in the first study to the worst."""

    def columns_of(study: Study) -> tuple[Column, Column]:
        return Column(study.plan.study, "number", study.plan.metric.title, _DECIMALS), Column("Rank")

    def cells_of(side: LevelMeans) -> Iterator[tuple[Cell, Cell]]:
        for level, rank in order.ranks(side).items():
            mean = side.means[level]
            yield Cell(math.exp(mean) if side.evidence.ratio else mean), Cell(f"{rank:g}")

    columns = (Column(order.factor), *columns_of(one), *columns_of(other))
    both = zip(order.levels, cells_of(order.one), cells_of(order.other), strict=True)
    rows = tuple((Cell(level), *first, *second) for level, first, second in both)
    return Table("order", f"Order of {order.factor} in both studies", columns, rows, (*_notes(order, one, other),))


def _notes(order: LevelOrder, one: Study, other: Study) -> Iterator[str]:
    """Yields the rank correlation, the pairs that both studies decide, and why a study may not answer."""
    count, rho, interval = len(order.levels), order.correlation, order.interval
    if rho is None:
        yield f"There is no rank correlation: all {count} levels of one study have the same mean."
    else:
        ends = f"{interval_text(*interval, _DECIMALS_OF_CORRELATION)}, " if interval else ""
        value = fixed(rho, _DECIMALS_OF_CORRELATION)
        yield f"Spearman's rank correlation over {count} levels: {value} ({ends}p = {order.p:.2g} by permutations)."
        if interval:
            yield "The interval is over levels (Bonett and Wright 2000). Noise of seeds pulls the correlation to 0."
        else:
            yield "A correlation of 1 or -1 has no interval."
    pairs, decided, alike = order.agreed
    opposite = f"{alike} in the same order, {decided - alike} in opposite orders"
    yield f"Both studies decide {decided} of {pairs} pairs of levels, each at 95 %: {opposite}."
    for study in (one, other):
        if reason := why_no_answer(Findings(study, ())):
            yield f"{study.plan.study}: {reason}"
