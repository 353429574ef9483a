"""Publications agree with their results: every report.md and the index under published/, made again.

Figures depend on the version of the library that draws them, so only their presence is tested.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from lit_transformers.records.files import PUBLISHED, RESULTS
from reports.gallery import read_entry, to_gallery_markdown
from reports.publish import published
from reports.report import PUBLIC_FORMATS, REPORT, markdown
from reports.show.figures import EFFECTS, drawings
from reports.show.sections import all_tables

entry_of = cache(read_entry)


@pytest.mark.slow
@pytest.mark.parametrize("directory", published(), ids=lambda directory: directory.name)
def test_the_report_says_what_the_results_say(directory: Path) -> None:
    findings = entry_of(directory).findings
    assert not [note for note in findings.study.notes if note.startswith(RESULTS)], "the results are damaged"
    captions = {drawing.name: drawing.caption for drawing in drawings(findings)}
    rendered = markdown(findings, all_tables(findings), captions, PUBLIC_FORMATS)
    remedy = f"{directory.name}: make it again by: python -m reports gallery --render"
    assert rendered == (directory / REPORT).read_text(encoding="utf-8"), remedy
    figures = {f"{name}.{ending}" for name in captions for ending in PUBLIC_FORMATS}
    assert {path.name for path in directory.iterdir()} == {RESULTS, REPORT, *figures}, remedy


@pytest.mark.slow
def test_the_index_says_what_the_results_say() -> None:
    rendered = to_gallery_markdown([entry_of(directory) for directory in published()])
    assert rendered == (PUBLISHED / "README.md").read_text(encoding="utf-8"), "make it again: python -m reports gallery"
    assert (PUBLISHED / f"{EFFECTS}.png").is_file()
