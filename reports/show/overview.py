"""What the gallery opens with: what was decided, what disagrees with its source, and what is open.

``page`` is the name of the page of a study, to which the tables link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

from reports.judge.agreement import GalleryEntry, JudgedComparison
from reports.judge.comparisons import Comparison
from reports.judge.findings import Findings
from reports.show.answer import costs_text, effect_text, seeds_or_infinity, why_no_answer
from reports.show.remarks import remark_text
from reports.show.sections import seeds_needed
from reports.show.tables import Cell, Column, Table

MOST_OF_A_STUDY = 3
"""The number of decided comparisons of one study that the table of findings shows."""
NOTHING_OPEN = "Nothing is open."
_MOST_NAMES = 3
_DECIDED = ("better", "worse", "equal")


class Disagreement(NamedTuple):
    """A comparison that disagrees with its source: study, name, both results in a sentence, and the explanation."""

    study: str
    address: str
    comparison: str
    results: str
    remark: str


def verdicts(entries: Sequence[GalleryEntry], page: str) -> Table:
    """Returns a table of what was decided by studies that were able to answer, the clearest first.

    Effects have different units. What they share is their size relative to the half-width of their interval, which says
    how clear each is.
    """
    decided = [(entry, _decided(entry)) for entry in entries]
    shown = [(entry, judged) for entry, all_of_it in decided for judged in all_of_it[:MOST_OF_A_STUDY]]
    shown.sort(key=lambda pair: -_clearness(pair[1].comparison))
    columns = ("Study", "Comparison", "Effect", "Verdict", "Cost", "The source", "Floor")
    notes = [
        "Sorted by the size of effects relative to the half-widths of their intervals, which says how clear they are, "
        "not how important. Intervals, in brackets, are at 95 %. Cost: as a multiple of that of the second arm. "
        "Floor: whether the baseline beats what simple predictors reach on the same data, so that it is able to answer."
    ]
    more = {entry.name: len(rest) for entry, all_of_it in decided if (rest := all_of_it[MOST_OF_A_STUDY:])}
    if more:
        names = ", ".join(f"{name} {number}" for name, number in more.items())
        notes.append(
            f"Of a study at most {MOST_OF_A_STUDY} are shown, those with a published number first. "
            f"{sum(more.values())} more are decided, and stand in the tables of their studies below: {names}."
        )
    rows = tuple(_verdict_row(entry, judged, page) for entry, judged in shown)
    return Table("findings", "Decided comparisons", tuple(map(Column, columns)), rows, tuple(notes))


def _answered(entry: GalleryEntry) -> list[JudgedComparison]:
    """Returns the comparisons of which an answer can be expected."""
    return [judged for judged in entry.judged if entry.findings.can_answer(judged.comparison.weights)]


def _decided(entry: GalleryEntry) -> list[JudgedComparison]:
    """Returns a study's decided comparisons that it was able to answer: those with a published number first, then from
    the clearest on."""
    decided = [judged for judged in _answered(entry) if judged.comparison.verdict in _DECIDED]
    return sorted(decided, key=lambda judged: (not judged.has_counterpart, -_clearness(judged.comparison)))


def _clearness(comparison: Comparison) -> float:
    """Returns the size of a difference as a multiple of the half-width of its interval."""
    estimate = comparison.estimate
    if estimate is None or estimate.interval is None:
        return 0.0
    width = estimate.interval.high - estimate.interval.low
    return 2 * abs(estimate.difference) / width if width else math.inf


def _verdict_row(entry: GalleryEntry, judged: JudgedComparison, page: str) -> tuple[Cell, ...]:
    findings, comparison = entry.findings, judged.comparison
    return (
        _study_cell(entry, page),
        Cell(comparison.name),
        Cell(effect_text(findings, comparison)),
        Cell(comparison.verdict),
        Cell(costs_text(findings, comparison, level="") or None),
        Cell(f"{_source_text(entry, judged)}: {judged.agreement}" if judged.has_counterpart else None),
        Cell(_floor_text(findings)),
    )


def _study_cell(entry: GalleryEntry, page: str) -> Cell:
    return Cell(entry.name, link=f"{quote(entry.name)}/{page}")


def _source_text(entry: GalleryEntry, judged: JudgedComparison) -> str:
    published = entry.findings.study.plan.published
    assert published is not None and judged.published is not None
    return f"{signed(judged.published)} {published.metric}"


def _floor_text(findings: Findings) -> str:
    if findings.study.floors is None:
        return "not measured"
    return "beaten" if findings.study.floor else "none"


def signed(value: float) -> str:
    """Returns a difference as text with its sign and up to six significant digits; zero has no sign."""
    text = f"{abs(value):.6g}"
    return text if value == 0 else f"{'+' if value > 0 else '-'}{text}"


def disagreements(entries: Sequence[GalleryEntry], page: str) -> list[Disagreement]:
    """Returns what disagrees with its source, in the order of studies."""
    return [
        Disagreement(
            entry.name,
            f"{quote(entry.name)}/{page}",
            judged.comparison.name,
            f"The source: {_source_text(entry, judged)}. "
            f"Here: {effect_text(entry.findings, judged.comparison)}, {judged.comparison.verdict}.",
            remark_text(judged),
        )
        for entry in entries
        for judged in entry.judged
        if judged.agreement == "disagrees"
    ]


def open_comparisons(entries: Sequence[GalleryEntry], page: str) -> Table:
    """Returns a table of the studies with unresolved comparisons, and of the seeds that these would take."""
    columns = (
        Column("Study"),
        Column("Unresolved"),
        Column("Seeds so far", "count"),
        Column("Nearest to a verdict"),
        Column("Seeds it needs"),
        Column("Seeds half of them need"),
        Column("Seeds all of them need"),
    )
    rows = tuple(row for entry in entries if (row := _open_row(entry, page)))
    notes = (
        "The seeds needed are those that would show, four times out of five, the observed difference or that it lies "
        "within the study's margin.",
    )
    return Table("open", "Unresolved comparisons", columns, rows, notes)


def _open_row(entry: GalleryEntry, page: str) -> tuple[Cell, ...] | None:
    comparisons = [judged.comparison for judged in _answered(entry) if judged.comparison.verdict == "unresolved"]
    if not comparisons:
        return None
    comparisons.sort(key=seeds_or_infinity)
    half, last = comparisons[(len(comparisons) - 1) // 2], comparisons[-1]
    return (
        _study_cell(entry, page),
        Cell(f"{len(comparisons)} of {len(entry.judged)}"),
        Cell(max(one.estimate.seeds for one in comparisons if one.estimate)),
        Cell(comparisons[0].name),
        *(Cell(seeds_needed(one)) for one in (comparisons[0], half, last)),
    )


def unasked(entries: Sequence[GalleryEntry], page: str) -> Table:
    """Returns a table of what studies did not ask here, with the reasons: the baseline was trained too little or gains
    too little from its context, two arms could not be compared, or an arm is left out at this scale."""
    rows = tuple(
        (_study_cell(entry, page), Cell(names), Cell(reason)) for entry in entries for names, reason in _unasked(entry)
    )
    columns = (Column("Study"), Column("Not asked"), Column("Reason"))
    return Table("unasked", "Not asked, and why", columns, rows)


def _unasked(entry: GalleryEntry) -> Iterator[tuple[str, str]]:
    """Yields names of comparisons or arms of a study that was not asked about, and the reason that they share."""
    findings = entry.findings
    names_by_reason: dict[str, list[str]] = {}
    answered = _answered(entry)
    unanswered = [judged.comparison.name for judged in entry.judged if judged not in answered]
    if unanswered:
        names_by_reason[why_no_answer(findings)] = unanswered if answered else ["every comparison"]
    for judged in answered:
        if judged.comparison.reason and judged.comparison.verdict is None:
            names_by_reason.setdefault(judged.comparison.reason, []).append(judged.comparison.name)
    for name, why in findings.study.plan.omissions.items():
        reason = f"not at scale {findings.study.plan.scale or 'demo'}: {why}"
        names_by_reason.setdefault(reason, []).append(name)
    for reason, names in names_by_reason.items():
        rest = len(names) - _MOST_NAMES
        yield "; ".join(names[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else ""), reason


def open_parts(entries: Sequence[GalleryEntry], page: str) -> tuple[list[Table], list[str]]:
    """Returns the tables of what is open and was not asked, without those that are empty, and the text after them."""
    tables = [table for table in (open_comparisons(entries, page), unasked(entries, page)) if table.rows]
    floors = unmeasured_floors(entries)
    return tables, [floors] if floors else [] if tables else [NOTHING_OPEN]


def beyond_the_scale(left_out: Sequence[str]) -> str:
    """Returns a text on the comparisons that the figure of effects cannot show; nothing without any."""
    return f"Not on this scale: {'; '.join(left_out)}." if left_out else ""


def unmeasured_floors(entries: Sequence[GalleryEntry]) -> str:
    """Returns a text on the studies of which it is not known whether they were able to answer; nothing without any."""
    names = [entry.name for entry in entries if entry.findings.study.floors is None]
    if not names:
        return ""
    return (
        f"The floor of {len(names)} of {len(entries)} studies was not measured, so that it is not known whether their "
        "baselines had learned enough to answer; it is measured when they are run again, or of the data that they have "
        f"read by: python -m ablations floors STUDY. These are {', '.join(names)}."
    )
