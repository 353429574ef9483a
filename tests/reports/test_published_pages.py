"""What is published is what its results say: every table and page under reports/published, made again.

Figures depend on the version of what draws them, so theirs is only asked to be there; numbers in the CSV are at full
precision, whose last digits depend on the processor.
"""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path

import pytest

from reports.figures import drawings
from reports.gallery import read_entry, to_gallery_html, to_gallery_markdown
from reports.html import to_html
from reports.page import METHOD, PAGE, REPORT, find, texts
from reports.publish import PUBLISHED, published
from reports.results import RESULTS, read_results
from reports.sections import all_tables

STUDIES = published()


@pytest.mark.parametrize("directory", STUDIES, ids=lambda directory: directory.name)
def test_tables_say_what_the_results_say(directory: Path) -> None:
    findings = find(read_results(directory / RESULTS))
    captions = {drawing.name: drawing.caption for drawing in drawings(findings)}
    rendered = texts(findings, all_tables(findings), captions)
    for name in (REPORT, "report.tex"):
        assert rendered[name] == (directory / name).read_text(encoding="utf-8"), instruction(directory)
    assert equal_csv(rendered["report.csv"], (directory / "report.csv").read_text(encoding="utf-8")), instruction(
        directory
    )
    figures = {f"{name}.{ending}" for name in captions for ending in ("png", "svg")}
    assert {path.name for path in directory.iterdir()} == {*rendered, *figures, RESULTS, PAGE}, instruction(directory)


@pytest.mark.slow
@pytest.mark.parametrize("directory", STUDIES, ids=lambda directory: directory.name)
def test_a_page_says_what_the_results_say(directory: Path) -> None:
    rendered = to_html(find(read_results(directory / RESULTS)), [METHOD])
    assert without_figures(rendered) == without_figures((directory / PAGE).read_text(encoding="utf-8")), instruction(
        directory
    )


@pytest.mark.skipif(not STUDIES, reason="nothing is published")
def test_the_index_says_what_the_results_say() -> None:
    entries = [read_entry(directory) for directory in STUDIES]
    for name, rendered in (("README.md", to_gallery_markdown(entries)), ("index.html", to_gallery_html(entries))):
        assert rendered == (PUBLISHED / name).read_text(encoding="utf-8"), "make it again: python -m reports gallery"


@pytest.mark.parametrize("directory", STUDIES, ids=lambda directory: directory.name)
def test_results_were_read_without_a_note_of_damage(directory: Path) -> None:
    assert not [note for note in read_results(directory / RESULTS).notes if note.startswith(RESULTS)]


def test_csv_files_are_alike_where_only_the_last_digits_differ() -> None:
    assert equal_csv("a,0.1234567890123\n", "a,0.1234567890124\n")
    assert not equal_csv("a,0.12345678\n", "a,0.12345679\n")
    assert not equal_csv("a,0.1\n", "b,0.1\n") and not equal_csv("a,0.1\n", "a,\n")


def test_pages_are_compared_without_their_figures() -> None:
    assert without_figures("<p>a<svg x><g/></svg>b<svg/></p>") == without_figures("<p>a<svg y></svg>b<svg/></p>")


def instruction(directory: Path) -> str:
    return f"{directory.name}: make it again by: python -m reports gallery --render"


def equal_csv(first: str, second: str) -> bool:
    """Whether two CSV files hold the same text, and numbers that differ by rounding alone."""
    files = [list(csv.reader(io.StringIO(text))) for text in (first, second)]
    cells = [[cell for row in rows for cell in (*row, "\n")] for rows in files]
    return len(cells[0]) == len(cells[1]) and all(map(equal_cells, *cells))


def equal_cells(first: str, second: str) -> bool:
    try:
        return first == second or math.isclose(float(first), float(second), rel_tol=1e-9)
    except ValueError:
        return False


def without_figures(page: str) -> str:
    return re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
