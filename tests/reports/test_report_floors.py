"""A report says what simple predictors reach, and whether the baseline has learned enough to answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from study_on_disk import key_of, name_of, product_arms, write_json, write_product

from lit_transformers.records.files import RESULTS
from reports.gallery import read_entry, summary
from reports.judge.agreement import judge_comparisons
from reports.read.records import load_study
from reports.read.results import read_results, write_results
from reports.report import find
from reports.show.answer import headline
from reports.show.sections import Findings, all_tables, floor_text

ON, _, OFF, _ = map(name_of, product_arms())
CELLS = [{"arm": ON, "value": 26.8}, {"arm": OFF, "value": 29.0}]
PUBLISHED = {"protocol": "WikiText-103", "metric": "perplexity", "cells": CELLS}
CONTRAST = [{"name": "recurrence on vs off", "arm": ON, "against": OFF}]


def findings_with(runs: Path, floors: dict[str, float] | None, key: str = key_of(ON, 0), **changes: Any) -> Findings:
    """The findings of a study whose baseline reaches about 2.5 bits per byte, and without recurrence .2 more."""
    write_product(runs, {"off": 0.2}, contrasts=CONTRAST, published=PUBLISHED, **changes)
    if floors is not None:
        values = [{"name": name, "value": value} for name, value in floors.items()]
        write_json(runs / "studies/xl_recurrence/floors.json", {"key": key, "values": values, "reason": "no text"})
    return find(load_study(runs, "xl_recurrence"))


def table_of(findings: Findings, name: str) -> list[list[Any]]:
    return [[cell.value for cell in row] for table in all_tables(findings) if table.name == name for row in table.rows]


def test_the_baseline_is_compared_with_the_best_floor(tmp_path: Path) -> None:
    findings = findings_with(tmp_path, {"pairs": 3.6, "triples": 2.75})
    mean = table_of(findings, "results")[0][1]
    assert table_of(findings, "floors") == [
        ["pairs", 3.6, pytest.approx(3.6 - mean)],
        ["triples", 2.75, pytest.approx(2.75 - mean)],
    ]
    assert floor_text(findings) == f"The baseline beats the best floor (triples) by {2.75 - mean:.4f}."
    assert not findings.trained_too_little and headline(findings).startswith("Recurrence on vs off:")
    [judged] = judge_comparisons(findings)
    assert judged.agreement == "agrees"


def test_a_baseline_below_its_floor_was_trained_too_little_and_agrees_with_nothing(tmp_path: Path) -> None:
    findings = findings_with(tmp_path, {"pairs": 3.6, "triples": 2.4})
    mean = table_of(findings, "results")[0][1]
    assert headline(findings).startswith(
        f"Trained too little to answer: the baseline reaches {mean:.4f} bits per byte, and what anyone gets is 2.4000 "
        "(triples). Recurrence on vs off: bits per byte lower by"
    )
    assert floor_text(findings).startswith("The baseline does not beat the best floor (triples): it is worse by 0.")
    [judged] = judge_comparisons(findings)
    assert judged.agreement == "not asked" and judged.comparison.verdict == "better"
    write_results(findings.study, tmp_path / RESULTS)
    assert "agrees: 0, disagrees: 0, unresolved: 0, not asked: 1" in summary([read_entry(tmp_path)]).lower()


def test_of_a_metric_that_rises_the_highest_floor_is_the_best(tmp_path: Path) -> None:
    metric = {"name": "val/bpb", "goal": "maximize", "label": "score"}
    assert findings_with(tmp_path, {"one": 2.9, "another": 2.1}, metric=metric).trained_too_little
    assert not findings_with(tmp_path, {"one": 2.3, "another": 2.1}, metric=metric).trained_too_little


@pytest.mark.parametrize(
    ("floors", "key", "expected"),
    [
        (None, key_of(ON, 0), "The floor was not measured."),
        ({"pairs": 2.4}, "of-other-data", "The floor was not measured."),
        ({}, key_of(ON, 0), "There is no floor: no text."),
    ],
    ids=["of a study before", "of another baseline", "without one"],
)
def test_without_a_floor_the_report_says_so_and_verdicts_count(
    tmp_path: Path, floors: dict[str, float] | None, key: str, expected: str
) -> None:
    findings = findings_with(tmp_path, floors, key)
    [results] = [table for table in all_tables(findings) if table.name == "results"]
    assert expected in results.notes and not table_of(findings, "floors")
    [judged] = judge_comparisons(findings)
    assert judged.agreement == "agrees"


def test_floors_are_part_of_the_results_and_are_published(tmp_path: Path) -> None:
    for floors in ({"pairs": 3.6, "triples": 2}, None):
        study = findings_with(tmp_path, floors).study
        assert (study.floors is None) == (floors is None)
        write_results(study, tmp_path / RESULTS)
        assert read_results(tmp_path / RESULTS).floors == study.floors
        (tmp_path / "studies/xl_recurrence/floors.json").unlink(missing_ok=True)


def test_a_damaged_file_of_floors_is_noted(tmp_path: Path) -> None:
    findings_with(tmp_path, {})
    (tmp_path / "studies/xl_recurrence/floors.json").write_text('{"key": 7}')
    findings = find(load_study(tmp_path, "xl_recurrence"))
    [note] = [note for note in findings.notes if "floors.json" in note]
    assert note.startswith("xl_recurrence/floors.json: damaged (key: ") and findings.study.floors is None
