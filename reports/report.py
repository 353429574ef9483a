"""Writes the report of a study: a page, its tables as CSV and LaTeX, its figures, and the tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from lit_transformers.records.files import RESULTS, write_text
from lit_transformers.records.plan import Plan
from reports.judge.comparisons import compare, estimates
from reports.judge.fairness import environments
from reports.judge.findings import Findings
from reports.read.answers import with_answer
from reports.read.results import read_results, write_results
from reports.read.shared_runs import with_planned, with_published
from reports.read.study import Study, load_study
from reports.show.about_runs import about_runs, absolute_values
from reports.show.answer import answer, further_answers, headline
from reports.show.figures import FORMATS, draw_figures
from reports.show.html import ParentPage, write_html
from reports.show.method import method
from reports.show.remarks import TITLE as DISAGREEMENTS
from reports.show.remarks import disagreements
from reports.show.screen import screen
from reports.show.sections import all_tables
from reports.show.tables import Table, escape_markdown, to_csv, to_latex, to_markdown, to_rich

REPORT, PAGE = "report.md", "page.html"
PUBLIC_FORMATS = ("png",)
"""The formats of the figures of a publication."""


def write_report(
    runs: Path,
    study: str,
    out: Path | None = None,
    console: Console | None = None,
    unmatched: bool = False,
    full: bool = False,
) -> Path:
    """Writes the results of a study's runs to results.jsonl, renders them, and returns the path of report.md.

    out: the folder to write into, ``runs/studies/<study>/report`` by default. console: where a screen of the report is
    printed, or, with ``full``, all of it.

    Raises ReportError where there is no such study or its plan is damaged, OSError where the folder cannot be written.
    """
    directory = Path(out) if out is not None else Path(runs) / "studies" / study / "report"
    findings = write_study(with_planned(load_study(Path(runs), study), Path(runs)), directory, unmatched)
    if console is not None:
        print_report(findings, console, full)
    return directory / REPORT


def write_study(study: Study, directory: Path, unmatched: bool = False, publication: Path | None = None) -> Findings:
    """Writes the results and the report of a study that has been read, and returns its findings.

    publication: the folder of the publication that is written, which may be elsewhere at first: report.md alone, and
    commands that name no folder of this machine. Raises OSError where the folder cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_results(study, directory / RESULTS, public=publication is not None)
    return render(directory, unmatched, publication)


def render(directory: Path, unmatched: bool = False, publication: Path | None = None) -> Findings:
    """Writes report.md, report.csv, report.tex, page.html and the figures next to the results.jsonl of a folder.

    Everything is made from that file alone, but for the answer of a publication that was stated later and the runs that
    it shares with others: the same file gives the same bytes.
    ``unmatched``: give verdicts also between arms whose matched budgets differ. ``publication``: the folder that a
    publication has or will have: write report.md and the PNG files that it shows, and nothing else; ``render_site``
    makes the rest.

    Raises ReportError where no results.jsonl can be read, OSError where the folder cannot be written.
    """
    study, public = read_results(directory / RESULTS), publication is not None
    findings = find(as_published(study, publication) if publication else study, unmatched)
    tables = write_page(findings, directory, PUBLIC_FORMATS if public else FORMATS)
    if not public:
        _write_other_formats(findings, tables, directory)
    return findings


def as_published(study: Study, directory: Path) -> Study:
    """Returns a published study, of this folder, with the facts in the files next to the folder: an answer that was
    stated later, and the runs that it shares with other publications. Raises ReportError where the answers are
    damaged."""
    return with_published(with_answer(study, directory), directory)


def print_report(findings: Findings, console: Console, full: bool = False) -> None:
    """Prints a screen of the report, or all of it."""
    console.print(Group(*terminal(findings, console.width) if full else screen(findings, console.width)))


def write_page(findings: Findings, directory: Path, formats: Sequence[str]) -> tuple[Table, ...]:
    """Writes report.md and its figures, in these formats, to a folder, and returns the tables of the report.

    Raises OSError where the folder cannot be written.
    """
    tables = all_tables(findings)
    captions = draw_figures(findings, directory, formats)
    write_text(directory / REPORT, markdown(findings, tables, captions, formats))
    return tables


def render_site(findings: Findings, directory: Path) -> Path:
    """Writes the files that a publication omits to a folder: page.html, report.csv, report.tex and the figures as SVG.

    Returns the path of page.html. Raises OSError where the folder cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    draw_figures(findings, directory, ("svg",))
    _write_other_formats(findings, all_tables(findings), directory, ParentPage("All studies", "../index.html"))
    return directory / PAGE


def _write_other_formats(
    findings: Findings, tables: tuple[Table, ...], directory: Path, parent: ParentPage | None = None
) -> None:
    """Writes the tables of a report as CSV, which has all of them, and as LaTeX, and the page."""
    latex = "\n".join(to_latex(table.shortened()) for table in tables)
    write_text(directory / "report.csv", to_csv(tables))
    write_text(directory / "report.tex", f"% Needs \\usepackage{{booktabs}}.\n\n{latex}")
    write_html(findings, tables, directory / PAGE, method(findings), parent)


def find(study: Study, unmatched: bool = False) -> Findings:
    """Computes the comparisons of a study, also by the metrics that do not judge, with notes on everything that limits
    their validity."""
    notes: list[str] = []
    comparisons = compare(study, notes, unmatched)
    for key, noun in (("torch", "versions of torch"), ("hardware", "machines")):  # the code is in every run's key
        values = environments(study, key)
        if len(values) > 1:
            notes.append(f"The runs come from {len(values)} {noun}: {', '.join(values)}.")
    further = tuple(Findings(one, estimates(one, notes)) for one in map(study.by, study.plan.also))
    return Findings(study, comparisons, (*study.notes, *dict.fromkeys(notes)), further)


def markdown(
    findings: Findings, tables: Sequence[Table], captions: Mapping[str, str], formats: Sequence[str] = FORMATS
) -> str:
    """Returns the whole report as Markdown: question, answer, facts, tables and figures.

    captions: the captions of the figures by their names. formats: the formats that the figures are drawn in.
    """
    plan = findings.study.plan
    blocks = [f"# {escape_markdown(plan.question)}", f"**{escape_markdown(headline(findings))}**"]
    blocks += map(escape_markdown, filter(None, [absolute_values(findings), " ".join(about_runs(findings))]))
    blocks += [*map(escape_markdown, (*answer(findings), *further_answers(findings))), _facts(plan)]
    blocks += [to_markdown(table.shortened()).rstrip("\n") for table in tables]
    if remarks := disagreements(findings):
        blocks += [f"## {DISAGREEMENTS}", *map(escape_markdown, remarks)]
    if captions:
        blocks.append("## Figures")
        for name, caption in captions.items():
            link = f" [SVG]({name}.svg)" if "svg" in formats else ""
            blocks.append(f"![{caption}]({name}.png)\n\n{caption}{link}")
    blocks += ["## How the numbers are made", *method(findings)]
    if findings.notes:
        blocks += ["## Notes", "\n".join(f"- {escape_markdown(note)}" for note in findings.notes)]
    return "\n\n".join(blocks) + "\n"


def _facts(plan: Plan) -> str:
    facts = {"Study": f"{plan.study}{f', scale {plan.scale}' if plan.scale else ''}"}
    if plan.source:
        source_parts = [plan.source.title, f"arXiv:{plan.source.arxiv}" if plan.source.arxiv else ""]
        source_parts.append(f"table {plan.source.table}" if plan.source.table else "")
        facts["Source"] = ", ".join(part for part in source_parts if part)
    if plan.protocol:
        facts["Protocol"] = plan.protocol
    lines = [f"- {name}: {escape_markdown(text)}" for name, text in facts.items()]
    lines += [f"- {escape_markdown(name).capitalize()}: `{command}`" for name, command in plan.commands.items()]
    return "\n".join(lines)


def terminal(findings: Findings, width: int) -> Iterator[RenderableType]:
    """Yields a screen of the report, then a sentence for each comparison, all tables but the intervals, and notes."""
    yield from screen(findings, width)
    yield Text()
    yield from map(Text, answer(findings))
    for table in all_tables(findings):
        if table.name != "intervals":
            yield Text()
            yield to_rich(table.shortened(), width)
    yield Text()
    yield from (Text(f"note: {note}", style="yellow") for note in findings.notes)
