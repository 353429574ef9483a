"""Arms get a verdict where they are measured in the same unit and on the same text, and else the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from study_on_disk import (
    BYTES,
    FACTORS,
    key_of,
    name_of,
    product_arms,
    write_json,
    write_plan,
    write_product,
    write_run,
)

from reports.compare import compare as compare_sides
from reports.compare import find_side
from reports.judge.comparisons import Comparison, compare
from reports.read.study import load_study
from reports.report import find, write_report
from reports.show.answer import headline

ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE = map(name_of, product_arms())
UNITS = {"nats": "symbol", "bpb": "byte", "relation_accuracy": "relation", "bleu": "text"}
WHOLE: dict[str, Any] = {
    "split": "validation",
    "documents": "d0c5",
    "units": UNITS,
    "definitions": {"symbol": "byte b17e", "hidden symbol": "byte 41d", "relation": "order 0123"},
}


def state(runs: Path, arm: str, measurement: Mapping[str, Any] | None = WHOLE, **changes: Any) -> None:
    """Changes the records of an arm, and the measurement that they state."""
    for seed in range(3):
        path = runs / key_of(arm, seed) / "record.json"
        stated = {"measurement": measurement}
        write_json(path, json.loads(path.read_text()) | stated | changes)


def compared(runs: Path, metric: str, unmatched: bool = False, **of_off: Any) -> Comparison:
    """Returns the comparison of two arms, of which the second states something else."""
    write_plan(
        runs,
        [product_arms()[0], product_arms()[2]],
        metric={"name": metric, "goal": "minimize"},
        factors={"recurrence": FACTORS["recurrence"]},
        design="one_factor",
    )
    for arm, extra in ((ON, 0.0), (OFF, 0.1)):
        for seed in range(3):
            write_run(runs, arm, seed, BYTES * (2.0 + extra + 0.01 * seed * (1 + extra)))
    records = of_off.pop("records", {})
    state(runs, ON)
    state(runs, OFF, WHOLE | of_off, **records)
    [comparison] = compare(load_study(runs, "xl_recurrence"), [], unmatched)
    return comparison


@pytest.mark.parametrize("unmatched", [False, True])
@pytest.mark.parametrize(
    ("metric", "of_off", "reason"),
    [
        (
            "val/nats",
            {"split": "test"},
            f"not measured on the same text: the validation split in {ON} and the test split",
        ),
        ("val/nats", {"documents": "0"}, "not measured on the same text: the documents that were measured differ"),
        ("val/nats", {"examples": 9}, "the documents that were measured differ"),
        (
            "val/nats",
            {"units": UNITS | {"nats": "hidden symbol"}},
            f"val/nats is per symbol in {ON} and per hidden symbol",
        ),
        (
            "val/nats",
            {"definitions": {"symbol": "word 3"}, "units": {"nats": "symbol"}},
            f"val/nats is per symbol, which is a byte in {ON} and a word in {OFF}; no metric of their records",
        ),
        (
            "val/nats",
            {"definitions": {"symbol": "piece 3"}},
            "compare them by val/bpb, bits per byte, which their records",
        ),
        (
            "val/nats",
            {"definitions": {"symbol": "byte 3"}},
            "which is a byte of another tokenizer in each arm; compare them",
        ),
        ("measured/tokens_per_second", {"definitions": {"symbol": "word 3"}}, "which is a byte in"),
    ],
)
def test_arms_that_are_not_measured_alike_get_no_interval_and_the_reason(
    tmp_path: Path, metric: str, of_off: dict[str, Any], reason: str, unmatched: bool
) -> None:
    """Whether their budgets match is another question, which ``unmatched`` answers alone."""
    if "examples" in of_off:
        of_off = of_off | {"documents": "0"}
    comparison = compared(tmp_path, metric, unmatched, **of_off)
    assert comparison.estimate is None and comparison.verdict is None
    assert comparison.reason is not None and reason in comparison.reason
    assert reason in headline(find(load_study(tmp_path, "xl_recurrence")))


@pytest.mark.parametrize(
    ("metric", "of_off"),
    [
        ("val/nats", {}),
        ("val/bpb", {"definitions": {"symbol": "word 3"}}),
        ("val/nats", {"definitions": WHOLE["definitions"] | {"relation": "next 4"}}),
        ("measured/seconds", {"split": "test", "documents": "0", "definitions": {"symbol": "word 3"}}),
        ("val/nats", {"units": {}, "definitions": {}}),
    ],
)
def test_what_differs_without_changing_the_metric_keeps_no_verdict_back(
    tmp_path: Path, metric: str, of_off: dict[str, Any]
) -> None:
    comparison = compared(tmp_path, metric, **of_off)
    assert comparison.estimate is not None and not (comparison.reason or "").startswith("not")


def test_a_unit_that_the_data_define_is_mended_by_the_field_that_defines_it(tmp_path: Path) -> None:
    records = {"metrics": {"val/relation_accuracy": 0.5}}
    other = WHOLE["definitions"] | {"relation": "next 4"}
    compared(tmp_path, "val/relation_accuracy", definitions=other, records=records)
    state(tmp_path, ON, WHOLE, **records)
    [comparison] = compare(load_study(tmp_path, "xl_recurrence"), [])
    assert comparison.estimate is None and comparison.reason is not None
    assert comparison.reason.endswith("set data.evaluation.relation to that of all arms")


def test_scores_by_another_tokenizer_are_not_compared(tmp_path: Path) -> None:
    def signed(signature: str) -> dict[str, Any]:
        return {"metrics": {"val/bleu": 20.0}, "protocol": {"scores": {"bleu": signature}}}

    compared(tmp_path, "val/bleu", records=signed("tok:zh"))
    state(tmp_path, ON, WHOLE, **signed("tok:13a"))
    [comparison] = compare(load_study(tmp_path, "xl_recurrence"), [])
    assert comparison.reason == f"not scored alike: tok:13a in {ON} and tok:zh in {OFF}"


def test_a_module_of_the_same_data_may_draw_at_random_what_it_is_measured_on(tmp_path: Path) -> None:
    data = {"config": {"data": {"class_path": "my.Data", "init_args": {}}}}
    comparison = compared(tmp_path, "val/nats", documents="0", examples=9, records=data)
    assert comparison.estimate is None, "its arms have other data"
    state(tmp_path, ON, WHOLE | {"examples": 9}, **data)
    [comparison] = compare(load_study(tmp_path, "xl_recurrence"), [])
    assert comparison.estimate is not None and comparison.reason is None
    own: dict[str, Any] = {"config": {"data": {"class_path": None, "init_args": {}}}}
    for arm, documents in ((ON, "0"), (OFF, "1")):
        state(tmp_path, arm, WHOLE | {"documents": documents}, **own)
    [comparison] = compare(load_study(tmp_path, "xl_recurrence"), [])
    assert comparison.estimate is None, "a module that has its own loaders says nothing of them"


def test_an_effect_is_averaged_over_units_where_each_has_both_of_its_levels(tmp_path: Path) -> None:
    write_product(tmp_path, {"off": 0.1}, metric={"name": "val/nats", "goal": "minimize"})
    for arm in (ON, ON_ABSOLUTE, OFF, OFF_ABSOLUTE):
        is_word = arm in (ON_ABSOLUTE, OFF_ABSOLUTE)
        state(tmp_path, arm, WHOLE | {"definitions": {"symbol": "word 3" if is_word else "byte b17e"}})
    effects = {c.name: c for c in compare(load_study(tmp_path, "xl_recurrence"), []) if c.kind == "main effect"}
    assert effects["recurrence: off against on"].estimate is not None
    assert "a word" in (effects["positions: absolute against relative"].reason or "")


def test_records_from_before_are_compared_as_they_were_beside_new_ones(tmp_path: Path) -> None:
    compared(tmp_path, "val/nats", split="test")
    state(tmp_path, OFF, None)
    [comparison] = compare(load_study(tmp_path, "xl_recurrence"), [])
    assert comparison.estimate is not None and comparison.reason is None
    state(tmp_path, OFF, None, data={"fingerprint": "beef"})
    [comparison] = compare(load_study(tmp_path, "xl_recurrence"), [])
    assert comparison.estimate is not None and comparison.verdict is None
    assert comparison.reason == "not the same data: the fingerprints of the corpus differ"


def test_results_keep_what_was_measured_and_two_runs_that_differ_in_it_are_not_compared(tmp_path: Path) -> None:
    compared(tmp_path, "val/nats", split="test")
    page = write_report(tmp_path, "xl_recurrence")
    assert "not measured on the same text" in page.read_text()
    sides = [find_side(key_of(arm, 0), tmp_path) for arm in (ON, OFF)]
    tables, _ = compare_sides(*sides)
    [metrics] = [table for table in tables if table.name == "metrics"]
    assert all("not measured on the same text" in str(row[-1].value) and row[-3].value is None for row in metrics.rows)
