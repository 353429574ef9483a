"""The report of a study as one self-contained HTML page: it needs no network, no other file and no framework.

Its content security policy forbids the network and every script but its own. The same findings give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from lit_transformers.records.files import write_text
from reports.judge.fairness import environments, spent
from reports.judge.findings import Findings
from reports.read.study import Study
from reports.show.about_runs import about_runs, absolute_values
from reports.show.answer import headline
from reports.show.arm_details import arm_details
from reports.show.figures import Drawing, drawings, inline_svg
from reports.show.markup import Html, details, element, escape, items, joined, name_of, pairs, paragraphs
from reports.show.picture import curve_chart, interval_chart
from reports.show.remarks import TITLE as DISAGREEMENTS
from reports.show.remarks import disagreements
from reports.show.sections import ROUNDING
from reports.show.tables import Table, label_rules
from reports.show.tables import to_html as table_to_html

RESULTS_TITLE = "Results"
_ENVIRONMENT = (
    "hardware",
    "float32",
    "attention",
    "threads",
    "python",
    "torch",
    "lightning",
    "torchmetrics",
    "numpy",
    "commit",
    "library",
)


class ParentPage(NamedTuple):
    """The page that a page is below, to which its bar leads back."""

    name: str
    address: str


def write_html(
    findings: Findings,
    tables: Sequence[Table],
    path: Path,
    method: Sequence[str] = (),
    parent: ParentPage | None = None,
) -> None:
    """Writes the page atomically. tables: those of the report. method: paragraphs on how the numbers are made.

    Raises OSError where it cannot be written.
    """
    write_text(path, to_html(findings, tables, method, parent))


def to_html(
    findings: Findings, tables: Sequence[Table], method: Sequence[str] = (), parent: ParentPage | None = None
) -> str:
    """Returns the whole page as HTML."""
    sections = _sections(findings, tables, method)
    return document(findings.study.plan.question, _top_facts(findings), sections, parent)


def document(title: str, facts: Iterable[str], sections: Iterable[Html], parent: ParentPage | None = None) -> str:
    """Returns a page with the shared style and script, its title as heading and the facts in the bar above."""
    body = joined(
        [
            _top_bar(facts, parent),
            element("main", element("h1", name_of(title)), *sections),
            element("dialog", element("button", "Close", type="button", class_="close"), aria_label="Figure"),
            element("script", Html(_asset("page.js"))),
        ]
    )
    return f'<!DOCTYPE html>\n<html lang="en">\n{_head(title, label_rules(body))}\n<body>\n{body}\n</body>\n</html>\n'


def _head(title: str, rules: str) -> Html:
    script = base64.b64encode(hashlib.sha256(_asset("page.js").encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Html(_asset("page.css") + rules)),
    )


@cache
def _asset(name: str) -> str:
    """Returns the text of a style sheet or a script of this package."""
    return (files("reports.show") / name).read_text(encoding="utf-8")


def _top_facts(findings: Findings) -> list[str]:
    plan = findings.study.plan
    finished = sum(run.missing is None for run in findings.study.runs)
    facts = [
        plan.study,
        f"scale {plan.scale}" if plan.scale else "",
        f"{finished} of {len(findings.study.runs)} runs finished",
    ]
    return list(filter(None, facts))


def _top_bar(facts: Iterable[str], parent: ParentPage | None) -> Html:
    back = [element("a", f"← {parent.name}", href=parent.address)] if parent else []
    return element(
        "header",
        element("div", joined(_interleave(" · ", [*back, *(name_of(part) for part in facts)]))),
        element("button", "Dark", type="button", class_="theme", title="Light or dark", hidden=True),
        class_="top",
    )


def _interleave(mark: str, parts: Sequence[Html]) -> Iterator[Html]:
    for index, part in enumerate(parts):
        yield Html(f"{escape(mark) if index else ''}{part}")


def _sections(findings: Findings, tables: Sequence[Table], method: Sequence[str]) -> Iterator[Html]:
    parts = {title: content for title, inside in _parts(findings, tables, method) if (content := joined(inside))}
    yield element("p", headline(findings), class_="answer")
    yield paragraphs(filter(None, [absolute_values(findings), " ".join(about_runs(findings))]), class_="facts")
    yield element("div", interval_chart(findings), curve_chart(findings), class_="pictures")
    yield contents(parts)
    yield from folded_parts(parts, RESULTS_TITLE)


def _parts(
    findings: Findings, report_tables: Sequence[Table], method: Sequence[str]
) -> Iterator[tuple[str, Iterable[Html]]]:
    """Yields the title and the content of each part of the page below its picture."""
    tables = {table.name: table for table in report_tables if table.name not in _unneeded(findings.study)}
    drawn = {drawing.name: drawing for drawing in drawings(findings)}

    def of(*names: str) -> Iterator[Html]:
        return (table_to_html(tables.pop(name)) for name in names if name in tables)

    further = (f"further_{number}" for number, _ in enumerate(findings.further, start=1))
    yield (
        RESULTS_TITLE,
        of("ranking", "results", "forgetting", "differences", "effects", "rates", "arm_rates", *further),
    )
    yield "Published numbers", [_source(findings), *of("published")]
    yield DISAGREEMENTS, [paragraphs(disagreements(findings))]
    yield "Floors and context", of("known", "floors", "stages", "context")
    figures = ("accuracies", "state_accuracy", "distances", "seeds", "learning_curves", "further_curves")
    yield "Figures", _figures(drawn, *figures)
    yield "Cost", [*_figures(drawn, "cost_quality", "cost_length"), *of("costs", "match")]
    yield "Arms", arm_details(findings)
    yield "More tables", [*of(*tables), *_figures(drawn, "auxiliary_losses")]
    yield "How to reproduce", _reproduce(findings.study)
    yield "How the numbers are made", [paragraphs(method)]
    yield "Notes", [items(findings.notes)]


def _unneeded(study: Study) -> tuple[str, ...]:
    """Returns the name of the table of matched budgets where every arm meets its budget, to rounding."""
    match = study.plan.match
    if match is None:
        return ()
    base = spent(study, study.plan.baseline)
    offs = [
        matched.reached / matched.target - 1 for matched in match.per_arm.values() if matched.target and matched.reached
    ]
    offs += [(spent(study, arm) or base) / base - 1 for arm in match.per_arm] if base else []
    return ("match",) if all(abs(off) < ROUNDING for off in offs) else ()


def contents(titles: Iterable[str]) -> Html:
    """Returns links to the parts of a page, by their titles."""
    links = [element("a", title, href=f"#{anchor(title)}") for title in titles]
    return element("nav", *_interleave(" · ", links), aria_label="Contents")


def folded_parts(parts: Mapping[str, Html], opened: str = "") -> Iterator[Html]:
    """Yields each part of a page folded under its title, and the part with the title ``opened`` open."""
    for title, content in parts.items():
        summary = element("summary", element("h2", title))
        yield element("details", summary, content, id=anchor(title), open=title == opened)


def anchor(title: str) -> str:
    """Returns the id of the part of a page with this title."""
    return "part-" + "-".join(title.lower().split())


def _source(findings: Findings) -> Html:
    source = findings.study.plan.source
    if source is None:
        return Html()
    parts = [name_of(source.title)]
    if source.arxiv:
        address = f"https://arxiv.org/abs/{source.arxiv}"
        parts.append(element("a", f"arXiv:{source.arxiv}", href=address, rel="noreferrer"))
    if source.table:
        parts.append(escape(f"table {source.table}"))
    return element("p", "Source of the question: ", *_interleave(", ", parts), ".", class_="facts")


def _figures(drawings_by_name: dict[str, Drawing], *names: str) -> Iterator[Html]:
    """Yields the figures of these names that there are, each as a button that enlarges it, with its caption."""
    for name in names:
        if name in drawings_by_name:
            title, caption = drawings_by_name[name].title, drawings_by_name[name].caption
            button = element(
                "button",
                inline_svg(drawings_by_name[name]),
                type="button",
                class_="zoom",
                aria_label=f"Enlarge: {title}",
            )
            yield element("figure", button, element("figcaption", caption), id=f"figure-{name}")


def _reproduce(study: Study) -> Iterator[Html]:
    for name, command in study.plan.commands.items():
        yield Html(element("h3", name.capitalize()) + element("pre", element("code", command)))
    facts = [(key.capitalize(), ", ".join(values)) for key in _ENVIRONMENT if (values := environments(study, key))]
    records = [run.record for run in study.runs if run.record is not None]
    data = sorted({f"{record.data.get('name')}, {record.data.get('fingerprint')}" for record in records if record.data})
    facts += [("Data and fingerprint", "; ".join(data))] if data else []
    facts += [("Protocol", study.plan.protocol)] if study.plan.protocol else []
    if facts:
        yield Html(element("h3", "Hardware and versions") + pairs(facts))
    keys = [
        (f"{study.plan.labels.alone(run.arm)}, seed {run.seed}", run.record.key)
        for run in study.runs
        if run.record is not None and study.knows_configs
    ]
    if keys:
        yield details(f"Keys of the {len(keys)} runs", pairs(keys))
