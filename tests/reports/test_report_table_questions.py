"""The designs of tables: independent seeds, several baselines, declared looks, times to a target, counts and tasks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from reports import judge_table
from reports.__main__ import main
from reports.judge.comparisons import Comparison
from reports.judge.learning import fisher_p
from reports.judge.normality import WIDENING
from reports.judge.unpaired import can_permute, permutation_p
from reports.read.study import ReportError

Rows = list[dict[str, object]]


def rows_of(arms: dict[str, tuple[float, int]], spread: float = 0.01, **more: object) -> Rows:
    generator = np.random.default_rng(0)
    return [
        {"arm": arm, "seed": seed, "val_loss": mean + spread * generator.standard_normal(), **more}
        for arm, (mean, seeds) in arms.items()
        for seed in range(seeds)
    ]


def values_of(rows: Rows, arm: str) -> list[float]:
    return [float(str(row["val_loss"])) for row in rows if row["arm"] == arm]


def curves(arms: dict[str, list[float]]) -> Rows:
    """Runs whose loss falls below 3 at the step of each seed, and which end at step 100."""
    return [
        {"arm": arm, "seed": seed, "step": step, "val_loss": 3.5 if step < reached else 2.9}
        for arm, times in arms.items()
        for seed, reached in enumerate(times)
        for step in range(10, 101, 10)
    ]


def half_width(one: Comparison) -> float:
    assert one.estimate is not None
    assert one.estimate.interval is not None
    return (one.estimate.interval[1] - one.estimate.interval[0]) / 2


def test_independent_arms_of_different_sizes_have_the_intervals_of_welch() -> None:
    rows = rows_of({"base": (3.3, 4), "new": (3.1, 9)})
    (one,) = judge_table(rows, "val_loss", unpaired=True).comparisons
    welch = stats.ttest_ind(values_of(rows, "new"), values_of(rows, "base"), equal_var=False).confidence_interval()
    assert half_width(one) == pytest.approx(WIDENING * (welch.high - welch.low) / 2)
    assert one.verdict == "better"
    assert one.estimate is not None
    assert one.estimate.difference == pytest.approx(np.mean(values_of(rows, "new")) - np.mean(values_of(rows, "base")))


def test_what_seeds_have_in_common_narrows_paired_intervals_alone_and_a_note_says_how_they_are_compared() -> None:
    shift = np.random.default_rng(1).normal(0, 1, 4)
    rows = rows_of({"base": (3.3, 4), "new": (3.1, 4)})
    rows = [{**row, "val_loss": float(str(row["val_loss"])) + shift[int(str(row["seed"]))]} for row in rows]
    paired, unpaired = (judge_table(rows, "val_loss", unpaired=unpaired) for unpaired in (False, True))
    assert half_width(unpaired.comparisons[0]) > 10 * half_width(paired.comparisons[0])
    assert any("pairing: the 4 seeds that all arms share" in note for note in paired.notes)
    assert any("pairing: none" in note for note in unpaired.notes)


def test_near_normal_independent_seeds_are_shown_to_be_so() -> None:
    rows = rows_of({"base": (3.3, 30), "new": (3.3, 30)})
    (one,) = judge_table(rows, "val_loss", unpaired=True).comparisons
    assert one.widening == 1


def test_labels_are_permuted_where_seeds_are_independent() -> None:
    far, near = [1.0, 1.1, 1.2, 1.3], [0.1, 0.2, 0.3, 0.4]
    assert permutation_p((far, near)) == pytest.approx(2 / 70)
    assert permutation_p((far, [1.05, 1.15, 1.25, 1.35])) > 0.3
    assert permutation_p((near, near), margin=2.0) == pytest.approx(1 / 70)
    assert permutation_p((near, far), margin=0.5) > 0.5
    assert not can_permute((near[:3], far[:3]))
    assert can_permute((near, far))
    assert permutation_p((np.arange(30.0).tolist(), (np.arange(30.0) + 100).tolist())) < 0.001


def test_shares_of_independent_seeds_are_compared_by_the_exact_test_of_fisher() -> None:
    for table in ((3, 8, 7, 9), (0, 5, 5, 5), (2, 2, 2, 2)):
        one, total, other, total_of_other = table
        expected = stats.fisher_exact([[one, total - one], [other, total_of_other - other]]).pvalue
        assert fisher_p(*table) == pytest.approx(expected)


def test_every_arm_is_compared_with_each_baseline_in_one_family() -> None:
    rows = rows_of({"a": (3.3, 5), "b": (3.2, 5), "c": (3.1, 5)})
    findings = judge_table(rows, "val_loss", baseline=["a", "b"])
    assert [one.name for one in findings.comparisons] == ["b against a", "c against a", "c against b"]
    (alone,) = judge_table(rows, "val_loss", baseline="a", arms=["a", "b"]).comparisons
    assert half_width(alone) == pytest.approx(half_width(findings.comparisons[0]))
    assert alone.adjusted is not None
    assert findings.comparisons[0].adjusted is not None
    assert alone.adjusted < findings.comparisons[0].adjusted


def test_tasks_are_judged_each_and_over_all_of_them() -> None:
    rows = [
        {**row, "task": task, "val_loss": float(str(row["val_loss"])) + shift}
        for task, shift in (("text", 0.0), ("code", -1.0))
        for row in rows_of({"base": (3.3, 5), "new": (3.1, 5)})
    ]
    findings = judge_table(rows, "val_loss", task="task")
    names = [one.name for one in findings.comparisons]
    assert names == ["new against base on text", "new against base on code", "arm: new against base"]
    assert {one.verdict for one in findings.comparisons} == {"better"}
    assert [one.kind for one in findings.primary] == ["main effect"]
    on_text = findings.comparisons[0].estimate
    assert on_text is not None
    assert on_text.difference == pytest.approx(
        np.mean(values_of(rows[:10], "new")) - np.mean(values_of(rows[:10], "base"))
    )


def test_a_run_is_one_sample_of_all_its_tasks_where_seeds_are_independent() -> None:
    noise = np.random.default_rng(0).normal(0, 1, (2, 5))
    rows = [
        {"arm": arm, "seed": seed, "task": task, "val_loss": 3 + noise[number, seed]}
        for number, arm in enumerate(("base", "new"))
        for seed in range(5)
        for task in ("one", "two", "three")
    ]
    comparisons = judge_table(rows, "val_loss", task="task", unpaired=True).comparisons
    errors = [one.estimate.variances.seed for one in comparisons if one.estimate and one.estimate.variances]
    assert errors == pytest.approx([errors[0]] * 4)


def test_counts_add_the_variance_of_their_examples() -> None:
    rows = [
        {"arm": arm, "seed": seed, "correct": correct + seed, "total": 1000}
        for arm, correct in (("base", 700), ("new", 720))
        for seed in range(4)
    ]
    for row in rows[-2:]:
        row["correct"] = 722
    (counted,) = judge_table(rows, correct="correct", total="total").comparisons
    shares = [{**row, "accuracy": int(str(row["correct"])) / 1000} for row in rows]
    (plain,) = judge_table(shares, "accuracy").comparisons
    assert counted.estimate is not None
    assert plain.estimate is not None
    assert counted.estimate.difference == pytest.approx(plain.estimate.difference)
    assert counted.estimate.variances is not None
    expected = sum(
        np.mean([p * (1 - p) / 1000 for p in ps])
        for ps in ([s["accuracy"] for s in shares[:4]], [s["accuracy"] for s in shares[4:]])
    )  # type: ignore[operator]
    assert counted.estimate.variances.document == pytest.approx(expected)
    assert half_width(counted) > half_width(plain)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correct": 11}, "row 1: 11 correct of 10 are no counts"),
        ({"correct": 0.5}, "row 1: 0.5 correct of 10 are no counts"),
        ({"total": 0, "correct": 0}, "row 1: 0 correct of 0 are no counts"),
        ({"accuracy": 0.5}, "the table has a column 'accuracy'; with counts, give another name as --metric"),
    ],
)
def test_counts_that_are_none_are_refused(change: dict[str, object], message: str) -> None:
    rows: Rows = [{"arm": arm, "seed": seed, "correct": 5, "total": 10} for arm in "ab" for seed in range(2)]
    with pytest.raises(ReportError) as caught:
        judge_table([rows[0] | change, *rows[1:]], correct="correct", total="total")
    assert message in str(caught.value)


def test_times_to_a_target_are_compared_by_ratio_at_the_first_step_that_reaches_it() -> None:
    rows = curves({"base": [50, 60, 50, 60], "new": [20, 30, 30, 20]})
    findings = judge_table(rows, "val_loss", to_target=3.0)
    assert findings.metric.name == "step to 3 val_loss"
    assert [run.value for run in findings.study.of("new")] == [20, 30, 30, 20]
    (one,) = findings.comparisons
    assert one.estimate is not None
    assert one.estimate.difference == pytest.approx(np.mean(np.log([20 / 50, 30 / 60, 30 / 50, 20 / 60])))


def test_a_run_that_never_reaches_the_target_has_no_time_and_is_counted() -> None:
    never = 1000.0
    rows = curves({"base": [never] * 6 + [90, 80], "new": [20.0] * 8})
    for unpaired, test in ((False, "McNemar"), (True, "Fisher")):
        (one,) = judge_table(rows, "val_loss", to_target=3.0, unpaired=unpaired).comparisons
        assert one.verdict is None
        assert "not every run reaches 3 val_loss, all but 6 of 8 seeds of base" in (one.reason or "")
        assert one.frequency is not None
        assert one.frequency.learned == {"new": 8, "base": 2}
        assert one.frequency.is_decided
        assert one.frequency.test == test
    short = [row for row in rows if row["arm"] == "new" or int(str(row["step"])) < 60]
    notes = judge_table(short, "val_loss", to_target=3.0).notes
    assert any("The runs end at 50 to 100 step" in note for note in notes)


def plan_file(tmp_path: Path) -> Path:
    table, plan = tmp_path / "runs.csv", tmp_path / "looks.json"
    pd.DataFrame(rows_of({"base": (3.3, 6), "new": (3.1, 6)})).to_csv(table, index=False)
    command = ["judge", "--metric", "val_loss", "--margin", "0.05", "--looks", "4,8", "--arms", "base,new"]
    assert main([*command, "--write-plan", str(plan)]) == 0
    return plan


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_a_table_is_judged_by_the_looks_that_were_declared(tmp_path: Path) -> None:
    plan, table = plan_file(tmp_path), tmp_path / "runs.csv"
    assert json.loads(plan.read_text()) == {
        "metric": "val_loss",
        "goal": "minimize",
        "looks": [4, 8],
        "arms": ["base", "new"],
        "baselines": ["base"],
        "margin": 0.05,
    }
    findings = judge_table(table, plan=plan)
    looks = findings.study.plan.looks
    assert looks is not None
    assert (looks.planned, looks.taken) == ((4, 8), (4,))
    assert findings.metric.margin is not None
    assert findings.metric.margin.size == 0.05
    pd.DataFrame(rows_of({"base": (3.3, 10), "new": (3.1, 10)})).to_csv(table, index=False)
    beyond = judge_table(table, plan=plan).study.plan.looks
    assert beyond is not None
    assert beyond.taken == (4, 8, 10)


def test_a_declared_judgement_is_not_changed_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, table = plan_file(tmp_path), tmp_path / "runs.csv"
    for option, value, declared in (
        ("--margin", "0.2", "--margin 0.05"),
        ("--baseline", "new", "--baseline base"),
        ("--metric", "loss", "--metric val_loss"),
        ("--looks", "4,6", "--looks 4,8"),
        ("--target", "3.28", "--target nothing"),
    ):
        assert main(["judge", str(table), "--plan", str(plan), option, value]) == 2
        message = capsys.readouterr().err
        assert f"declares {declared}, and the command says {value}; omit the option" in message
        assert message.count("\n") == 1
    (tmp_path / "looks.json").write_text("{}")
    assert main(["judge", str(table), "--plan", str(plan)]) == 2
    assert "declares no looks" in capsys.readouterr().err


def test_whether_the_looks_were_committed_is_said(tmp_path: Path) -> None:
    plan, table = plan_file(tmp_path), tmp_path / "runs.csv"

    def note() -> str:
        return judge_table(table, plan=plan).notes[0]

    assert "is in no commit" in note()
    git(tmp_path, "init")
    git(tmp_path, "add", "looks.json")
    assert "is in no commit" in note()
    git(tmp_path, "commit", "-m", "Declare looks")
    assert "unchanged since commit" in note()
    plan.write_text(plan.read_text().replace("0.05", "0.5"))
    assert "which has changed since its last commit" in note()


def test_looks_take_seeds_in_order_whatever_their_numbers() -> None:
    rows = rows_of({"base": (3.3, 6), "new": (3.1, 6)})
    numbered = [{**row, "seed": 1000 * int(str(row["seed"])) + 7} for row in rows]
    expected, (one,) = (judge_table(table, "val_loss", looks=(4, 8)).comparisons for table in (rows, numbered))
    assert one.estimate == expected[0].estimate


def test_the_whole_report_of_each_design_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.csv"
    pd.DataFrame(curves({"base": [50, 60, 50, 1000], "new": [20, 30, 30, 20]})).to_csv(table, index=False)
    command = ["judge", str(table), "--metric", "val_loss", "--unpaired", "--to-target", "3", "--to"]
    assert main([*command, str(tmp_path / "report")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "base (baseline) reaches 3 val_loss in 3 of 4 seeds" in printed
    report = (tmp_path / "report" / "report.md").read_text()
    assert "Fisher" in report
    assert "Differences are of independent samples" in report
