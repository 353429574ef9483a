"""The report of a study: a page, its tables as CSV and LaTeX, its figures, and the same tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console, Group
from rich.text import Text

from reports.answer import answer
from reports.comparisons import TOLERANCE, compare
from reports.figures import draw_figures
from reports.records import Plan, Study, load_study
from reports.sections import Findings, all_tables, environments
from reports.statistics import RESAMPLES
from reports.tables import Table, escape_markdown, to_csv, to_latex, to_markdown, to_rich

_METHOD = f"""\
Differences are paired: the same seeds, data order and evaluation documents for both arms. The 95 % interval joins \
the variance between seeds (Student's t with one degree of freedom fewer than seeds) and that between documents \
({RESAMPLES:,} resamples, the same documents for all seeds and arms). In simulations it covers the truth 93 to 97 % \
of the time at three and at five seeds, where a percentile bootstrap covers it about 75 and 85 %. Verdicts hold \
after Holm's correction over the comparisons of a table, at 5 %, so an interval that just excludes zero may still be \
unresolved. The smallest detectable difference is what so many seeds show four times out of five, before that \
correction; the seeds needed are those that would show the observed difference as often. Arms whose matched budgets \
lie more than {TOLERANCE:.0%} apart get no verdict."""


def write_report(
    runs: Path,
    study: str,
    out: Path | None = None,
    console: Console | None = None,
    unmatched: bool = False,
) -> Path:
    """Writes report.md, report.csv, report.tex and the figures, prints the tables, and returns the path of report.md.

    ``out`` is the folder to write into, ``runs/studies/<study>/report`` by default. Without a console nothing is
    printed. ``unmatched`` gives verdicts between arms whose matched budgets differ, too. The same records give the same
    bytes.

    Raises ReportError: no such study, or a damaged plan; OSError: the folder cannot be written.
    """
    findings = find(load_study(Path(runs), study), unmatched)
    directory = Path(out) if out is not None else Path(runs) / "studies" / study / "report"
    directory.mkdir(parents=True, exist_ok=True)
    tables = all_tables(findings)
    captions = draw_figures(findings, directory)
    _write(directory / "report.csv", to_csv(tables))
    _write(directory / "report.tex", "% Needs \\usepackage{booktabs}.\n\n" + "\n".join(map(to_latex, tables)))
    page = directory / "report.md"
    _write(page, markdown(findings, tables, captions))
    if console is not None:
        console.print(terminal(findings, tables, console.width))
    return page


def find(study: Study, unmatched: bool = False) -> Findings:
    """The comparisons of a study, with notes on everything a reader must know before believing them."""
    notes: list[str] = []
    comparisons = compare(study, notes, unmatched)
    for key, called in (("torch", "versions of torch"), ("hardware", "machines")):  # the code is in every run's key
        different = environments(study, key)
        if len(different) > 1:
            notes.append(f"The runs come from {len(different)} {called}: {', '.join(different)}.")
    return Findings(study, comparisons, (*study.notes, *notes))


def markdown(findings: Findings, tables: tuple[Table, ...], captions: Mapping[str, str]) -> str:
    """The whole page: question, answer, facts, tables and figures."""
    plan = findings.study.plan
    blocks = [f"# {escape_markdown(plan.question)}", f"**{escape_markdown(answer(findings))}**", _facts(plan)]
    blocks += [to_markdown(table).rstrip("\n") for table in tables]
    if captions:
        blocks.append("## Figures")
        blocks += [f"![{caption}]({name}.png)\n\n{caption} [SVG]({name}.svg)" for name, caption in captions.items()]
    blocks += ["## How the numbers are made", _METHOD]
    if findings.notes:
        blocks += ["## Notes", "\n".join(f"- {escape_markdown(note)}" for note in findings.notes)]
    return "\n\n".join(blocks) + "\n"


def _facts(plan: Plan) -> str:
    facts = {"Study": f"{plan.study}{f', scale {plan.scale}' if plan.scale else ''}"}
    if plan.source:
        where = [plan.source.title, f"arXiv:{plan.source.arxiv}" if plan.source.arxiv else ""]
        where.append(f"table {plan.source.table}" if plan.source.table else "")
        facts["Source"] = ", ".join(part for part in where if part)
    if plan.protocol:
        facts["Protocol"] = plan.protocol
    lines = [f"- {name}: {escape_markdown(text)}" for name, text in facts.items()]
    lines += [f"- {escape_markdown(name).capitalize()}: `{command}`" for name, command in plan.commands.items()]
    return "\n".join(lines)


def terminal(findings: Findings, tables: tuple[Table, ...], width: int) -> Group:
    """The question, its answer and the tables that carry it; the remaining ones are on the page."""
    shown = [table for table in tables if table.name != "intervals"]
    return Group(Text(findings.study.plan.question, style="bold"), *_spaced(findings, shown, width))


def _spaced(findings: Findings, shown: list[Table], width: int) -> Iterator[Text | Group]:
    for table in shown:
        yield Group(Text(), to_rich(table, width))
    yield Group(Text(), *(Text(f"note: {note}", style="yellow") for note in findings.notes))
    yield Text(answer(findings), style="bold")


def _write(path: Path, text: str) -> None:
    """All of it or nothing: a full disk leaves the earlier report."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
