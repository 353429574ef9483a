"""The page of a study with thousands of runs holds every value in few characters, and its figures some of the arms."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports import judge_table


def test_a_large_study_has_a_small_page_with_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"arm": f"a{arm}", "seed": seed, "val_loss": 3 + arm + seed * (arm + 1) / 1000}
        for arm in range(9)
        for seed in range(20)
    ]
    findings = judge_table(rows, "val_loss")
    whole = findings.to(tmp_path / "whole").read_text()
    monkeypatch.setattr("reports.read.study.MANY_RUNS", 10)
    monkeypatch.setattr("reports.show.figures.MOST_DRAWN", 3)
    page = findings.to(tmp_path / "large").read_text()
    assert len(page) < 0.7 * len(whole)
    assert page.count("Mean ± standard deviation") == 2, "the column's heading, and its label on a narrow page"
    assert "td:nth-child(2){--label:var(--column-2)}" in page
    assert "Differences from the baseline" not in page, "a table says nothing of configs"
    for arm in range(9):
        assert f"val_loss by seed: 0: {3 + arm}.0000, 1: {3 + arm}.00{arm + 1}0, " in page
    report = (tmp_path / "large" / "report.md").read_text()
    assert "The 3 largest of 8 are drawn." in report
    assert "are drawn" not in (tmp_path / "whole" / "report.md").read_text()
