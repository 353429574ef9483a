"""The tables and the sentence of a report on other learning rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.judge.findings import Findings
from reports.judge.rates import AtRate, arm_rates, at_rates
from reports.show.names import name_comparisons
from reports.show.tables import Cell, Column, Table

__all__ = ["rate_sentence", "rate_table", "rates_of_arms"]

NOTE = (
    "A verdict stands at a rate if it holds there in each of these seeds, and reverses if it holds in none. "
    "This is no test, and changes no verdict."
)
_NAMED = {0.5: "half", 2.0: "twice"}
_MOST = 3
_MEANINGS = {"stands": "stands", "reverses": "is reversed", "mixed": "holds in some seeds", None: "has no result"}


def rate_name(factor: float) -> str:
    """Returns which multiple of the study's learning rate another one is, in words."""
    return _NAMED.get(factor, f"{factor:g} times")


def rate_table(findings: Findings) -> Table:
    """Returns a table of the comparisons at other learning rates: the difference of each seed, and whether the verdict
    stands."""
    study, decimals = findings.study, findings.difference_decimals
    compared = at_rates(study, findings.comparisons)
    names = name_comparisons(study.plan, [one.comparison for one in compared])
    columns = (
        Column(names.heading("Comparison")),
        Column("Rate"),
        Column("Ratio" if findings.ratio else "Difference", "number", findings.metric.title, decimals),
        Column("Lowest", "number", findings.metric.title, decimals),
        Column("Highest", "number", findings.metric.title, decimals),
        Column("Seeds", "count"),
        Column("Verdict"),
        Column("At this rate"),
    )
    rows = tuple(
        (Cell(one.comparison.name, label=names.levels[one.comparison.name]), *_cells(findings, one)) for one in compared
    )
    missing = dict.fromkeys(text for one in compared for text in one.missing)
    notes = (NOTE, *(f"Missing at another rate: {text}." for text in missing))
    return Table("rates", "The comparisons at other learning rates", columns, rows, notes, findings.metric.title)


def _cells(findings: Findings, one: AtRate) -> tuple[Cell, ...]:
    rate = Cell(f"x{one.factor:g}")
    verdict = Cell(one.comparison.verdict) if one.comparison.verdict else Cell()
    if one.difference is None:
        reason = Cell(missing=one.missing[0] if one.missing else "not run")
        return rate, reason, Cell(), Cell(), Cell(0), verdict, Cell()
    values = [
        Cell(findings.as_printed(value)) for value in (one.difference, min(one.differences), max(one.differences))
    ]
    return rate, *values, Cell(len(one.differences)), verdict, Cell(one.standing) if one.standing else Cell()


def rates_of_arms(findings: Findings) -> Table:
    """Returns a table of the mean of each arm at each learning rate, and of the best rate."""
    study = findings.study
    rows = [*arm_rates(study)]
    factors = [*rows[0].means] if rows else []
    columns = (
        Column(study.plan.labels.heading("Arm")),
        *(Column(f"Rate x{factor:g}", "number", findings.metric.title, findings.decimals) for factor in factors),
        Column("Best"),
        Column("Seeds", "count"),
    )
    lines = tuple(
        (
            Cell(one.arm, label=study.plan.labels.in_column(one.arm)),
            *(Cell(one.means[factor]) for factor in factors),
            Cell(f"x{one.best(study.plan.metric.goal == 'minimize'):g}"),
            Cell(one.seeds),
        )
        for one in rows
    )
    notes = ("Means over the seeds that an arm has at all of these rates.",)
    return Table("arm_rates", "The arms at other learning rates", columns, lines, notes, findings.metric.title)


def rate_sentence(findings: Findings) -> str:
    """Returns in a sentence whether the verdicts that answer the question stand at other learning rates; nothing where
    none was measured."""
    rows = [one for one in at_rates(findings.study, findings.primary) if one.standing or one.missing]
    if not rows:
        return ""
    seeds = max(len(one.differences) for one in rows)
    by_text: dict[str, list[str]] = {}
    for factor in dict.fromkeys(one.factor for one in rows):
        group = [one for one in rows if one.factor == factor]
        by_text.setdefault("; ".join(_standings(findings, group)), []).append(rate_name(factor))
    text = ". ".join(f"At {' and '.join(rates)} the learning rate: {standings}" for standings, rates in by_text.items())
    return f"{text} ({seeds} seed{'s' if seeds != 1 else ''} each)."


def _standings(findings: Findings, group: Sequence[AtRate]) -> Iterator[str]:
    """Yields which verdicts of comparisons at one rate stand, reverse, hold in some seeds or lack runs there."""
    labels = name_comparisons(findings.study.plan, findings.primary).levels
    for standing, meaning in _MEANINGS.items():
        names = [labels[one.comparison.name] for one in group if one.standing == standing]
        if len(names) == len(group) > 1 and standing == "stands":
            yield f"all {len(group)} verdicts stand"
        elif names:
            more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
            yield f"{', '.join(names[:_MOST])}{more} {meaning}"
