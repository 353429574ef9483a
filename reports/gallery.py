"""The gallery: an index of all published studies that compares their results with those of their sources.

It is README.md in the folder of the publications, and index.html of the site with the pages of all studies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import quote

from lit_transformers.machine.cores import usable_cores
from lit_transformers.records.files import RESULTS, write_text
from reports.judge.agreement import (
    AGREEMENTS,
    EQUALITY_RULE,
    RULE,
    UNSOURCED,
    WITHDRAWN_RULE,
    GalleryEntry,
    JudgedComparison,
    judge_comparisons,
    published_margin,
)
from reports.judge.effects import relative_effects
from reports.judge.fairness import environments, repetitions
from reports.judge.findings import Findings
from reports.publish import PUBLISHED, published
from reports.read.answers import with_answer
from reports.read.results import read_results
from reports.read.study import ReportError
from reports.report import PAGE, PUBLIC_FORMATS, REPORT, find, render_site, write_page
from reports.show.answer import headline
from reports.show.figures import EFFECTS, EFFECTS_CAPTION, EFFECTS_TITLE, draw_gallery_figures, gallery_drawings
from reports.show.html import ParentPage, document, figures
from reports.show.markup import Html, element, joined, paragraphs
from reports.show.names import name_comparisons
from reports.show.overview import (
    beyond_the_scale,
    disagreements,
    open_parts,
    signed,
    verdicts,
)
from reports.show.sections import floor_text
from reports.show.tables import Cell, Column, Table, escape_markdown, to_html, to_markdown

TITLE = "What was asked, and what was found"
FINDINGS, DISAGREEMENTS, OPEN = "Findings", "Disagreements", "Open"
NOTHING_DECIDED = "Nothing is decided yet."
NO_DISAGREEMENT = "No decided comparison disagrees with its source."


def write_gallery(folder: Path = PUBLISHED, again: bool = False, report: Callable[[str], None] | None = None) -> Path:
    """Writes README.md for the studies published in a folder, with its figure, and returns its path.

    again: first make every report again from its results. report: called with the name of every study of which a report
    is made. Raises as ``read_entries`` does, and OSError where it cannot be written.
    """
    entries = _render_each(folder, _render_publication, report) if again else read_entries(folder)
    draw_gallery_figures(relative_effects(entries)[0], folder, PUBLIC_FORMATS)
    page = folder / "README.md"
    write_text(page, to_gallery_markdown(entries))
    return page


def write_site(
    folder: Path = PUBLISHED, to: Path | None = None, report: Callable[[str], None] | None = None,
    parent: ParentPage | None = None,
) -> Path:  # fmt: skip
    """Writes index.html and, for every published study, page.html, report.csv, report.tex and its figures as SVG.

    to: the folder of the site, ``folder/site`` by default. report: called with the name of every study that is
    rendered. parent: the page to which index.html leads back. Returns the path of index.html. Raises as
    ``read_entries`` does, and OSError where it cannot be written.
    """
    site = folder / "site" if to is None else to
    entries = _render_each(folder, partial(_render_pages, site), report)
    page = site / "index.html"
    write_text(page, to_gallery_html(entries, parent))
    return page


def read_entries(folder: Path) -> list[GalleryEntry]:
    """Reads all published studies. Raises ReportError where there are none or where results cannot be read."""
    return [read_entry(directory) for directory in _require_published(folder)]


def read_entry(directory: Path) -> GalleryEntry:
    """Reads one published study from its folder."""
    findings = find(with_answer(read_results(directory / RESULTS), directory))
    return GalleryEntry(directory.name, findings, tuple(judge_comparisons(findings)))


def _require_published(folder: Path) -> list[Path]:
    directories = published(folder)
    if not directories:
        raise ReportError(f"{folder}: nothing is published here; begin with: python -m reports publish STUDY")
    return directories


def _render_each(
    folder: Path, render: Callable[[Path], GalleryEntry], report: Callable[[str], None] | None
) -> list[GalleryEntry]:
    """Calls a function of this module with the folder of every published study, in as many processes as there are
    cores, and returns the studies in their order.

    report: called with the name of each, in this order, while it is rendered. Raises as ``read_entries`` does, and
    ReportError where a process is killed. Any other error has a note that names the study.
    """
    directories = _require_published(folder)
    entries = []
    # Spawned: a fork would copy the locks of other threads, such as that of the status line, as they happen to be.
    with ProcessPoolExecutor(min(usable_cores(), len(directories)), get_context("spawn")) as pool:
        futures = [pool.submit(render, directory) for directory in directories]
        for directory, future in zip(directories, futures, strict=True):
            if report:
                report(directory.name)
            try:
                entries.append(future.result())
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                if isinstance(error, BrokenProcessPool):
                    message = "a process was killed while it rendered this study or one after it; is memory short?"
                    raise ReportError(f"{directory}: {message}") from None
                error.add_note(f"This was raised while {directory} was rendered.")
                raise
    return entries


def _render_publication(directory: Path) -> GalleryEntry:
    """Makes report.md of a study and its figures again."""
    entry = read_entry(directory)
    write_page(entry.findings, directory, PUBLIC_FORMATS)
    return entry


def _render_pages(site: Path, directory: Path) -> GalleryEntry:
    """Writes what a site has of a study to a folder of the site."""
    entry = read_entry(directory)
    render_site(entry.findings, site / entry.name)
    return entry


def by_system(entries: Sequence[GalleryEntry]) -> dict[str, list[GalleryEntry]]:
    """Groups the studies by system, in the order of the systems' titles, with those without a source last."""
    order = sorted({entry.system for entry in entries}, key=lambda system: (system == UNSOURCED, system.casefold()))
    return {system: [entry for entry in entries if entry.system == system] for system in order}


def to_gallery_markdown(entries: Sequence[GalleryEntry]) -> str:
    """Returns the index as Markdown; links lead to report.md of each study."""
    blocks = [f"# {TITLE}", escape_markdown(summary(entries)), *_opening_markdown(entries)]
    blocks.append(to_markdown(systems(entries)).strip())
    for system, studies in by_system(entries).items():
        blocks.append(f"## {escape_markdown(system)}")
        for entry in studies:
            blocks.append(f"### [{escape_markdown(entry.name)}]({quote(entry.name)}/{REPORT})")
            blocks.append(f"*{escape_markdown(_question(entry))}*")
            blocks.append(f"**Here:** {escape_markdown(headline(entry.findings))}")
            blocks += [f"**The source:** {escape_markdown(claim)}" for claim in _claims(entry)]
            blocks.append(escape_markdown(_run_facts(entry)))
            blocks += [_without_heading(beside(entry))] if entry.judged else []
    blocks += ["## How agreement is decided", *map(escape_markdown, rules(entries))]
    return "\n\n".join(blocks) + "\n"


def _opening_markdown(entries: Sequence[GalleryEntry]) -> Iterator[str]:
    """Yields what a reader wants first: what was decided, what disagrees with its source, and what is open."""
    yield f"## {FINDINGS}"
    decided = verdicts(entries, REPORT)
    yield _without_heading(decided) if decided.rows else NOTHING_DECIDED
    yield f"## {DISAGREEMENTS}"
    against = disagreements(entries, REPORT)
    yield from () if against else (NO_DISAGREEMENT,)
    for one in against:
        yield f"**[{escape_markdown(one.study)}]({one.address}): {escape_markdown(one.comparison)}**"
        yield escape_markdown(one.results)
        yield escape_markdown(one.remark)
    yield f"## {OPEN}"
    tables, texts = open_parts(entries, REPORT)
    yield from (f"#{to_markdown(table).strip()}" for table in tables)
    yield from map(escape_markdown, texts)
    effects, left_out = relative_effects(entries)
    if effects or left_out:
        yield f"## {EFFECTS_TITLE}"
        yield from (f"![{EFFECTS_TITLE}]({EFFECTS}.png)", escape_markdown(EFFECTS_CAPTION)) if effects else ()
        yield from map(escape_markdown, filter(None, [beyond_the_scale(left_out)]))


def _without_heading(table: Table) -> str:
    return to_markdown(table).partition("\n\n")[2].strip()


def to_gallery_html(entries: Sequence[GalleryEntry], parent: ParentPage | None = None) -> str:
    """Returns the index as one self-contained HTML page; links lead to the pages of the studies."""
    facts = [f"{len(entries)} studies", f"{sum(len(entry.judged) for entry in entries)} comparisons"]
    withdrawn = sum(bool(entry.findings.study.withdrawn) for entry in entries)
    facts += [f"{withdrawn} withdrawn"] if withdrawn else []
    return document(TITLE, facts, _sections(entries), parent)


def _sections(entries: Sequence[GalleryEntry]) -> Iterator[Html]:
    yield element("p", summary(entries), class_="answer")
    yield from _opening(entries)
    yield element("section", element("h2", "Systems"), to_html(systems(entries)))
    for system, studies in by_system(entries).items():
        yield element("section", element("h2", system), *map(_study, studies))
    yield element("section", element("h2", "How agreement is decided"), paragraphs(rules(entries)))


def _opening(entries: Sequence[GalleryEntry]) -> Iterator[Html]:
    """Yields the sections of ``_opening_markdown``."""
    decided = verdicts(entries, PAGE)
    table = to_html(decided) if decided.rows else element("p", NOTHING_DECIDED)
    yield element("section", element("h2", FINDINGS), table)
    texts = [
        element("p", element("b", element("a", one.study, href=one.address), f": {one.comparison}"))
        + paragraphs([one.results, one.remark])
        for one in disagreements(entries, PAGE)
    ]
    texts = texts or [element("p", NO_DISAGREEMENT)]
    yield element("section", element("h2", DISAGREEMENTS), *map(Html, texts))
    tables, notes = open_parts(entries, PAGE)
    yield element("section", element("h2", OPEN), *map(to_html, tables), paragraphs(notes, class_="note"))
    effects, left_out = relative_effects(entries)
    drawn = list(figures({drawing.name: drawing for drawing in gallery_drawings(effects)}, EFFECTS))
    if drawn or left_out:
        note = paragraphs(filter(None, [beyond_the_scale(left_out)]), class_="note")
        yield element("section", element("h2", EFFECTS_TITLE), *drawn, note)


def rules(entries: Sequence[GalleryEntry]) -> list[str]:
    """Returns the rules of agreement as paragraphs, that of equality where a study states a margin, and that of
    withdrawal where a study was withdrawn."""
    equality = [EQUALITY_RULE] if any(entry.findings.margin for entry in entries) else []
    withdrawn = [WITHDRAWN_RULE] if any(entry.findings.study.withdrawn for entry in entries) else []
    return [RULE, *equality, *withdrawn]


def _study(entry: GalleryEntry) -> Html:
    link = element("a", entry.name, href=f"{quote(entry.name)}/{PAGE}")
    claims = [element("p", element("b", "The source: "), claim) for claim in _claims(entry)]
    return joined(
        [
            element("h3", link),
            element("p", element("i", _question(entry))),
            element("p", element("b", "Here: "), headline(entry.findings)),
            *claims,
            element("p", _run_facts(entry), class_="note"),
            *([to_html(beside(entry))] if entry.judged else []),
        ]
    )


def summary(entries: Sequence[GalleryEntry]) -> str:
    """Returns a text on how many comparisons have each agreement with their source."""
    agreement_counts = counts(entries)
    standing = [entry for entry in entries if not entry.findings.study.withdrawn]
    studies = f"{len(standing)} stud{'y' if len(standing) == 1 else 'ies'}"
    tally = ", ".join(f"{name}: {agreement_counts[name]}" for name in AGREEMENTS)
    withdrawn = [entry.name for entry in entries if entry.findings.study.withdrawn]
    apart = f" Withdrawn, and not counted: {', '.join(withdrawn)}." if withdrawn else ""
    number = sum(agreement_counts[name] for name in AGREEMENTS)
    return f"{studies} with {number} comparisons. {tally[0].upper()}{tally[1:]}.{apart}"


def counts(entries: Sequence[GalleryEntry]) -> Counter[str]:
    """Returns the number of comparisons of these studies by their agreement."""
    return Counter(judged.agreement for entry in entries for judged in entry.judged)


def systems(entries: Sequence[GalleryEntry]) -> Table:
    """Returns a table of every system with its studies and the number of comparisons by agreement."""
    columns = (Column("System"), Column("Studies"), *(Column(name.capitalize(), "count") for name in AGREEMENTS))
    rows = []
    for system, studies in by_system(entries).items():
        agreement_counts = counts(studies)
        names = ", ".join(
            f"{entry.name}{' (withdrawn)' if entry.findings.study.withdrawn else ''}" for entry in studies
        )
        rows.append((Cell(system), Cell(names), *(Cell(agreement_counts[name]) for name in AGREEMENTS)))
    return Table("systems", "Comparisons by system", columns, tuple(rows))


def beside(entry: GalleryEntry) -> Table:
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
    return Table(f"beside_{entry.name}", f"{entry.name} beside its source", columns, rows, notes)


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


def _question(entry: GalleryEntry) -> str:
    return entry.findings.study.plan.question


def _claims(entry: GalleryEntry) -> list[str]:
    plan = entry.findings.study.plan
    return list(plan.published.claims) if plan.published else []


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
