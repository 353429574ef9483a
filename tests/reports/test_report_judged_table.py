"""Tables of results that any program wrote are judged as studies are."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lit_transformers.records.plan import Contrast
from reports import judge_table
from reports.__main__ import main
from reports.judge.comparisons import Comparison, compare
from reports.judge.findings import Findings
from reports.read.measurements import NOTHING
from reports.read.results import read_results
from reports.read.study import ReportError, Study

PUBLISHED = Path(__file__).parents[2] / "published"

ROWS = [
    {"arm": arm, "seed": seed, "val_loss": round(mean + 0.01 * math.sin(3 * seed + shift), 4)}
    for arm, mean, shift in (("base", 3.3, 0.0), ("new", 3.1, 0.4), ("alike", 3.3, 0.2))
    for seed in range(4)
]
CSV = "arm,seed,val_loss\n" + "".join(f"{row['arm']},{row['seed']},{row['val_loss']}\n" for row in ROWS)


def numbers(comparisons: Sequence[Comparison]) -> list[tuple[object, ...]]:
    return [
        (one.verdict, one.estimate and (one.estimate.difference, one.estimate.interval, one.estimate.seeds))
        for one in comparisons
    ]


def of_text(path: Path, text: str, metric: str = "val_loss") -> Findings:
    path.write_text(text, encoding="utf-8")
    return judge_table(path, metric)


def exportable(study: Study) -> bool:
    arms = [len(study.finished(arm)) for arm in study.arm_names]
    shared = set.intersection(*({run.seed for run in study.finished(arm)} for arm in study.arm_names))
    return len(arms) > 1 and min(arms) > 1 and study.missing() == 0 and len(shared) == max(arms)


def as_plain_study(study: Study) -> Study:
    """The study without the parts that a table of values does not hold: documents, floors, references, looks,
    retention."""
    plan, base = study.plan, study.plan.baseline
    arms = tuple(replace(arm, references=(), levels={"arm": arm.name}) for arm in plan.arms)
    contrasts = tuple(Contrast(f"{arm.name} against {base}", arm.name, base) for arm in arms if arm.name != base)
    plan = replace(
        plan, arms=arms, contrasts=contrasts, effects=None, references=(), looks=None, design="", match=None,
        retention=(), answer=None, metric=replace(plan.metric, quantity=None, learned=None),
    )  # fmt: skip
    bare = [replace(run, record=replace(run.record, data={}), measurements=NOTHING) for run in study.runs if run.record]
    return replace(study, plan=plan, runs=tuple(bare), floors=None, context=None, retention={})


def test_published_studies_exported_to_csv_are_judged_as_by_their_own_reports(tmp_path: Path) -> None:
    studies = [read_results(path) for path in sorted(PUBLISHED.glob("*/results.jsonl"))]
    exported = [study for study in studies if exportable(study)][:20]
    assert len(exported) == 20
    for study in exported:
        metric, path = study.plan.metric, tmp_path / "table.csv"
        rows = [{"arm": run.arm, "seed": run.seed, metric.name: repr(run.value)} for run in study.runs]
        pd.DataFrame(rows).to_csv(path, index=False)
        findings = judge_table(
            path,
            metric.name,
            goal=metric.goal,
            baseline=study.plan.baseline,
            margin=metric.margin.size if metric.margin else None,
            ratio=metric.compare == "ratio",
        )
        assert numbers(findings.comparisons) == numbers(compare(as_plain_study(study), [])), study.plan.study


def test_the_same_table_in_every_format_has_the_same_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = numbers(of_text(tmp_path / "table.csv", CSV).comparisons)
    assert [verdict for verdict, _ in expected] == ["better", "unresolved"]
    frame = pd.DataFrame(ROWS)
    pasted = "| arm | seed | val_loss |\n|:---|---:|---:|\n" + "".join(
        f"| **{row['arm']}** | {row['seed']} | `{row['val_loss']}` |\n" for row in ROWS
    )
    lines = "".join(
        json.dumps({"arm": r["arm"], "seed": r["seed"], "eval": {"loss": r["val_loss"]}}) + "\n" for r in ROWS
    )
    by_seed = frame.pivot(index="arm", columns="seed", values="val_loss").loc[["base", "new", "alike"]]
    by_arm = frame.pivot(index="seed", columns="arm", values="val_loss")[["base", "new", "alike"]]
    for text in (
        CSV.replace(",", "\t"),
        CSV.replace(",", ";"),
        "\ufeff" + CSV.replace("\n", "\r\n"),
        pasted,
        json.dumps(ROWS),
        by_seed.add_prefix("seed_").to_csv(),
        by_arm.to_csv(),
    ):
        assert numbers(of_text(tmp_path / "table.txt", text).comparisons) == expected, text[:40]
    assert numbers(of_text(tmp_path / "table.txt", lines, "eval.loss").comparisons) == expected
    assert numbers(judge_table(frame, "val_loss").comparisons) == expected
    frame.to_parquet(tmp_path / "table.parquet")
    assert numbers(judge_table(tmp_path / "table.parquet", "val_loss").comparisons) == expected
    monkeypatch.setattr(sys, "stdin", io.StringIO(CSV))
    assert numbers(judge_table("-", "val_loss").comparisons) == expected


def test_every_guess_is_stated(tmp_path: Path) -> None:
    notes = of_text(tmp_path / "table.csv", CSV).notes
    assert notes[:5] == (
        "arm: the column arm",
        "seed: the column seed",
        "pairing: the 4 seeds that all arms share; --unpaired if they have nothing in common",
        "goal: minimize, by the name of val_loss",
        "baseline: base, by its name",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "table.csv: is empty; a table has a header and a row for each run"),
        ("arm,seed,val_loss\n", "the table has a header and no rows"),
        (CSV.replace("val_loss", "loss"), "the table has no column 'val_loss'; did you mean loss?"),
        (
            CSV + "new,0,3.1\n",
            "line 14: new, seed 0 has val_loss twice; drop a row, or name the columns that tell runs apart",
        ),
        (CSV + "new,9,fast\n", "line 14: val_loss is 'fast', which is no number"),
        (CSV + "new,9,3.1 ± 0.2\n", "give a row for each run in place of a mean with its deviation"),
        (CSV + "new,9,31%\n", "write all values in one unit, as numbers alone"),
        (CSV + "new,9,3.1 nats\n", "write all values in one unit, as numbers alone"),
        (
            CSV.replace(",", ";") + "new;9;3,1\n",
            "line 14: val_loss is '3,1', which is no number; write decimals with a point",
        ),
        (
            "arm,seed,val_loss\na,0,nan\nb,0,\nb,1,inf\n",
            "no run has a value of val_loss, so that nothing can be judged (NaN or infinite: 2, no value: 1); name",
        ),
        (CSV + "new,9\n", "line 14 has 2 cells, and the header has 3"),
        ("arm,arm,val_loss\na,b,1\n", "has the column 'arm' twice"),
        ("arm,seed,val_loss\na,0,1\na,1,1\n", "the table has one arm, a; give a second one, or --target VALUE"),
        ('{"arm": "a"}\n{"arm"\n', "line 2 is no JSON"),
        ("[1, 2]", "row 1 is no object"),
        ("seed,val_loss\n0,1\n1,2\n", "no column says which arm a run belongs to; name it: --arm COLUMN"),
    ],
)
def test_a_table_that_cannot_be_judged_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ReportError) as caught:
        of_text(tmp_path / "table.csv", text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_that_may_be_in_two_units_are_doubted(tmp_path: Path) -> None:
    findings = of_text(tmp_path / "a.csv", "arm,seed,acc\na,0,0.81\na,1,0.82\nb,0,83.1\nb,1,0.8\n", "acc")
    assert "One unit? acc lies between 0.8 (b) and 83.1 (b); write all values in one unit." in findings.notes
    assert not any("One unit?" in note for note in judge_table(ROWS, "val_loss").notes)


def test_a_name_that_does_not_say_what_is_better_is_refused() -> None:
    rows = [{"arm": row["arm"], "seed": row["seed"], "value": row["val_loss"]} for row in ROWS]
    with pytest.raises(ReportError, match="add --minimize or --maximize"):
        judge_table(rows, "value")


def test_runs_that_diverged_or_have_no_value_take_the_verdict(tmp_path: Path) -> None:
    before = CSV.split("new,0")[0]
    of_new = "".join(f"new,{seed},{value}\n" for seed, value in enumerate(("3.1", "nan", "3.12", "3.11")))
    diverged = of_text(tmp_path / "a.csv", before + of_new)
    (run,) = [run for run in diverged.study.of("new") if run.seed == 1]
    assert run.diverged
    assert diverged.comparisons[0].verdict is None
    unfinished = judge_table([*ROWS[:7], {"arm": "new", "seed": 3, "val_loss": None}], "val_loss")
    assert unfinished.comparisons[0].verdict is None
    assert "seeds are missing and to be done: new (seed 3" in (unfinished.comparisons[0].reason or "")
    crashed = judge_table(
        [row | {"status": "finished"} for row in ROWS[:7]] + [{**ROWS[7], "status": "crashed"}], "val_loss"
    )
    assert crashed.study.missing() == 1


def test_nan_in_a_dataframe_is_a_run_without_a_value() -> None:
    frame = pd.DataFrame(ROWS)
    frame.loc[5, "val_loss"] = math.nan
    assert not any(run.diverged for run in judge_table(frame, "val_loss").study.runs)


def test_a_target_stands_in_place_of_a_baseline() -> None:
    new = [row for row in ROWS if row["arm"] == "new"]
    (one,) = judge_table(new, "val_loss", target=3.28).comparisons
    assert one.verdict == "better"
    assert one.estimate is not None
    assert one.estimate.difference == pytest.approx(np.mean([row["val_loss"] for row in new]) - 3.28)


def test_arms_without_common_seeds_are_paired_in_order_and_a_note_says_so() -> None:
    moved = [row | {"seed": int(str(row["seed"])) + (10 if row["arm"] == "new" else 0)} for row in ROWS[:8]]
    findings = judge_table(moved, "val_loss")
    assert numbers(findings.comparisons) == numbers(judge_table(ROWS[:8], "val_loss").comparisons)
    assert any("share no seed" in note for note in findings.notes)


def test_seeds_that_only_some_arms_have_are_named() -> None:
    findings = judge_table(ROWS[:7], "val_loss")
    assert findings.comparisons[0].estimate is not None
    assert findings.comparisons[0].estimate.seeds == 3
    assert any("the seeds 3;" in note for note in findings.notes)


def test_the_last_step_is_judged_and_the_others_are_a_curve() -> None:
    steps = [row | {"step": step, "val_loss": row["val_loss"] + (20 - step)} for row in ROWS for step in (20, 10)]
    findings = judge_table(steps, "val_loss")
    assert numbers(findings.comparisons) == numbers(judge_table(ROWS, "val_loss").comparisons)
    assert len(findings.study.runs[0].measurements.curves["val_loss"]) == 2


def test_a_step_without_a_value_is_no_missing_run() -> None:
    sparse = [entry for row in ROWS for entry in ({**row, "step": 10}, {**row, "step": 20, "val_loss": None})]
    findings = judge_table(sparse, "val_loss")
    assert findings.study.missing() == 0
    assert numbers(findings.comparisons) == numbers(judge_table(ROWS, "val_loss").comparisons)
    assert judge_table([*sparse[:-2], sparse[-1]], "val_loss").study.missing() == 1


def test_an_arm_may_be_called_as_what_it_is_compared_with() -> None:
    rows = [row | {"arm": "target"} for row in ROWS if row["arm"] == "new"]
    (one,) = judge_table(rows, "val_loss", target=3.28).comparisons
    assert one.verdict == "better"


def test_examples_are_matched_by_their_names() -> None:
    rows = [row | {"example": item, "val_loss": row["val_loss"] + item} for row in ROWS[:8] for item in range(30)]
    mixed = [*rows[:120], *reversed(rows[120:])]
    expected = judge_table(rows, "val_loss").comparisons
    assert expected[0].documents == 30
    assert numbers(judge_table(mixed, "val_loss").comparisons) == numbers(expected)
    others = [*rows[:120], *(row | {"example": row["example"] + 1} for row in rows[120:])]
    assert judge_table(others, "val_loss").comparisons[0].documents == 0


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_a_large_table_has_the_findings_of_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {
            **row,
            "question": f"q {item}",
            "source": item // 3,
            "val_loss": row["val_loss"] + noise * (item - 20),
            "seconds": 5.5,
        }
        for row in ROWS
        for noise in ({"base": 0.1, "new": -0.1, "alike": 0.0}[str(row["arm"])],)
        for item in rng.permutation(40)
    ]
    rows[170]["val_loss"] = None
    frame, path = pd.DataFrame(rows), tmp_path / f"table{ending}"
    if ending == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="," if ending == ".csv" else "\t")
    expected = judge_table(path, "val_loss", example="question")
    monkeypatch.setattr("reports.read.table_large.LARGE", 0)
    monkeypatch.setattr("reports.read.table_large._BATCH", 64)
    monkeypatch.setattr("reports.read.table_large._BLOCK", 1024)
    monkeypatch.setattr("reports.judge.evidence._MOST_AT_ONCE", 3)
    monkeypatch.setattr("reports.judged_table.read_rows", lambda path: pytest.fail("read by rows"))
    large = judge_table(path, "val_loss", example="question")
    assert [(run.arm, run.seed, run.missing) for run in large.study.runs] == [
        (run.arm, run.seed, run.missing) for run in expected.study.runs
    ]
    assert [one.documents for one in large.comparisons] == [one.documents for one in expected.comparisons]
    for one, other in zip(large.comparisons, expected.comparisons, strict=True):
        assert one.verdict == other.verdict
        assert one.estimate is not None
        assert other.estimate is not None
        assert one.estimate.interval == pytest.approx(other.estimate.interval)
    assert large.notes == expected.notes
    twice = pd.concat([frame, frame[:1]])
    twice.to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(ReportError, match=r"base, seed 0: the run has example q \d+ twice"):
        judge_table(tmp_path / "twice.csv", "val_loss", example="question")


def test_examples_of_one_cluster_are_resampled_together() -> None:
    rng = np.random.default_rng(0)
    effect = rng.normal(0.1, 1.0, 40).repeat(10)
    rows = [
        {
            "arm": arm,
            "seed": seed,
            "example": item,
            "cluster": item // 10,
            "accuracy": arm_effect * effect[item] + noise,
        }
        for arm, arm_effect in (("base", 0.0), ("new", 1.0))
        for seed in range(3)
        for item, noise in enumerate(rng.normal(0.0, 0.1, 400))
    ]

    def width(entries: list[dict[str, object]]) -> float:
        (one,) = judge_table(entries, "accuracy").comparisons
        assert one.documents in (40, 400)
        assert one.estimate is not None
        assert one.estimate.interval is not None
        return one.estimate.interval[1] - one.estimate.interval[0]

    alone = [{name: cell for name, cell in row.items() if name != "cluster"} for row in rows]
    assert width(rows) > 2 * width(alone)


def test_stated_looks_share_the_error(tmp_path: Path) -> None:
    whole = judge_table(ROWS, "val_loss")
    looked = judge_table(ROWS, "val_loss", looks=(2, 4))
    widths = [one.comparisons[0].estimate.interval for one in (whole, looked) if one.comparisons[0].estimate]
    assert looked.study.plan.looks is not None
    assert looked.study.plan.looks.taken == (2, 4)
    assert widths[0] is not None
    assert widths[1] is not None
    assert widths[1][1] - widths[1][0] > widths[0][1] - widths[0][0]
    assert judge_table(ROWS, "val_loss", looks=(2, 3)).study.plan.looks.taken == (2, 3, 4)  # type: ignore[union-attr]


def test_the_command_writes_the_report_and_its_exit_status_follows_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.csv"
    pd.DataFrame([row for row in ROWS if row["arm"] != "alike"]).to_csv(table, index=False)
    command = ["judge", str(table), "--metric", "val_loss"]
    assert main([*command, "--require", "better", "--to", str(tmp_path / "report")]) == 0
    assert "Better: new against base" in capsys.readouterr().out
    files = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"page.html", "report.md", "report.tex", "report.csv", "results.jsonl"} <= files
    assert main([*command, "--require", "equal"]) == 1
    assert main([*command, "--baseline", "bass"]) == 2
    assert "did you mean base?" in capsys.readouterr().err
