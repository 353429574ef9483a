"""Two runs or two studies next to each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from study_on_disk import BYTES, key_of, name_of, product_arms, write_json, write_plan, write_product, write_run

from reports.__main__ import main
from reports.compare import compare, find_side
from reports.publish import publish
from reports.read.study import ReportError
from reports.show.tables import Table, plain

ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE = map(name_of, product_arms())


def compare_tables(runs: Path, first: str, second: str) -> tuple[dict[str, Table], tuple[str, ...]]:
    tables, notes = compare(*(find_side(name, runs, runs / "published") for name in (first, second)))
    return {table.name: table for table in tables}, notes


def texts(table: Table) -> list[list[str]]:
    return [[plain(cell, column) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]


def two_runs(runs: Path, **changes: Any) -> tuple[str, str]:
    """Writes two runs whose documents lose 2.5 and 2.6 nats per byte, and returns their keys."""
    config = {"model": {"dim": 64, "mixer": {"kind": "attention", "memory": 32}}, "seed": 0}
    other_config = {"model": {"dim": 64, "mixer": {"kind": "attention", "memory": None}, "norm": {}}, "seed": 1}
    write_run(runs, ON, 0, 2.5 * BYTES, config=config, cost={"parameters": 100_000})
    write_run(runs, OFF, 1, 2.6 * BYTES, config=other_config, cost={"parameters": 150_000}, **changes)
    return key_of(ON, 0), key_of(OFF, 1)


def test_two_runs_are_compared_path_by_path(tmp_path: Path) -> None:
    tables, _ = compare_tables(tmp_path, *two_runs(tmp_path))
    assert texts(tables["configs"]) == [
        ["model.mixer.memory", "32", "null"],
        ["seed", "0", "1"],
        ["model.norm", "-", "{}"],
    ]


def test_two_runs_have_an_interval_over_the_documents_of_both(tmp_path: Path) -> None:
    first, second = two_runs(tmp_path)
    tables, _ = compare_tables(tmp_path, first, second)
    line = next(line for line in texts(tables["metrics"]) if line[0] == "val/nats")
    assert line == ["val/nats", "2.5000", "2.6000", "0.1000", "0.1000 to 0.1000", "10 documents"]
    assert "says nothing of other seeds" in tables["metrics"].notes[1]
    (tmp_path / second / "documents.csv").unlink()
    tables, notes = compare_tables(tmp_path, first, second)
    assert texts(tables["metrics"])[0][-2:] == ["-", "one seed, and no documents in common"]
    assert "1 of 2 runs have no losses per document" in notes[0]


def test_costs_are_told_as_ratios_and_one_measurement_has_no_interval(tmp_path: Path) -> None:
    tables, _ = compare_tables(tmp_path, *two_runs(tmp_path))
    assert texts(tables["costs"])[:2] == [
        ["Parameters", "100 k", "150 k", "1.50", "-"],
        ["Time", "50 s", "51 s", "1.02", "not measured often enough"],
    ]


def test_only_metrics_and_costs_that_both_have_are_told(tmp_path: Path) -> None:
    tables, _ = compare_tables(tmp_path, *two_runs(tmp_path, metrics={"val/accuracy": 0.5}, measured={}))
    assert set(tables) == {"configs", "costs"}
    assert [line[0] for line in texts(tables["costs"])] == ["Parameters"]


def test_two_studies_are_compared_arm_by_arm_over_their_seeds(tmp_path: Path) -> None:
    write_product(tmp_path / "one", {"off": 0.1})
    write_product(tmp_path / "two", {"off": 0.3})
    first, second = (str(tmp_path / name / "studies" / "xl_recurrence") for name in ("one", "two"))
    tables, _ = compare_tables(tmp_path, first, second)
    lines = {line[1]: line for line in texts(tables["metrics"]) if line[0] == "val/bpb"}
    assert list(lines) == [ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE]
    assert lines[ON][4] == "0.0000" and lines[OFF][4] == "0.2000"
    assert lines[OFF][6] == "10 documents"
    costs = {line[0]: line[2:] for line in texts(tables["costs"]) if line[1] == ON}
    assert costs["Time"] == ["51 s", "51 s", "1.00", "1.00 to 1.00"] and costs["Tokens planned"][-1] == "-"


def test_the_change_of_an_effect_between_two_studies_has_an_interval_and_a_verdict(tmp_path: Path) -> None:
    contrasts = [{"name": "off against on", "arm": OFF, "against": ON}]
    for name, effect, noise in (("one", 0.1, 0.01), ("two", 0.3, 0.012)):
        write_product(tmp_path / name, {"off": effect}, noise=noise, contrasts=contrasts)
    tables, _ = compare_tables(tmp_path, *(str(tmp_path / name / "studies/xl_recurrence") for name in ("one", "two")))
    contrast, main_effect, *_ = texts(tables["effects"])
    assert contrast[0] == "off against on" and main_effect[0] == "recurrence: off against on"
    for _, before, after, change, interval, verdict in (contrast, main_effect):
        low, high = map(float, interval.split(" to "))
        assert float(change) == pytest.approx(float(after) - float(before), abs=2e-4)
        assert verdict == "differs" and 0.1 < low < float(change) < high < 0.3
    positions = texts(tables["effects"])[2]
    assert positions[0].startswith("positions:") and positions[-1] == "unresolved"
    write_product(tmp_path / "two", {}, metric={"name": "val/nats", "goal": "minimize"})
    tables, _ = compare_tables(tmp_path, *(str(tmp_path / name / "studies/xl_recurrence") for name in ("one", "two")))
    assert "effects" not in tables


def test_a_published_study_stands_beside_the_one_run_here(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1})
    publish(tmp_path, "xl_recurrence", tmp_path / "published")
    write_product(tmp_path, {"off": 0.1}, noise=0.05)
    tables, _ = compare_tables(tmp_path, str(tmp_path / "published" / "xl_recurrence"), "xl_recurrence")
    assert texts(tables["metrics"])[0][-1] == "3 seeds and documents"


def test_what_differs_in_all_arms_is_told_once(tmp_path: Path) -> None:
    for name, dim in (("one", 64), ("two", 128)):
        write_product(tmp_path / name, {})
        for path in (tmp_path / name).glob("*/record.json"):
            record = json.loads(path.read_text())
            special = {"memory": dim} if path.parent.name.startswith(key_of(ON, 0)[:-2]) else {}
            config = {"model": {"dim": dim, **special}, "seed": record["seed"], "data": {"seed": record["seed"] + dim}}
            write_json(path, record | {"config": config})
    first, second = (str(tmp_path / name / "studies" / "xl_recurrence") for name in ("one", "two"))
    tables, _ = compare_tables(tmp_path, first, second)
    assert texts(tables["configs"]) == [["all arms", "model.dim", "64", "128"], [ON, "model.memory", "64", "128"]]


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ("xl_recurrence", key_of(ON, 0), "compare two of the same kind"),
        ("xl_recurence", "xl_recurrence", "did you mean xl_recurrence"),
        ("xl_recurrence", "other_arms", "no arm in common"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_one_line(tmp_path: Path, one: str, other: str, told: str) -> None:
    write_product(tmp_path, {})
    write_plan(tmp_path, [{"x": "1"}, {"x": "2"}], study="other_arms")
    with pytest.raises(ReportError, match=told) as error:
        compare_tables(tmp_path, one, other)
    assert "\n" not in str(error.value)


def test_studies_of_which_one_has_never_run_are_refused_by_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_product(tmp_path / "one", {})
    write_plan(tmp_path / "two", study="never_run")
    sides = (str(tmp_path / "one" / "studies" / "xl_recurrence"), str(tmp_path / "two" / "studies" / "never_run"))
    assert main(["compare", *sides, "--runs", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "error: never_run: no run has finished (not run); "
        "run it by: python -m ablations run xl_recurrence --scale demo\n"
    )


def test_a_folder_without_results_and_a_damaged_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReportError, match=r"neither record\.json nor results\.jsonl nor plan\.json"):
        find_side(str(tmp_path / "empty"), tmp_path)
    _, key = two_runs(tmp_path)
    (tmp_path / key / "record.json").write_text("{")
    with pytest.raises(ReportError, match=r"cannot be compared: .*damaged"):
        find_side(key, tmp_path)


def test_the_command_prints_and_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = two_runs(tmp_path)
    page = tmp_path / "difference.md"
    assert main(["compare", first, second, "--runs", str(tmp_path), "--to", str(page)]) == 0
    assert "model.mixer.memory" in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith("# recurrence-on\\_positions-relative-0 next to ")
    assert "| model.mixer.memory | 32 | null |" in text
