"""The table that compares the differences of a study with those of its source."""

from __future__ import annotations

from reports.judge.agreement import GalleryEntry, JudgedComparison, published_margin
from reports.judge.findings import Findings
from reports.show.names import name_comparisons
from reports.show.overview import signed
from reports.show.tables import Cell, Column, Table

__all__ = ["against_source"]


def against_source(entry: GalleryEntry) -> Table:
    """Returns a table of a study's comparisons: the source's difference, ours, and whether they agree."""
    findings = entry.findings
    plan, decimals = findings.study.plan, findings.difference_decimals
    names = name_comparisons(plan, [judged.comparison for judged in entry.judged])
    columns = (
        Column(names.heading("Comparison")),
        Column("The source", unit=plan.published.metric if plan.published else ""),
        Column("Ratio here" if findings.ratio else "Difference here", "number", findings.metric.title, decimals),
        Column("95 % interval", "interval", findings.metric.title, decimals),
        Column("Verdict"),
        Column("Agreement"),
    )
    rows = tuple(
        (Cell(one.comparison.name, label=names.levels[one.comparison.name]), *_cells(findings, one))
        for one in entry.judged
    )
    notes = (f"Equal: {findings.margin}. {_source_margin(entry)}".strip(),) if findings.margin else ()
    return Table(f"source_{entry.name}", f"{entry.name} and its source", columns, rows, notes)


def _source_margin(entry: GalleryEntry) -> str:
    """Returns in words how large a published difference agrees with equality; nothing where none is published."""
    published = entry.findings.study.plan.published
    if published is None or all(judged.published is None for judged in entry.judged):
        return ""
    size = published_margin(entry.findings)
    return (
        f"A published {'ratio' if entry.findings.ratio else 'difference'} below {size:g} ({published.metric}) agrees."
    )


def _cells(findings: Findings, judged: JudgedComparison) -> tuple[Cell, ...]:
    comparison, estimate = judged.comparison, judged.comparison.estimate
    published = Cell() if judged.published is None else Cell(signed(judged.published))
    agreement = Cell(judged.agreement)
    if estimate is None:
        return published, Cell(missing=comparison.reason), Cell(), Cell(), agreement
    verdict = Cell(comparison.verdict) if comparison.verdict else Cell(missing=f"none: {comparison.reason}")
    ends = Cell()
    if estimate.interval is not None:
        ends = Cell(low=findings.as_printed(estimate.interval.low), high=findings.as_printed(estimate.interval.high))
    return published, Cell(findings.as_printed(estimate.difference)), ends, verdict, agreement
