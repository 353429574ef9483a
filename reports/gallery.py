"""The gallery: an index of all published studies that compares their results with those of their sources.

It is README.md in the folder of the publications, and index.html of the site with the pages of all studies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from lit_transformers.machine.cores import usable_cores
from lit_transformers.records.files import PUBLISHED, RESULTS, write_text
from reports.judge.agreement import GalleryEntry, judge_comparisons
from reports.judge.effects import relative_effects
from reports.publish import published
from reports.read.answers import former_verdicts
from reports.read.results import read_results
from reports.read.study import ReportError
from reports.report import PAGE, PUBLIC_FORMATS, REPORT, as_published, find, render_site, write_page
from reports.show.figures import EFFECTS, EFFECTS_CAPTION, EFFECTS_TITLE, draw_gallery_figures
from reports.show.gallery_page import gallery_page
from reports.show.html import ParentPage
from reports.show.overview import (
    NO_DISAGREEMENT,
    NOTHING_DECIDED,
    NOTHING_UNRESOLVED,
    TITLE,
    Finding,
    answers_table,
    beyond_the_scale,
    changed_verdicts,
    disagreements,
    findings_note,
    findings_of,
    not_judged,
    open_comparisons,
    rules,
    summary,
    unmeasured_floors,
)
from reports.show.tables import Table, escape_markdown, to_markdown


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
    findings = find(as_published(read_results(directory / RESULTS), directory))
    judged = tuple(judge_comparisons(findings))
    return GalleryEntry(directory.name, findings, judged, former_verdicts(directory))


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
    """Writes the files of a published study to its folder of the site."""
    entry = read_entry(directory)
    render_site(entry.findings, site / entry.name)
    return entry


def to_gallery_html(entries: Sequence[GalleryEntry], parent: ParentPage | None = None) -> str:
    """Returns the index as one self-contained HTML page; links lead to the pages of the studies."""
    return gallery_page(entries, PAGE, parent)


def to_gallery_markdown(entries: Sequence[GalleryEntry]) -> str:
    """Returns the index as Markdown; links lead to report.md of each study."""
    return "\n\n".join(_blocks(entries)) + "\n"


def _blocks(entries: Sequence[GalleryEntry]) -> Iterator[str]:
    """Yields the paragraphs, headings and tables of the index."""
    yield from (f"# {TITLE}", escape_markdown(summary(entries)), "## Findings")
    yield from _findings(entries)
    yield from ("## Studies", _without_heading(answers_table(entries, REPORT)), "## Disagreements")
    against = disagreements(entries, REPORT)
    yield from () if against else (NO_DISAGREEMENT,)
    for one in against:
        yield f"**[{escape_markdown(one.study)}]({one.address}): {escape_markdown(one.comparison)}**"
        yield from map(escape_markdown, (one.results, one.remark))
    unresolved, unjudged = open_comparisons(entries, REPORT), not_judged(entries, REPORT)
    yield from ("## Unresolved", _without_heading(unresolved) if unresolved.rows else NOTHING_UNRESOLVED)
    yield from ("## Not judged", _without_heading(unjudged)) if unjudged.rows else ()
    changed = changed_verdicts(entries, REPORT)
    yield from (f"## {changed.title}", _without_heading(changed)) if changed.rows else ()
    yield from filter(None, [escape_markdown(unmeasured_floors(entries))])
    effects, omitted = relative_effects(entries)
    if effects or omitted:
        yield f"## {EFFECTS_TITLE}"
        yield from (f"![{EFFECTS_TITLE}]({EFFECTS}.png)", escape_markdown(EFFECTS_CAPTION)) if effects else ()
        yield from map(escape_markdown, filter(None, [beyond_the_scale(omitted)]))
    yield from ("## How agreement is decided", *map(escape_markdown, rules(entries)))


def _findings(entries: Sequence[GalleryEntry]) -> Iterator[str]:
    chosen = findings_of(entries, REPORT)
    if not chosen:
        yield NOTHING_DECIDED
        return
    yield "\n".join(f"{number}. {_finding(one)}" for number, one in enumerate(chosen, start=1))
    yield escape_markdown(findings_note(chosen))


def _finding(one: Finding) -> str:
    system = f" ({escape_markdown(one.system)})" if one.system else ""
    result = f"{escape_markdown(one.comparison)}: **{one.verdict}{one.size}**{escape_markdown(one.rest)}"
    return f"[{escape_markdown(one.study)}]({one.address}){system}: {result}"


def _without_heading(table: Table) -> str:
    return to_markdown(table).partition("\n\n")[2].strip()
