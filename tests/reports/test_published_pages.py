"""What is published is what its results say: every report.md and the index under published/, made again.

Figures depend on the version of what draws them, so theirs is only asked to be there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_transformers.records.files import RESULTS
from reports.gallery import read_entries, to_gallery_markdown
from reports.publish import PUBLISHED, published
from reports.read.results import read_results
from reports.report import PUBLIC_FORMATS, REPORT, find, markdown
from reports.show.figures import drawings
from reports.show.sections import all_tables


@pytest.mark.parametrize("directory", published(), ids=lambda directory: directory.name)
def test_the_report_says_what_the_results_say(directory: Path) -> None:
    study = read_results(directory / RESULTS)
    assert not [note for note in study.notes if note.startswith(RESULTS)], "the results are damaged"
    findings = find(study)
    captions = {drawing.name: drawing.caption for drawing in drawings(findings)}
    rendered = markdown(findings, all_tables(findings), captions, PUBLIC_FORMATS)
    remedy = f"{directory.name}: make it again by: python -m reports gallery --render"
    assert rendered == (directory / REPORT).read_text(encoding="utf-8"), remedy
    figures = {f"{name}.{ending}" for name in captions for ending in PUBLIC_FORMATS}
    assert {path.name for path in directory.iterdir()} == {RESULTS, REPORT, *figures}, remedy


def test_the_index_says_what_the_results_say() -> None:
    rendered = to_gallery_markdown(read_entries(PUBLISHED))
    assert rendered == (PUBLISHED / "README.md").read_text(encoding="utf-8"), "make it again: python -m reports gallery"
