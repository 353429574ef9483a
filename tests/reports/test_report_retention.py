"""The report shows how much networks forget, from results.jsonl alone, and beyond a limit there is no verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from scipy.stats import t as student
from study_on_disk import BYTES, FACTORS, key_of, name_of, product_arms, write_json, write_plan, write_run

from lit_transformers.records.files import RECORD, RESULTS
from lit_transformers.records.plan import Margin, Metric, PlannedRetention
from reports.judge import statistics
from reports.judge.comparisons import Comparison, compare
from reports.judge.retention import Forgetting, forgetting, forgetting_of
from reports.read.results import read_results
from reports.read.study import Study, load_study
from reports.report import PAGE, render, write_report
from reports.restore import restore

ON, _, OFF, _ = map(name_of, product_arms())
SEEDS = 4
BEFORE = 0.862
METRIC = {"name": "val/hit@1", "goal": "maximize", "label": "hit@1", "compare": "difference", "margin": None}


def measured(runs: Path, key: str, value: float | None, metric: str = "val/hit@1") -> dict[str, Any]:
    """Writes the record of a run that measures retention, without one where it has no value; returns it as planned."""
    if value is not None:
        record = {"version": 1, "key": key, "outcome": "finished", "seed": 0, "metrics": {metric: value}}
        write_json(runs / key / "record.json", record)
    return {"seed": 0, "key": key}


def planned(
    runs: Path, name: str, values: Mapping[str, Sequence[float | None]], limit: float | None = None
) -> dict[str, Any]:
    """Writes the records of the measurements of each arm after its seeds, and returns their plan."""
    before = measured(runs, f"{name}-before", BEFORE)
    arms = {
        arm: [
            {"seed": seed, "before": before, "after": measured(runs, f"{name}-{key_of(arm, seed)}", value)}
            for seed, value in enumerate(of_arm)
        ]
        for arm, of_arm in values.items()
    }
    stated = {} if limit is None else {"limit": {"size": limit, "reason": "a reader would notice more."}}
    return {"name": name, "metric": METRIC, "arms": arms} | stated


def write_study(runs: Path, *retention: dict[str, Any], seeds: int = SEEDS) -> None:
    """Writes a study of two arms that clearly differ."""
    arms = [product_arms()[0], product_arms()[2]]
    factors = {"recurrence": FACTORS["recurrence"]}
    write_plan(runs, arms, seeds, factors=factors, design="one_factor", retention=[*retention])
    for arm, extra in ((ON, 0.0), (OFF, 0.1)):
        for seed in range(seeds):
            write_run(runs, arm, seed, BYTES * (2.0 + extra + 0.01 * seed * (1 + extra)))


def comparison(study: Study) -> Comparison:
    (only,) = compare(study, [])
    return only


AFTER = {ON: [0.43, 0.45, 0.41, 0.42], OFF: [0.85, 0.86, 0.87, 0.86]}


def test_the_report_has_before_after_and_the_paired_difference_of_each_arm_with_its_interval(tmp_path: Path) -> None:
    write_study(tmp_path, planned(tmp_path, "retrieval", AFTER))
    report = write_report(tmp_path, "xl_recurrence")
    lost = {one.arm: one for one in forgetting(load_study(tmp_path, "xl_recurrence"))}
    for arm, values in AFTER.items():
        differences = np.array(values) - BEFORE
        half = student.ppf(0.975, SEEDS - 1) * differences.std(ddof=1) / SEEDS**0.5
        one = lost[arm]
        assert one.difference is not None and one.difference.interval is not None
        assert (one.before, one.after) == pytest.approx((BEFORE, np.mean(values)))
        assert one.difference.interval == pytest.approx((differences.mean() - half, differences.mean() + half))
        assert one.interval == pytest.approx((-differences.mean() - half, -differences.mean() + half))
    text = report.read_text()
    table = text[text.index("## Forgetting") :]
    assert "| on (baseline) | retrieval | 0.8620 | 0.4275 | -0.4345 | -0.4617 to -0.4073 |" in table.replace("*", "")
    assert "retrieval: hit@1; more is better." in table
    assert comparison(load_study(tmp_path, "xl_recurrence")).verdict == "worse", "without a limit all are judged"


def test_all_of_it_follows_from_the_results_alone(tmp_path: Path) -> None:
    write_study(
        tmp_path, planned(tmp_path, "retrieval", AFTER, limit=0.05), planned(tmp_path, "tagging", {OFF: [0.8] * 4})
    )
    report = write_report(tmp_path, "xl_recurrence").parent
    names = [PAGE, "report.md", "report.csv", "report.tex"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / RESULTS).write_bytes((report / RESULTS).read_bytes())
    render(elsewhere)
    assert all((elsewhere / name).read_bytes() == (report / name).read_bytes() for name in names)
    assert "forgets too much: retrieval after" in (elsewhere / PAGE).read_text()
    assert "tagging" in (elsewhere / PAGE).read_text() and "forgetting,1," in (elsewhere / "report.csv").read_text()
    study = read_results(elsewhere / RESULTS)
    assert len(study.retention) == 1 + 2 * SEEDS + 1 + SEEDS
    assert {run.value for run in study.retention.values()} >= {BEFORE, 0.8, *AFTER[ON]}
    runs = tmp_path / "restored"
    assert restore(study, runs, {*study.retention}) == len(study.retention)
    assert json.loads((runs / "retrieval-before" / RECORD).read_text())["metrics"] == {"val/hit@1": BEFORE}


def test_beyond_a_limit_there_is_no_verdict_and_the_reason_is_said(tmp_path: Path) -> None:
    """Also between an arm that keeps it and one that does not; the difference itself stands."""
    write_study(tmp_path, planned(tmp_path, "retrieval", AFTER, limit=0.05))
    study = load_study(tmp_path, "xl_recurrence")
    one = comparison(study)
    assert one.verdict is None and one.estimate is not None
    reason = f"forgets too much: retrieval after {ON} is worse by 0.434 (0.407 to 0.462), and the limit is 0.05"
    assert one.reason == reason
    text = write_report(tmp_path, "xl_recurrence").read_text()
    assert "none: forgets too much" in text and "Limit of retrieval: a reader would notice more." in text
    kept = {ON: AFTER[OFF], OFF: AFTER[OFF]}
    write_study(tmp_path, planned(tmp_path, "retrieval", kept, limit=0.05))
    assert comparison(load_study(tmp_path, "xl_recurrence")).verdict == "worse"


def test_what_may_lie_beyond_the_limit_is_not_within_it(tmp_path: Path) -> None:
    """The mean is within, the interval is not: .03 lost on average, and up to .09."""
    values = {ON: [0.86, 0.80, 0.86, 0.81], OFF: AFTER[OFF]}
    write_study(tmp_path, planned(tmp_path, "retrieval", values, limit=0.05))
    one = comparison(load_study(tmp_path, "xl_recurrence"))
    assert one.verdict is None and one.reason is not None
    assert one.reason.startswith(f"may forget too much: retrieval after {ON} is worse by 0.0295 (")
    assert one.reason.endswith("and the limit is 0.05; more seeds may show that it keeps the limit")


def test_less_of_a_loss_is_better_and_a_gain_is_no_loss(tmp_path: Path) -> None:
    write_study(tmp_path, planned(tmp_path, "language", {ON: [0.1, 0.2, 0.1, 0.2], OFF: AFTER[OFF]}, limit=0.05))
    study = load_study(tmp_path, "xl_recurrence")
    (retention,) = study.plan.retention
    assert forgetting_of(study, retention, ON).lost > 0
    minimized = replace(retention, metric=replace(retention.metric, goal="minimize"))
    assert forgetting_of(study, minimized, ON).lost < 0 and forgetting_of(study, minimized, ON).reason is None


def test_a_measurement_that_is_missing_is_named_and_with_a_limit_there_is_no_verdict(tmp_path: Path) -> None:
    values: dict[str, Sequence[float | None]] = {ON: AFTER[OFF], OFF: [0.85, None, 0.87, None]}
    write_study(tmp_path, planned(tmp_path, "retrieval", values, limit=0.05))
    one = comparison(load_study(tmp_path, "xl_recurrence"))
    assert one.verdict is None
    assert one.reason == f"retrieval after {OFF} has a limit and was not measured: seed 1, 3 not run"
    write_study(tmp_path, planned(tmp_path, "tagging", values), planned(tmp_path, "parsing", {ON: [None] * SEEDS}))
    assert comparison(load_study(tmp_path, "xl_recurrence")).verdict == "worse"
    text = write_report(tmp_path, "xl_recurrence").read_text()
    assert "Without tagging after off: seed 1, 3 not run." in text and "seed 0, 1, 2, 3 not run" in text


def test_arms_without_weights_to_start_from_have_nothing_to_forget_and_are_judged(tmp_path: Path) -> None:
    write_study(tmp_path, planned(tmp_path, "retrieval", {OFF: AFTER[OFF]}, limit=0.05))
    assert comparison(load_study(tmp_path, "xl_recurrence")).verdict == "worse"
    assert "nothing to forget: on (baseline)" in write_report(tmp_path, "xl_recurrence").read_text()


def test_of_one_seed_and_of_seeds_that_lose_the_same_the_loss_itself_counts() -> None:
    limited = PlannedRetention("x", Metric("val/hit@1", goal="maximize"), Margin(0.05, "why"))
    for pairs, within in ([[-0.04]], True), ([[-0.06]], False), ([[-0.04] * 3], True), ([[-0.06] * 3], False):
        one = Forgetting(limited, "arm", difference=statistics.estimate(pairs[0]))
        assert (one.reason is None) == within


def test_an_arm_beyond_the_limit_gets_a_verdict_in_no_more_than_one_of_forty_studies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Made-up studies of three seeds, of an arm at the limit itself, beyond it, and within it."""
    monkeypatch.setattr(statistics, "RESAMPLES", 10)  # for percentiles that nothing here reads
    limit, spread, studies, draw = 0.05, 0.02, 1000, np.random.default_rng(0)
    limited = PlannedRetention("x", Metric("val/hit@1", goal="maximize"), Margin(limit, "why"))

    def judged(lost: float) -> int:
        values = -draw.normal(lost, spread, (studies, 3))
        return sum(Forgetting(limited, "a", difference=statistics.estimate(one)).reason is None for one in values)

    assert binomtest(judged(limit), studies, 0.025).pvalue > 0.01
    assert judged(limit + spread) < 0.01 * studies
    assert judged(limit - 6 * spread) > 0.95 * studies
