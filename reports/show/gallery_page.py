"""The gallery as one self-contained HTML page: findings, then a row for each study, then folded parts.

A row draws the comparisons that answer the question of a study, all on one scale: the change in per cent of the value
of the arm compared with, better to the right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from reports.judge.agreement import AGREEMENTS, GalleryEntry
from reports.judge.effects import RelativeEffect
from reports.judge.fairness import environments, repetitions
from reports.show.against_source import against_source
from reports.show.answer import effect_text, sentence, why_no_answer
from reports.show.html import ParentPage, anchor, contents, document, folded_parts
from reports.show.markup import Html, details, element, joined, name_of, paragraphs
from reports.show.overview import (
    NO_DISAGREEMENT,
    NOT_JUDGED,
    NOTHING_DECIDED,
    NOTHING_UNRESOLVED,
    TITLE,
    VERDICTS,
    Answer,
    Finding,
    address,
    agreements_text,
    answers,
    by_system,
    changed_verdicts,
    disagreements,
    findings_note,
    findings_of,
    further,
    not_judged,
    open_comparisons,
    rules,
    shown,
    summary,
    unmeasured_floors,
)
from reports.show.picture import interval_mark, interval_row, line_mark, mean_mark
from reports.show.screen import IntervalScale, cost_multiple
from reports.show.sections import floor_text
from reports.show.tables import VERDICT_STYLES, fixed, to_html

__all__ = ["gallery_page"]

_LINEAR, _STEP = 1.0, 0.7
"""The change in per cent up to which the scale is linear, and its length as a multiple of a decade."""
_LARGEST = 1000.0
"""The largest change in per cent that is drawn in its place."""
_TICKS = (1, 10, 100, 1000)
_LABELLED = (0, 100, -100)
"""The ticks that have a label on a narrow page, too."""
_LEGEND = """\
Change in per cent relative to the arm compared with, the baseline where none is named; right is better. The scale is \
linear up to 1 %, logarithmic beyond, and ends at 1000 % with an arrow. Bars are 95 % intervals, points means, and \
upright lines published changes, dashed where the source has another metric, so that only directions can be compared. \
Cost: FLOPs per token relative to the arm compared with, or time where FLOPs are not counted."""


def gallery_page(entries: Sequence[GalleryEntry], page: str, parent: ParentPage | None = None) -> str:
    """Returns the whole page; links lead to the page of this name of each study."""
    facts = [f"{len(entries)} studies", f"{sum(len(entry.judged) for entry in entries)} comparisons"]
    withdrawn = sum(bool(entry.findings.study.withdrawn) for entry in entries)
    facts += [f"{withdrawn} withdrawn"] if withdrawn else []
    return document(TITLE, facts, _sections(entries, page), parent)


def _sections(entries: Sequence[GalleryEntry], page: str) -> Iterator[Html]:
    systems = by_system(entries)
    parts = {title: content for title, inside in _parts(entries, page) if (content := joined(inside))}
    yield element("p", summary(entries), class_="answer")
    yield element("h2", "Findings", id=anchor("Findings"))
    chosen = findings_of(entries, page)
    yield element("ol", *map(_finding, chosen), class_="findings") if chosen else element("p", NOTHING_DECIDED)
    yield element("p", findings_note(chosen), class_="note") if chosen else Html()
    yield element("h2", "Studies", id=anchor("Studies"))
    yield contents([*systems, *parts])
    answers_by_study = {entry.name: answers(entry) for entry in entries}
    yield _filters(answers_by_study, entries)
    scale = _scale(one.effect for of_study in answers_by_study.values() for one in shown(of_study))
    yield element("p", _LEGEND, class_="note")
    axis = element("div", element("div"), _axis(scale), class_="study scale", aria_hidden="true")
    yield element("div", axis, *(_system(system, systems[system], answers_by_study, scale, page) for system in systems))
    yield from folded_parts(parts)


def _system(
    system: str,
    studies: Sequence[GalleryEntry],
    chosen: Mapping[str, Sequence[Answer]],
    scale: IntervalScale,
    page: str,
) -> Html:
    """Returns the rows of the studies of a system below its name."""
    rows = (_study(entry, chosen[entry.name], scale, page) for entry in studies)
    return element("section", element("h3", system, id=anchor(system)), *rows, class_="system")


def _finding(finding: Finding) -> Html:
    colour = finding.verdict if finding.verdict in VERDICT_STYLES else "none"
    system = f", {finding.system}" if finding.system else ""
    study = element("span", element("a", finding.study, href=finding.address), system, class_="facts")
    verdict = element("span", f"{finding.verdict}{finding.size}", class_=colour)
    return element("li", study, element("span", name_of(finding.comparison), ": ", verdict, finding.rest))


def _filters(chosen: Mapping[str, Sequence[Answer]], entries: Sequence[GalleryEntry]) -> Html:
    """Returns a choice of verdict and one of agreement, which the script of the page shows."""
    verdicts = [_verdicts(chosen[entry.name]) for entry in entries]
    agreements = [_agreements(entry) for entry in entries]
    return element(
        "div",
        _choice("Verdict", "verdicts", VERDICTS, verdicts),
        _choice("Agreement with the source", "agreements", (*AGREEMENTS, "withdrawn"), agreements),
        element("output", f"{len(entries)} of {len(entries)} studies"),
        class_="filters",
        hidden=True,
    )


def _choice(title: str, name: str, values: Iterable[str], of_studies: Sequence[set[str]]) -> Html:
    numbers = {value: sum(value in one for one in of_studies) for value in values}
    options = [element("option", f"{value} ({number})", value=value) for value, number in numbers.items() if number]
    choice = element("select", element("option", "all", value=""), *options, data_filter=name)
    return element("label", f"{title} ", choice)


def _verdicts(chosen: Sequence[Answer]) -> set[str]:
    return {answer.verdict for answer in chosen}


def _agreements(entry: GalleryEntry) -> set[str]:
    return {judged.agreement for judged in entry.judged}


def _study(entry: GalleryEntry, chosen: Sequence[Answer], scale: IntervalScale, page: str) -> Html:
    """Returns the row of a study: its name, question and agreement, and the comparisons that answer the question."""
    study = entry.findings.study
    verdicts = [verdict for verdict in VERDICTS if verdict in _verdicts(chosen)]
    agreements = [name for name in (*AGREEMENTS, "withdrawn") if name in _agreements(entry)]
    agreement, rest = agreements_text(entry), further(chosen)
    rows = element("div", *(_answer(entry, one, scale) for one in shown(chosen)), role="list")
    if study.withdrawn:
        rows = element("p", why_no_answer(entry.findings), class_="unresolved")
    return element(
        "article",
        element(
            "div",
            element("a", name_of(entry.name), href=address(entry, page), class_="name"),
            element("p", name_of(study.plan.question)),
            element("p", f"Source: {agreement}", class_="note") if agreement else Html(),
        ),
        element("div", rows, element("p", f"{rest[0].upper()}{rest[1:]}", class_="note") if rest else Html()),
        class_="study",
        data_verdicts="|".join(verdicts),
        data_agreements="|".join(agreements),
    )


def _answer(entry: GalleryEntry, answer: Answer, scale: IntervalScale) -> Html:
    findings, comparison = entry.findings, answer.judged.comparison
    effect = answer.percent or effect_text(findings, comparison) or comparison.reason or ""
    cost = cost_multiple(findings.study, [*comparison.weights]) if comparison.kind == "contrast" else "-"
    costs = element("small", f"cost {cost}") if cost != "-" else Html()
    note = _note(entry, answer)
    marks = _marks(answer.effect, scale) if answer.effect else []
    return interval_row(answer.name, marks, joined([effect, costs]), answer.verdict, note, _text(entry, answer))


def _note(entry: GalleryEntry, answer: Answer) -> str:
    """Returns the agreement with the source, or why the answer was not judged; empty where neither is known."""
    if answer.judged.agreement in ("agrees", "disagrees"):
        return f"source {answer.judged.agreement}"
    if answer.verdict != NOT_JUDGED:
        return ""
    return (why_no_answer(entry.findings) or answer.judged.comparison.reason or "").partition(":")[0].lower()


def _text(entry: GalleryEntry, answer: Answer) -> str:
    """Returns the row of an answer as a sentence."""
    reason = why_no_answer(entry.findings) if answer.verdict == NOT_JUDGED else ""
    return " ".join(filter(None, [reason, sentence(entry.findings, answer.judged.comparison)]))


def _marks(effect: RelativeEffect, scale: IntervalScale) -> list[Html]:
    """Returns the marks of a row: ticks, zero, the interval, the mean, and the published change."""
    marks = [line_mark(_at(scale, tick), "tick") for tick in _ticks(scale) if tick]
    marks.append(line_mark(_at(scale, 0.0), "zero"))
    if effect.interval:
        low, high = effect.interval
        title = f"95 % interval: {_percent(low)} to {_percent(high)}"
        marks.append(interval_mark(_at(scale, low), _at(scale, high), title))
    if abs(effect.ours) <= _LARGEST:
        marks.append(mean_mark(_at(scale, effect.ours), f"mean: {_percent(effect.ours)}"))
    for end in (-_LARGEST, _LARGEST):
        beyond = [value for value in (effect.ours, *(effect.interval or ())) if value / end > 1]
        marks += [_arrow(scale, end, f"beyond: {', '.join(map(_percent, beyond))}")] if beyond else []
    if effect.published is not None:
        other = "" if effect.same_metric else ", another metric"
        kind = "published" if effect.same_metric else "published other"
        marks.append(line_mark(_at(scale, effect.published), kind, f"published: {_percent(effect.published)}{other}"))
    return marks


def _arrow(scale: IntervalScale, change: float, title: str) -> Html:
    """Returns an arrow at an end of the scale, for a change beyond it."""
    place = {"x": _at(scale, change), "y": "50%", "dominant_baseline": "central", "text_anchor": "middle"}
    return element("text", element("title", title), "▶" if change > 0 else "◀", **place)


def _percent(value: float) -> str:
    text = fixed(value, 0 if abs(value) >= 100 else 2)
    return f"+{text} %" if value > 0 else f"{text} %"


def _scale(effects: Iterable[RelativeEffect | None]) -> IntervalScale:
    """Returns the scale that shows zero, one per cent to both sides, and every effect with its interval."""
    values = [-1.0, 1.0]
    for effect in filter(None, effects):
        values += [effect.ours, *(effect.interval or ()), effect.published or 0.0]
    return IntervalScale(_bent(min(values)), _bent(max(values)), 0.0).wider()


def _bent(change: float) -> float:
    """Returns the place of a change in per cent on a scale that is linear near zero and logarithmic beyond, up to the
    largest one."""
    size = min(abs(change), _LARGEST)
    place = size / _LINEAR * _STEP if size <= _LINEAR else _STEP + math.log10(size / _LINEAR)
    return math.copysign(place, change)


def _at(scale: IntervalScale, change: float) -> str:
    return scale.percent(_bent(change))


def _ticks(scale: IntervalScale) -> list[int]:
    every = [*(-tick for tick in reversed(_TICKS)), 0, *_TICKS]
    return [tick for tick in every if scale.low < _bent(tick) < scale.high]


def _axis(scale: IntervalScale) -> Html:
    labels = [
        element("span", f"{tick:+}" if tick else "0 %", style=f"left:{_at(scale, tick)}", class_=_label_class(tick))
        for tick in _ticks(scale)
    ]
    return element("div", element("span"), element("span", *labels, class_="ends"), class_="row axis")


def _label_class(tick: int) -> str:
    return "middle" if tick in _LABELLED else "middle fine"


def _parts(entries: Sequence[GalleryEntry], page: str) -> Iterator[tuple[str, Iterable[Html]]]:
    """Yields the title and the content of each part below the studies."""
    texts = [
        element("p", element("b", element("a", one.study, href=one.address), f": {one.comparison}"))
        + paragraphs([one.results, one.remark])
        for one in disagreements(entries, page)
    ]
    yield "Disagreements", map(Html, texts or [element("p", NO_DISAGREEMENT)])
    unresolved, unjudged = open_comparisons(entries, page), not_judged(entries, page)
    yield "Unresolved", [to_html(unresolved) if unresolved.rows else element("p", NOTHING_UNRESOLVED)]
    floors = unmeasured_floors(entries)
    yield "Not judged", [to_html(unjudged) if unjudged.rows else Html(), paragraphs([floors] if floors else [])]
    changed = changed_verdicts(entries, page)
    yield changed.title, [to_html(changed) if changed.rows else Html()]
    yield "Every comparison", [_comparisons(entry) for entry in entries if entry.judged]
    yield "How agreement is decided", [paragraphs(rules(entries))]


def _comparisons(entry: GalleryEntry) -> Html:
    """Returns all comparisons of a study with its source, folded."""
    published = entry.findings.study.plan.published
    claims = [element("p", element("b", "The source: "), claim) for claim in (published.claims if published else ())]
    facts = element("p", _run_facts(entry), class_="note")
    return details(entry.name, *claims, facts, to_html(against_source(entry)))


def _run_facts(entry: GalleryEntry) -> str:
    """Returns as text the scale of a study, its numbers of runs and seeds, its hardware, its protocol, the runs that
    were repeated, and its floor."""
    study = entry.findings.study
    finished = [run for run in study.runs if run.missing is None]
    seeds = len({run.seed for run in study.runs})
    facts = [f"scale {study.plan.scale}"] if study.plan.scale else []
    facts.append(f"{len(finished)} of {len(study.runs)} runs finished")
    facts.append(f"{seeds} seed{'' if seeds == 1 else 's'}")
    facts += environments(study, "hardware")
    sentences = [f"{', '.join(facts)}.", *([f"{study.plan.protocol}."] if study.plan.protocol else [])]
    sentences += [f"Repeated: {text}." for text in repetitions(study.reproductions)]
    return " ".join([*sentences, floor_text(entry.findings)])
