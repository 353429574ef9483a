"""The notes under a table, and the arms that are too far apart for a verdict."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from study_on_disk import BYTES, key_of, name_of, product_arms, write_json, write_plan, write_product, write_run

from lit_transformers.records.files import RESULTS
from reports.judge.comparisons import compare
from reports.judge.fairness import provenance
from reports.read.results import read_results
from reports.read.study import load_study
from reports.report import find, write_report
from reports.show.sections import all_tables
from reports.show.tables import Table, plain, to_csv, to_markdown

ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE = map(name_of, product_arms())
OFF_AGAINST_ON = "recurrence=off against the baseline"


def change_records(runs: Path, arm: str, part: str, **values: object) -> None:
    for seed in range(3):
        path = runs / key_of(arm, seed) / "record.json"
        record = json.loads(path.read_text())
        write_json(path, record | {part: record[part] | values})


def match_entry(on: str, target: float, tolerance: float) -> dict[str, Any]:
    arms = {arm: {"target": target, "reached": target} for arm in (ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE)}
    return {"on": on, "free": "model.dim", "tolerance": tolerance, "per_arm": arms}


def table(runs: Path, name: str) -> Table:
    tables = all_tables(find(load_study(runs, "xl_recurrence")))
    return next(table for table in tables if table.name == name)


def reason(runs: Path) -> str | None:
    comparisons = {c.name: c for c in compare(load_study(runs, "xl_recurrence"), [])}
    return comparisons[OFF_AGAINST_ON].reason


@pytest.mark.parametrize(
    ("on", "part", "cost"),
    [
        ("seconds", "measured", "seconds"),
        ("memory", "measured", "peak_memory_bytes"),
        ("parameters", "cost", "parameters"),
        ("tokens", "cost", "planned_tokens"),
    ],
)
def test_arms_that_were_matched_and_spent_differently_get_no_verdict(
    tmp_path: Path, on: str, part: str, cost: str
) -> None:
    write_product(tmp_path, {"off": 0.3}, match=match_entry(on, 100.0, 0.05))
    for arm, value in ((ON, 100.0), (ON_ABSOLUTE, 103.0), (OFF, 110.0), (OFF_ABSOLUTE, 100.0)):
        change_records(tmp_path, arm, part, **{cost: value})
    assert reason(tmp_path) == f"not matched: measured {on} differ by 10.0%"
    change_records(tmp_path, OFF, part, **{cost: 104.0})
    assert reason(tmp_path) is None
    rows = {str(row[0].value): row for row in table(tmp_path, "match").rows}
    assert [rows[OFF][4].value, rows[OFF][5].value] == pytest.approx([104.0, 0.04])


@pytest.mark.parametrize(("on", "cost"), [("tokens", "tokens"), ("flops", "train_flops")])
def test_budgets_are_matched_on_planned_tokens_however_many_were_read(tmp_path: Path, on: str, cost: str) -> None:
    write_product(tmp_path, {"off": 0.3}, match=match_entry(on, 100.0, 0.05))
    for arm, read in ((ON, 100.0), (ON_ABSOLUTE, 90.0), (OFF, 50.0), (OFF_ABSOLUTE, 100.0)):
        change_records(tmp_path, arm, "cost", planned_tokens=100.0, tokens=read, train_flops=6 * read)
    assert reason(tmp_path) is None
    change_records(tmp_path, OFF, "cost", planned_tokens=110.0)
    assert reason(tmp_path) == f"not matched: measured {on} differ by 10.0%"


def test_speed_is_shown_by_examples_where_all_runs_have_measured_it(tmp_path: Path) -> None:
    def speeds() -> list[str]:
        return [column.title for column in table(tmp_path, "costs").columns if "per second" in column.title]

    write_product(tmp_path, {})
    for arm in (ON, ON_ABSOLUTE, OFF):
        change_records(tmp_path, arm, "measured", examples_per_second=112.0)
    assert speeds() == ["Tokens per second"]
    change_records(tmp_path, OFF_ABSOLUTE, "measured", examples_per_second=30.0)
    assert speeds() == ["Examples per second"]


def test_tokens_that_were_read_stand_beside_planned_ones_where_these_are_others(tmp_path: Path) -> None:
    def counts() -> dict[str, list[float | None]]:
        costs = table(tmp_path, "costs")
        columns = {column.title: number for number, column in enumerate(costs.columns)}
        return {
            title: [row[columns[title]].value for row in costs.rows]
            for title in ("Tokens", "Tokens planned")
            if title in columns
        }

    write_product(tmp_path, {})
    assert counts() == {"Tokens planned": [1_500_000] * 4}, "records from before tokens were counted as they were read"
    for arm in (ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE):
        change_records(tmp_path, arm, "cost", planned_tokens=1_500_000, tokens=1_499_000)
    assert counts() == {"Tokens": [1_499_000] * 4}
    change_records(tmp_path, ON, "cost", tokens=1_000_000)
    found = counts()
    assert found["Tokens planned"] == [1_500_000] * 4 and sorted(found["Tokens"])[0] == 1_000_000


def test_the_tolerance_of_a_study_decides(tmp_path: Path) -> None:
    match = match_entry("parameters", 100.0, 0.1)
    match["per_arm"][OFF]["reached"] = 108.0
    write_product(tmp_path, {"off": 0.3}, match=match)
    assert reason(tmp_path) is None
    match["tolerance"] = 0.05
    write_product(tmp_path, {"off": 0.3}, match=match)
    assert reason(tmp_path) == "not matched: parameters differ by 8.0%"


def test_evaluation_tuning_selection_and_hardware_stand_under_the_results(tmp_path: Path) -> None:
    write_product(tmp_path, {})
    assert table(tmp_path, "results").notes[-1] == (
        "Evaluation: segment length 32, memory 32. "
        "Tuning: none; all arms share the hyperparameters that they do not vary. "
        "Selection: none, the last weights are measured on the validation split. Hardware: 2 CPU cores. "
        "Code: torch 2.13.0."
    )


def test_the_code_that_was_run_stands_there_too(tmp_path: Path) -> None:
    write_product(tmp_path, {})
    change_records(tmp_path, OFF, "environment", commit="0123456789ab+")
    note = str(table(tmp_path, "results").notes[-1])
    assert note.endswith("Hardware: 2 CPU cores. Code: commit 0123456789ab with changes; torch 2.13.0.")


def test_what_differs_between_arms_is_said_so_and_a_search_is_told(tmp_path: Path) -> None:
    tuning = {"budget": {"trials": 20}, "selected_on": "validation", "reported_on": "test", "arms": {}}
    write_product(tmp_path, {}, tuning=tuning)
    change_records(tmp_path, OFF, "protocol", memory=0)
    line = provenance(load_study(tmp_path, "xl_recurrence"))
    assert "segment length 32, memory 32 or 0 by arm." in line
    assert "Tuning: each arm by a separate search with 20 trials." in line
    assert "Selection: hyperparameters on the validation split, reported on test." in line


@pytest.mark.slow
def test_what_each_search_found_is_a_table_that_results_carry(tmp_path: Path) -> None:
    values = {"training.optimizer.learning_rate": 0.00213, "model.dropout": 0.1}
    search = {"trials": 20, "pruned": 7, "failed": 1, "tokens": 3_000_000, "key": "ab", "space": {}}
    arms = {ON: search | {"values": values, "value": 2.5}, OFF: search | {"values": None, "value": None}}
    tuning = {"budget": {"trials": 20}, "selected_on": "validation", "reported_on": "test", "arms": arms}
    write_product(tmp_path, {}, tuning=tuning)
    write_report(tmp_path, "xl_recurrence", tmp_path / "out")
    tables = all_tables(find(read_results(tmp_path / "out" / RESULTS)))
    rows = {str(row[0].value): row for row in next(table for table in tables if table.name == "tuning").rows}
    assert rows[ON][6].value == "training.optimizer.learning_rate=0.00213 model.dropout=0.1"
    assert [cell.value for cell in rows[ON][1:6]] == [20, 7, 1, 3_000_000, 2.5]
    assert rows[OFF][6].value == "none finished" and rows[OFF][5].value is None
    page = (tmp_path / "out" / "page.html").read_text()
    assert "Tuned values" in page and "the comparison was measured on test" in page


def test_people_see_main_effects_and_the_largest_interactions_and_the_csv_holds_all(tmp_path: Path) -> None:
    levels = [{"a": f"a{i}", "b": f"b{j}"} for i in range(5) for j in range(5)]
    factors = {"a": [f"a{i}" for i in range(5)], "b": [f"b{i}" for i in range(5)]}
    plan = write_plan(tmp_path, levels, seeds=2, factors=factors)
    for number, arm in enumerate(plan["arms"]):
        for seed in range(2):
            write_run(tmp_path, arm["name"], seed, BYTES * (1 + 0.01 * (number * 7 % 11) + 0.001 * seed * number))
    effects = table(tmp_path, "effects")
    sizes = [abs(float(str(row[1].value))) for row in effects.rows[8:]]
    assert len(effects.rows) == 8 + 16 and sizes == sorted(sizes, reverse=True)
    markdown = to_markdown(effects.shortened())
    assert "4 smaller ones are omitted; the CSV holds all 24." in markdown
    names = [plain(row[0], effects.columns[0]) for row in effects.shortened().rows]
    assert len(names) == 20 and all(": " in name for name in names[:8])
    assert to_csv([effects]).count("\neffects,") == 24 * 7


def test_what_can_be_known_stands_beside_what_each_arm_knows(tmp_path: Path) -> None:
    references = [{"name": "nothing", "value": 3.0}, {"name": "all", "value": 1.0}]
    write_product(tmp_path, {"off": 0.5}, references=references)
    known, results = table(tmp_path, "known"), table(tmp_path, "results")
    assert [[plain(*cell) for cell in zip(row, known.columns, strict=True)] for row in known.rows] == [
        ["nothing", "3.0000", "0.00%"],
        ["all", "1.0000", "100.00%"],
    ]
    share = results.headings().index("Share of the known optimum")
    for row in results.rows:
        assert isinstance(row[1].value, float) and row[share].value == pytest.approx((3 - row[1].value) / 2)


@pytest.mark.parametrize(
    ("best", "seeds", "note"),
    [
        (2.0, 3, "More than 100 %, within chance: "),
        (2.5, 3, "More than 100 %, and not by chance: "),
        (2.5, 1, "More than 100 %, within chance: "),
        (1.0, 3, None),
    ],
)
def test_a_share_of_what_can_be_known_has_an_interval_and_more_than_all_is_explained(
    tmp_path: Path, best: float, seeds: int, note: str | None
) -> None:
    references = [{"name": "nothing", "value": 3.0}, {"name": "all", "value": best}]
    write_plan(tmp_path, product_arms()[::2], seeds=seeds, design="explicit", references=references)
    for arm in (ON, OFF):
        for seed in range(seeds):
            write_run(tmp_path, arm, seed, (1.99 + 0.1 * (seed - 1)) * BYTES * math.log(2))
    results = table(tmp_path, "results")
    cell = results.rows[0][results.headings().index("Share of the known optimum")]
    assert isinstance(cell.value, float) and (cell.spread is None) == (seeds == 1)
    if cell.spread is not None:
        half = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3) / (3 - best)
        assert cell.spread == pytest.approx(half, rel=1e-3)
    notes = " ".join(results.notes)
    assert "± is half of the 95 % interval" in notes
    assert ("there is none for" in notes) == (seeds == 1)
    assert note in notes if note else "More than 100 %" not in notes


def test_arms_that_ended_early_are_named_with_their_steps(tmp_path: Path) -> None:
    write_product(tmp_path, {})
    stop = {"metric": "val/bpb", "patience": 3, "min_delta": 0.0}
    change_records(tmp_path, OFF, "config", training={"steps": 1200, "stop": stop, "keep": "best"})
    change_records(tmp_path, OFF, "measured", steps=900, measured_step=600)
    change_records(tmp_path, OFF, "cost", tokens=900)
    change_records(tmp_path, ON, "cost", tokens=1200)
    change_records(tmp_path, ON, "config", training={"steps": 1200})
    change_records(tmp_path, ON, "measured", steps=1200)  # as of a LightningModule, whose steps are always measured
    note = str(table(tmp_path, "results").notes[-1])
    assert "Selection: weights by val/bpb on the validation split, measured on the validation split." in note
    assert f"Stopped early: {OFF} after 900 of 1,200 steps; arms have not read equally many tokens." in note
