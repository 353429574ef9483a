"""The report of a study as one HTML page that needs nothing beside it: no network, no other file, no framework.

The page forbids itself the network and every script but its own. The same findings give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from lit_transformers.files import write_text
from reports.answer import answer, headline
from reports.arm_details import arm_details
from reports.fairness import environments
from reports.figures import Drawing, drawings, inline_svg
from reports.markup import Html, details, element, escape, items, joined, name_of, pairs, paragraphs
from reports.records import Study
from reports.sections import Findings, all_tables
from reports.tables import Table
from reports.tables import to_html as table_to_html

_BESIDE = ("published",)
_COST = ("costs", "match")
_DETAILS = ("intervals", "left_out")
_ENVIRONMENT = ("hardware", "threads", "python", "torch", "lightning", "torchmetrics", "numpy", "commit", "library")


def write_html(findings: Findings, path: Path, method: Sequence[str] = ()) -> None:
    """Writes the page, all of it or nothing. ``method``: paragraphs on how the numbers are made.

    Raises OSError where it cannot be written.
    """
    write_text(path, to_html(findings, method))


def to_html(findings: Findings, method: Sequence[str] = ()) -> str:
    """The whole page."""
    return document(findings.study.plan.question, _said(findings), _sections(findings, method))


def document(title: str, said: Iterable[str], sections: Iterable[Html]) -> str:
    """A page with its title as heading, and what is ``said`` in the bar above; style and script are those of all."""
    body = joined(
        [
            _top(said),
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
    """A style sheet or a script that is part of this package."""
    return (files("reports") / name).read_text(encoding="utf-8")


def _said(findings: Findings) -> list[str]:
    plan = findings.study.plan
    finished = sum(run.missing is None for run in findings.study.runs)
    said = [
        plan.study,
        f"scale {plan.scale}" if plan.scale else "",
        f"{finished} of {len(findings.study.runs)} runs finished",
    ]
    return list(filter(None, said))


def _top(said: Iterable[str]) -> Html:
    return element(
        "header",
        element("div", joined(_between(" · ", [name_of(part) for part in said]))),
        element("button", "Dark", type="button", class_="theme", title="Light or dark", hidden=True),
        class_="top",
    )


def _between(mark: str, parts: Sequence[Html]) -> Iterator[Html]:
    for place, part in enumerate(parts):
        yield Html(f"{escape(mark) if place else ''}{part}")


def _sections(findings: Findings, method: Sequence[str]) -> Iterator[Html]:
    tables = {table.name: table for table in all_tables(findings)}
    drawn = {drawing.name: drawing for drawing in drawings(findings)}
    apart = (*_BESIDE, *_COST, *_DETAILS)
    yield _answer(findings)
    yield _source(findings)
    shown = [table for name, table in tables.items() if name not in apart]
    yield _section("Results", *_tables(shown), *_figures(drawn, "differences"))
    yield _section("The paper beside", *_tables(tables[name] for name in _BESIDE if name in tables))
    yield _section("Learning curves", *_figures(drawn, "learning_curves", "auxiliary_losses"))
    cost = _tables(tables[name] for name in _COST if name in tables)
    yield _section("Cost", *_figures(drawn, "cost_quality", "cost_length"), *cost)
    yield _section("Arms", *arm_details(findings))
    yield _section("More tables", *_tables(tables[name] for name in _DETAILS if name in tables))
    yield _section("How to reproduce", *_reproduce(findings.study))
    yield _section("How the numbers are made", paragraphs(method))
    yield _section("Notes", items(findings.notes))


def _section(title: str, *inside: Html) -> Html:
    """A part of the page under its heading; nothing where it is empty."""
    return element("section", element("h2", title), *inside) if any(inside) else Html()


def _answer(findings: Findings) -> Html:
    return Html(element("p", headline(findings), class_="answer") + items(answer(findings)))


def _source(findings: Findings) -> Html:
    source = findings.study.plan.source
    if source is None:
        return Html()
    said = [name_of(source.title)]
    if source.arxiv:
        address = f"https://arxiv.org/abs/{source.arxiv}"
        said.append(element("a", f"arXiv:{source.arxiv}", href=address, rel="noreferrer"))
    if source.table:
        said.append(escape(f"table {source.table}"))
    return element("p", "The question is that of ", *_between(", ", said), ".", class_="facts")


def _tables(tables: Iterator[Table] | Sequence[Table]) -> Iterator[Html]:
    return (table_to_html(table) for table in tables)


def _figures(drawn: dict[str, Drawing], *names: str) -> Iterator[Html]:
    for name in names:
        if name in drawn:
            title, caption = drawn[name].title, drawn[name].caption
            button = element(
                "button", inline_svg(drawn[name]), type="button", class_="zoom", aria_label=f"Enlarge: {title}"
            )
            yield element("figure", button, element("figcaption", caption), id=f"figure-{name}")


def _reproduce(study: Study) -> Iterator[Html]:
    for name, command in study.plan.commands.items():
        yield Html(element("h3", name.capitalize()) + element("pre", element("code", command)))
    facts = [(key.capitalize(), ", ".join(found)) for key in _ENVIRONMENT if (found := environments(study, key))]
    records = [run.record for run in study.runs if run.record is not None]
    data = sorted({f"{record.data.get('name')}, {record.data.get('fingerprint')}" for record in records if record.data})
    facts += [("Data and fingerprint", "; ".join(data))] if data else []
    facts += [("Protocol", study.plan.protocol)] if study.plan.protocol else []
    if facts:
        yield Html(element("h3", "Where and with what it was measured") + pairs(facts))
    keys = [(f"{run.arm}, seed {run.seed}", run.record.key) for run in study.runs if run.record is not None]
    if keys:
        yield details(f"Keys of the {len(keys)} runs", pairs(keys))
