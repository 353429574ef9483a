"""The report of a study as one self-contained HTML page: it needs no network, no other file and no framework.

Its content security policy forbids the network and every script but its own. The same findings give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from lit_transformers.records.files import write_text
from reports.judge.fairness import environments
from reports.judge.findings import Findings
from reports.read.study import Study
from reports.show.answer import answer, headline
from reports.show.arm_details import arm_details
from reports.show.figures import Drawing, drawings, inline_svg
from reports.show.markup import Html, details, element, escape, items, joined, name_of, pairs, paragraphs
from reports.show.remarks import TITLE as DISAGREEMENTS
from reports.show.remarks import disagreements
from reports.show.sections import all_tables
from reports.show.tables import Table
from reports.show.tables import to_html as table_to_html

_BESIDE = ("published",)
_COST = ("costs", "match")
_DETAILS = ("intervals", "left_out")
_ENVIRONMENT = ("hardware", "threads", "python", "torch", "lightning", "torchmetrics", "numpy", "commit", "library")


class ParentPage(NamedTuple):
    """The page that a page is below, to which its bar leads back."""

    name: str
    address: str


def write_html(findings: Findings, path: Path, method: Sequence[str] = (), parent: ParentPage | None = None) -> None:
    """Writes the page atomically. ``method``: paragraphs on how the numbers are made.

    Raises OSError where it cannot be written.
    """
    write_text(path, to_html(findings, method, parent))


def to_html(findings: Findings, method: Sequence[str] = (), parent: ParentPage | None = None) -> str:
    """Returns the whole page as HTML."""
    return document(findings.study.plan.question, _top_facts(findings), _sections(findings, method), parent)


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
    return f'<!DOCTYPE html>\n<html lang="en">\n{_head(title)}\n<body>\n{body}\n</body>\n</html>\n'


def _head(title: str) -> Html:
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
        element("style", Html(_asset("page.css"))),
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


def _sections(findings: Findings, method: Sequence[str]) -> Iterator[Html]:
    tables = {table.name: table for table in all_tables(findings)}
    drawings_by_name = {drawing.name: drawing for drawing in drawings(findings)}
    placed_elsewhere = (*_BESIDE, *_COST, *_DETAILS)
    yield _answer(findings)
    yield _source(findings)
    result_tables = [table for name, table in tables.items() if name not in placed_elsewhere]
    yield _section("Results", *_tables(result_tables), *figures(drawings_by_name, "differences"))
    yield _section("The paper beside", *_tables(tables[name] for name in _BESIDE if name in tables))
    yield _section(DISAGREEMENTS, paragraphs(disagreements(findings)))
    yield _section("Learning curves", *figures(drawings_by_name, "learning_curves", "auxiliary_losses"))
    cost = _tables(tables[name] for name in _COST if name in tables)
    yield _section("Cost", *figures(drawings_by_name, "cost_quality", "cost_length"), *cost)
    yield _section("Arms", *arm_details(findings))
    yield _section("More tables", *_tables(tables[name] for name in _DETAILS if name in tables))
    yield _section("How to reproduce", *_reproduce(findings.study))
    yield _section("How the numbers are made", paragraphs(method))
    yield _section("Notes", items(findings.notes))


def _section(title: str, *inside: Html) -> Html:
    """Returns a section of the page with its heading, or nothing where it is empty."""
    return element("section", element("h2", title), *inside) if any(inside) else Html()


def _answer(findings: Findings) -> Html:
    return Html(element("p", headline(findings), class_="answer") + items(answer(findings)))


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
    return element("p", "The question is that of ", *_interleave(", ", parts), ".", class_="facts")


def _tables(tables: Iterator[Table] | Sequence[Table]) -> Iterator[Html]:
    return (table_to_html(table) for table in tables)


def figures(drawings_by_name: dict[str, Drawing], *names: str) -> Iterator[Html]:
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
        yield Html(element("h3", "Where and with what it was measured") + pairs(facts))
    keys = [
        (f"{study.plan.labels.alone(run.arm)}, seed {run.seed}", run.record.key)
        for run in study.runs
        if run.record is not None
    ]
    if keys:
        yield details(f"Keys of the {len(keys)} runs", pairs(keys))
