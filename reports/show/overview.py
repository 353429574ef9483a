"""The content of the gallery: the findings, the answers of each study, disagreements, and unresolved comparisons.

``page`` is the name of the page of a study, to which links lead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

from reports.judge.agreement import (
    AGREEMENTS,
    EQUALITY_RULE,
    RULE,
    WITHDRAWN_RULE,
    GalleryEntry,
    JudgedComparison,
    chance_of,
)
from reports.judge.comparisons import Comparison
from reports.judge.effects import RelativeEffect, relative_effect
from reports.judge.findings import Findings
from reports.judge.systems import UNSOURCED
from reports.show.answer import costs_text, effect_text, seeds_or_infinity, why_no_answer
from reports.show.remarks import remark_text
from reports.show.sections import seeds_needed
from reports.show.tables import Cell, Column, Table, fixed_with_sign, interval_text

TITLE = "Gallery of published studies"
NOTHING_DECIDED = "Nothing is decided yet."
NO_DISAGREEMENT = "No decided comparison disagrees with its source."
MOST_FINDINGS = 10
NOTHING_UNRESOLVED = "Nothing is unresolved."
NOT_JUDGED = "not judged"
_MOST_ANSWERS, _MOST_NAMES = 3, 3
_DECIDED = ("better", "worse", "equal", "identical")
VERDICTS = ("better", "worse", "equal", "identical", "differs", "unresolved", NOT_JUDGED, "withdrawn")


class Finding(NamedTuple):
    """A decided comparison as a sentence: its study and system (empty without a source), then its name, its verdict and
    size, and the rest."""

    study: str
    address: str
    system: str
    comparison: str
    verdict: str
    size: str
    rest: str


class Answer(NamedTuple):
    """A comparison that answers the question of a study: its name, without the baseline, its verdict, and its size in
    per cent."""

    judged: JudgedComparison
    name: str
    verdict: str
    effect: RelativeEffect | None

    @property
    def percent(self) -> str:
        """The effect in per cent with its interval, as text; empty where it has no size in per cent."""
        return percent_text(self.effect) if self.effect else ""


class Disagreement(NamedTuple):
    """A comparison that disagrees with its source: study, name, both results in a sentence, and the explanation."""

    study: str
    address: str
    comparison: str
    results: str
    remark: str


def by_system(entries: Sequence[GalleryEntry]) -> dict[str, list[GalleryEntry]]:
    """Groups the studies by system, in the order of the systems' names, with those without a source last."""
    order = sorted({entry.system for entry in entries}, key=lambda system: (system == UNSOURCED, system.casefold()))
    return {system: [entry for entry in entries if entry.system == system] for system in order}


def summary(entries: Sequence[GalleryEntry]) -> str:
    """Returns a text on the question of the gallery, the number of comparisons with each agreement, and the runs that
    several studies have in common, which are no second piece of evidence."""
    agreements = Counter(judged.agreement for entry in entries for judged in entry.judged)
    withdrawn = [entry.name for entry in entries if entry.findings.study.withdrawn]
    number = len(entries) - len(withdrawn)
    counted = (
        f"{number} stud{'y' if number == 1 else 'ies'}, {sum(agreements[name] for name in AGREEMENTS)} comparisons"
    )
    tally = ", ".join(f"{name} {agreements[name]}" for name in AGREEMENTS)
    chance = chance_of(entries)
    if chance.directional:
        tally += (
            f". Of {chance.directional} with a direction {chance.agree} have that of their source, where chance gives "
            f"half (p = {chance.p:.2f}, studies as clusters)"
        )
    apart = f" Withdrawn, and not counted: {', '.join(withdrawn)}." if withdrawn else ""
    return (
        "Which changes to a Transformer help, how much, at which cost, and does the paper that proposed them agree? "
        f"{counted}: {tally}.{apart}{_shared(entries)}"
    )


def _shared(entries: Sequence[GalleryEntry]) -> str:
    studies = Counter(key for entry in entries for key in {*entry.findings.study.plan.by_key()})
    several = sum(count > 1 for count in studies.values())
    return f" {several} of the {len(studies)} runs stand in more than one study." if several else ""


def findings_of(entries: Sequence[GalleryEntry], page: str) -> list[Finding]:
    """Returns the clearest decided comparisons that answer a question, at most one a study, the clearest first.

    Effects have different units, and cannot be sorted by size. How clear one is, its size relative to the half-width of
    its interval, has none. A study with published numbers gives one that has such a number.
    """
    clearest: dict[str, tuple[GalleryEntry, JudgedComparison]] = {}
    for entry in entries:
        decided = [one for one in _primary(entry) if verdict_of(entry.findings, one.comparison) in _DECIDED]
        if decided:
            best = max(decided, key=lambda judged: (judged.has_counterpart, _clearness(judged.comparison)))
            study = entry.findings.study.plan.study
            if study not in clearest or _clearness(best.comparison) > _clearness(clearest[study][1].comparison):
                clearest[study] = entry, best
    ordered = sorted(clearest.values(), key=lambda pair: -_clearness(pair[1].comparison))
    return [_finding(entry, judged, page) for entry, judged in ordered[:MOST_FINDINGS]]


def findings_note(chosen: Sequence[Finding]) -> str:
    """Returns a text on how the findings were chosen."""
    return (
        f"The {len(chosen)} clearest answers of studies able to answer, at most one a study: those with the largest "
        "effect relative to its 95 % interval, which stands in brackets. Per cent: relative to the arm compared with."
    )


def _finding(entry: GalleryEntry, judged: JudgedComparison, page: str) -> Finding:
    findings, comparison = entry.findings, judged.comparison
    effect = relative_effect(entry.name, findings, judged)
    has_size = comparison.verdict not in ("equal", "identical") and not findings.ratio
    size = f" by {abs(effect.ours):.3g} %" if isinstance(effect, RelativeEffect) and has_size else ""
    cost = costs_text(findings, comparison, level="")
    source = "no published number"
    if judged.has_counterpart:
        source = f"the source {judged.agreement} ({_source_text(entry, judged)})"
    return Finding(
        entry.name,
        address(entry, page),
        "" if entry.system == UNSOURCED else entry.system,
        comparison.name,
        comparison.verdict or "",
        size,
        f", {effect_text(findings, comparison)}{f', at {cost}' if cost else ''}; {source}.",
    )


def address(entry: GalleryEntry, page: str) -> str:
    """Returns the address of the page of a study."""
    return f"{quote(entry.name)}/{page}"


def _primary(entry: GalleryEntry) -> list[JudgedComparison]:
    """Returns the comparisons that answer the question of a study, each as it is judged against the source."""
    judged = {one.comparison.name: one for one in entry.judged}
    return [
        judged.get(one.name) or JudgedComparison(one, None, "no published number") for one in entry.findings.primary
    ]


def answers(entry: GalleryEntry) -> list[Answer]:
    """Returns the comparisons that answer the question of a study: first those with a published number, then the
    clearest."""
    primary = sorted(_primary(entry), key=lambda one: (not one.has_counterpart, -_clearness(one.comparison)))
    chosen = []
    for one in primary:
        effect = relative_effect(entry.name, entry.findings, one)
        verdict = verdict_of(entry.findings, one.comparison)
        name = one.comparison.name.removesuffix(" against the baseline")
        chosen.append(Answer(one, name, verdict, effect if isinstance(effect, RelativeEffect) else None))
    return chosen


def shown(chosen: Sequence[Answer]) -> Sequence[Answer]:
    """Returns the answers that the row of a study shows: one where none was judged."""
    return chosen[: _MOST_ANSWERS if any(one.verdict != NOT_JUDGED for one in chosen) else 1]


def further(chosen: Sequence[Answer]) -> str:
    """Returns a text that counts the verdicts of the answers that the row of a study omits; empty without any."""
    rest = Counter(answer.verdict for answer in chosen[len(shown(chosen)) :])
    tally = ", ".join(f"{rest[verdict]} {verdict}" for verdict in VERDICTS if rest[verdict])
    return f"further answers: {tally}" if rest else ""


def agreements_text(entry: GalleryEntry) -> str:
    """Returns a text that counts the agreements of all comparisons of a study with its source; empty without any."""
    numbers = Counter(one.agreement for one in entry.judged if one.has_counterpart)
    return ", ".join(f"{name} {numbers[name]}" for name in AGREEMENTS if numbers[name])


def answers_table(entries: Sequence[GalleryEntry], page: str) -> Table:
    """Returns a table with a row for each study, by system: its question, its answer, and its agreement."""
    rows = tuple(
        (Cell(system if number == 0 else ""), *_answer_cells(entry, page))
        for system, studies in by_system(entries).items()
        for number, entry in enumerate(studies)
    )
    notes = (
        "An arm alone is compared with the baseline. Per cent: the change of the metric relative to the arm compared "
        "with, positive where better, with its 95 % interval. Source: the number of comparisons of the study with each "
        "agreement.",
    )
    return Table(
        "answers", "Studies", tuple(map(Column, ("System", "Study", "Question", "Answer", "Source"))), rows, notes
    )


def _answer_cells(entry: GalleryEntry, page: str) -> tuple[Cell, ...]:
    chosen = answers(entry)
    texts = [f"{one.name}: {', '.join(filter(None, [one.verdict, one.percent]))}" for one in shown(chosen)]
    withdrawn = [why_no_answer(entry.findings)] if entry.findings.study.withdrawn else []
    text = "; ".join(withdrawn or filter(None, [*texts, further(chosen)]))
    question = entry.findings.study.plan.question
    return _study_cell(entry, page), Cell(question), Cell(text or None), Cell(agreements_text(entry) or None)


def verdict_of(findings: Findings, comparison: Comparison) -> str:
    """Returns the verdict on a comparison, that it was not judged, or that its study is withdrawn."""
    if findings.study.withdrawn:
        return "withdrawn"
    if comparison.verdict is None or not findings.can_answer(comparison.weights):
        return NOT_JUDGED
    return comparison.verdict


def percent_text(effect: RelativeEffect) -> str:
    """Returns an effect in per cent with its sign and its interval, to two digits of the interval's half-width."""
    width = effect.interval.high - effect.interval.low if effect.interval else abs(effect.ours)
    decimals = min(2, max(0, 1 - math.floor(math.log10(width / 2)))) if width else 2
    text = fixed_with_sign(effect.ours, decimals)
    return f"{text} % ({interval_text(*effect.interval, decimals)})" if effect.interval else f"{text} %"


def _answered(entry: GalleryEntry) -> list[JudgedComparison]:
    """Returns the comparisons of which an answer can be expected."""
    return [judged for judged in entry.judged if entry.findings.can_answer(judged.comparison.weights)]


def _clearness(comparison: Comparison) -> float:
    """Returns the size of a difference as a multiple of the half-width of its interval."""
    estimate = comparison.estimate
    if estimate is None or estimate.interval is None:
        return 0.0
    width = estimate.interval.high - estimate.interval.low
    return 2 * abs(estimate.difference) / width if width else math.inf


def _study_cell(entry: GalleryEntry, page: str) -> Cell:
    return Cell(entry.name, link=address(entry, page))


def _source_text(entry: GalleryEntry, judged: JudgedComparison) -> str:
    published = entry.findings.study.plan.published
    assert published is not None and judged.published is not None
    return f"{signed(judged.published)} {published.metric}"


def signed(value: float) -> str:
    """Returns a difference as text with its sign and up to six significant digits; zero has no sign."""
    text = f"{abs(value):.6g}"
    return text if value == 0 else f"{'+' if value > 0 else '-'}{text}"


def disagreements(entries: Sequence[GalleryEntry], page: str) -> list[Disagreement]:
    """Returns the comparisons that disagree with their source, in the order of studies."""
    return [
        Disagreement(
            entry.name,
            address(entry, page),
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
    """Returns a table of the studies with unresolved comparisons, and of the seeds that these need."""
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
        "The seeds needed are those that would decide four times out of five, by what the present ones leave possible.",
    )
    return Table("open", "Unresolved comparisons and the seeds they need", columns, rows, notes)


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


def changed_verdicts(entries: Sequence[GalleryEntry], page: str) -> Table:
    """Returns a table of the comparisons that have another verdict than the one which they were published with."""
    columns = (Column("Study"), Column("Comparison"), Column("Former verdict"), Column("Verdict"), Column("Why"))
    rows = []
    for entry in entries:
        for one in entry.findings.comparisons:
            former, now = entry.former.get(one.name), one.verdict or "none"
            if former and former != now:
                why = one.doubt or one.reason or ""
                rows.append((_study_cell(entry, page), Cell(one.name), Cell(former), Cell(now), Cell(why)))
    notes = (
        "The judgement has changed since these studies were measured: it holds where some seeds learn late, where "
        "differences are skewed, and where arms know all or nothing. Nothing was trained anew.",
    )
    return Table("changed", "Verdicts that the judgement has changed", columns, tuple(rows), notes)


def not_judged(entries: Sequence[GalleryEntry], page: str) -> Table:
    """Returns a table of the comparisons and arms that were not judged, with the reasons: the baseline was trained too
    little or gains too little from its context, two arms could not be compared, or this scale omits an arm."""
    rows = tuple(
        (_study_cell(entry, page), Cell(names), Cell(reason)) for entry in entries for names, reason in _reasons(entry)
    )
    columns = (Column("Study"), Column("Not judged"), Column("Reason"))
    return Table("not_judged", "Not judged, and why", columns, rows)


def _reasons(entry: GalleryEntry) -> Iterator[tuple[str, str]]:
    """Yields names of comparisons or arms of a study that were not judged, and the reason that they share."""
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


def beyond_the_scale(left_out: Sequence[str]) -> str:
    """Returns a text on the comparisons that the figure of effects omits; nothing without any."""
    return f"Omitted, because they have no size in per cent: {'; '.join(left_out)}." if left_out else ""


def unmeasured_floors(entries: Sequence[GalleryEntry]) -> str:
    """Returns a text on the studies without a measured floor; nothing without any."""
    names = [entry.name for entry in entries if entry.findings.study.floors is None]
    if not names:
        return ""
    return (
        f"The floors of {len(names)} of {len(entries)} studies are not known, so their baselines may have learned too "
        f"little to answer: {', '.join(names)}. A new run measures the floor, as does: python -m ablations floors STUDY"
    )


def rules(entries: Sequence[GalleryEntry]) -> list[str]:
    """Returns the rules of agreement as paragraphs: of equality where a study states a margin, of withdrawal where a
    study is withdrawn."""
    equality = [EQUALITY_RULE] if any(entry.findings.margin for entry in entries) else []
    withdrawn = [WITHDRAWN_RULE] if any(entry.findings.study.withdrawn for entry in entries) else []
    return [RULE, *equality, *withdrawn]
