"""Whether verdicts stand at other learning rates: in every seed, in none, or in some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from study_on_disk import write_plan, write_run

from lit_transformers.records.rate_values import RateRun, RateValues, write_rates
from reports.judge.comparisons import Comparison
from reports.judge.rates import arm_rates, at_rates
from reports.judge.statistics import estimate
from reports.read.study import Study, load_study
from reports.report import find, write_study
from reports.show.rates import rate_sentence

ARMS = [{"memory": "8"}, {"memory": "0"}]


def study_with_rates(
    folder: Path, at: dict[float, Sequence[tuple[float | None, float | None]]], compare: str = "difference"
) -> Study:
    """Writes a study of two arms whose second one is worse by about .5 bits, with values at other rates by seed: of the
    first arm and of the second, None where a run has none."""
    metric = {"name": "val/bpb", "goal": "minimize", "label": "bits per byte", "compare": compare}
    write_plan(folder, ARMS, design="one_factor", factors={"memory": ["8", "0"]}, metric=metric)
    for number, arm in enumerate(("memory=8", "memory=0")):
        for seed in range(3):
            write_run(folder, arm, seed, [(1 + number) * (100.0 + seed) + position for position in range(10)])
    runs = [
        RateRun(
            arm, seed, factor, f"{arm}-{seed}".replace("=", "-"), f"{arm}{seed}{factor}", value, "" if value else "nan"
        )
        for factor, by_seed in at.items()
        for seed, values in enumerate(by_seed)
        for arm, value in zip(("memory=8", "memory=0"), values, strict=True)
    ]
    write_rates(folder, "xl_recurrence", RateValues("val/bpb", tuple(runs)))
    return load_study(folder, "xl_recurrence")


def test_a_verdict_stands_where_all_seeds_have_its_sign_and_reverses_where_none_has(tmp_path: Path) -> None:
    at = {
        0.25: [(1.0, 1.2), (1.0, 1.1)],
        0.5: [(1.0, 1.2), (1.2, 1.1)],
        2.0: [(1.3, 1.2), (1.2, 1.1)],
        4.0: [(1.0, None)],
    }
    study = study_with_rates(tmp_path, at)
    findings = find(study)
    assert [one.verdict for one in findings.comparisons] == ["worse"]
    rows = at_rates(study, findings.comparisons)
    assert [one.standing for one in rows] == ["stands", "mixed", "reverses", None]
    assert rows[0].differences == pytest.approx((0.2, 0.1)) and rows[3].missing == ("memory=0, seed 0: nan",)
    sentence = rate_sentence(findings)
    assert sentence.startswith("At 0.25 times the learning rate: ") and sentence.endswith(
        "has no result (2 seeds each)."
    )
    assert "At twice the learning rate: memory=0 against the baseline is reversed" in sentence
    # The same from results.jsonl alone, as a publication is read, and on the page.
    directory = tmp_path / "report"
    assert rate_sentence(write_study(study, directory)) == sentence
    page = (directory / "report.md").read_text()
    assert "## The comparisons at other learning rates" in page and "## The arms at other learning rates" in page


def test_equal_stands_within_the_margin_and_a_ratio_is_of_logarithms(tmp_path: Path) -> None:
    study = study_with_rates(tmp_path, {0.5: [(1.0, 2.0), (1.0, 4.0)], 2.0: [(1.0, 1.1), (1.0, 9.0)]}, compare="ratio")
    weights = {"memory=0": 1.0, "memory=8": -1.0}
    near = Comparison("x", "contrast", weights, estimate([0.1, 0.0]), verdict="equal", margin=1.5)
    low, high = at_rates(study, [near])
    assert low.differences == pytest.approx((0.6931, 1.3863), abs=1e-4) and low.standing == "stands"
    assert high.standing == "mixed"
    assert [one.standing for one in at_rates(study, [replace(near, margin=0.1)])] == ["reverses", "mixed"]
    assert [one.standing for one in at_rates(study, [replace(near, verdict="unresolved")])] == [None, None]


def test_the_best_rate_of_an_arm_is_over_the_seeds_of_all_rates(tmp_path: Path) -> None:
    study = study_with_rates(tmp_path, {0.5: [(0.1, 0.9), (0.1, None)], 2.0: [(0.2, 9.0), (0.2, 9.0)]})
    first, second = arm_rates(study)
    assert [*first.means] == [0.5, 1.0, 2.0] and (first.best(minimize=True), first.best(minimize=False)) == (0.5, 2.0)
    assert (first.seeds, second.seeds) == (2, 1) and second.means[0.5] == 0.9


def test_rates_of_other_runs_are_not_used(tmp_path: Path) -> None:
    study = study_with_rates(tmp_path, {0.5: [(1.0, 1.2)]})
    assert study.rates is not None and study.rates.are_of(study.plan)
    other = replace(study.rates, runs=tuple(replace(run, of="another") for run in study.rates.runs))
    write_rates(tmp_path, "xl_recurrence", other)
    assert load_study(tmp_path, "xl_recurrence").rates is None
    (tmp_path / "studies" / "xl_recurrence" / "rates.json").write_text("{")
    assert "rates.json: damaged" in load_study(tmp_path, "xl_recurrence").notes[0]
