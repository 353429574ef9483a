"""Metrics that a report shows next to the one that judges: nats next to an accuracy."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from study_on_disk import BYTES, key_of, name_of, product_arms, write_plan, write_rows, write_run

from lit_transformers.records.plan import Metric
from reports.judge.comparisons import compare
from reports.judge.findings import Findings
from reports.read.results import read_results, write_results
from reports.read.study import Study, load_study
from reports.report import find, markdown, print_report
from reports.show.html import to_html
from reports.show.sections import all_tables

ON, _, OFF, _ = map(name_of, product_arms())
ACCURACY = {"name": "val/accuracy", "goal": "maximize"}
NATS = Metric("val/nats", goal="minimize")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two arms over four seeds of 300 examples: they differ by .02 nats each time, and in accuracy by chance alone."""
    runs = tmp_path_factory.mktemp("runs")
    plain = {"name": "val/nats", "goal": "minimize", "label": "", "compare": "difference", "margin": None}
    write_plan(runs, product_arms()[::2], seeds=4, design="explicit", metric=ACCURACY, also=[plain])
    generator = np.random.default_rng(0)
    hardness = generator.normal(0.6, 0.1, 300)
    for arm, better in ((ON, 0.02), (OFF, 0.0)):
        for seed in range(4):
            nats = hardness - better + generator.normal(0, 0.02, 300)
            correct = (generator.random(300) < 0.75).astype(int)
            metrics = {"val/accuracy": float(correct.mean()), "val/nats": float(nats.mean())}
            write_run(runs, arm, seed, BYTES, metrics=metrics)
            rows = [[row, f"row{row}", repr(float(nats[row])), 1, 0, int(correct[row])] for row in range(300)]
            header = ["document", "name", "nats", "tokens", "bytes", "correct"]
            write_rows(runs / key_of(arm, seed) / "documents.csv", header, rows)
    return load_study(runs, "xl_recurrence")


@pytest.fixture(scope="module")
def findings(study: Study) -> Findings:
    return find(study)


def test_nats_next_to_an_accuracy_have_the_interval_of_a_study_that_judges_by_them(
    study: Study, findings: Findings
) -> None:
    [further] = findings.further
    judged = compare(replace(study.by(NATS), plan=replace(study.plan, metric=NATS, also=())), [])
    assert further.comparisons[0].estimate == judged[0].estimate
    assert further.comparisons[0].documents == 300
    assert judged[0].verdict == "worse" and further.comparisons[0].verdict is None
    assert study.by(NATS).mean_of(ON) == pytest.approx(0.58, abs=0.01)


def test_further_metrics_change_no_verdict(study: Study, findings: Findings) -> None:
    alone = find(replace(study, plan=replace(study.plan, also=())))
    assert alone.comparisons == findings.comparisons and findings.comparisons[0].verdict == "unresolved"
    assert alone.further == ()


def test_a_report_prints_both_with_intervals_and_says_which_one_judges(findings: Findings) -> None:
    tables = all_tables(findings)
    page, console = markdown(findings, tables, {}), Console(file=io.StringIO(), width=100)
    print_report(findings, console)
    assert isinstance(console.file, io.StringIO)
    estimate = findings.further[0].comparisons[0].estimate
    assert estimate is not None and estimate.interval is not None
    shown = f"val/nats (95 % interval {estimate.interval.low:.4f} to {estimate.interval.high:.4f}, 4 seeds)"
    for text in (page, " ".join(console.file.getvalue().split())):
        assert "val/accuracy judges. Shown and not judged: " in text and shown in text
    table = next(table for table in tables if table.name == "further_1")
    assert table.rows[0][1].value == pytest.approx(0.02, abs=0.004)
    assert "Paired differences, not judged" in to_html(findings, all_tables(findings))
    results = next(table for table in tables if table.name == "results")
    assert [column.title for column in results.columns] == ["Arm", "Mean ± standard deviation", "val/nats", "Seeds"]


def test_published_results_keep_the_further_metrics(study: Study, findings: Findings, tmp_path: Path) -> None:
    write_results(study, tmp_path / "results.jsonl")
    read = read_results(tmp_path / "results.jsonl")
    assert read.plan.also == (NATS,)
    assert find(read).further[0].comparisons == findings.further[0].comparisons
