"""Records and plans are written as they are read, number by number, and errors name the place of a malformed value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lit_transformers.records.files import PLAN, RECORD
from lit_transformers.records.plan import (
    Contrast,
    LeftOut,
    Matched,
    MatchedBudget,
    Metric,
    Plan,
    PlannedArm,
    PlannedRun,
    Protocol,
    PublishedCell,
    PublishedNumbers,
    Source,
    TunedArm,
    Tuning,
    load_plan,
    parse_plan,
    plan_to_plain,
    write_plan,
)
from lit_transformers.records.record import (
    VERSION,
    Gate,
    Outcome,
    Record,
    VersionError,
    load_record,
    parse_record,
    record_to_plain,
    write_record,
)
from lit_transformers.records.schema import dump, first_fault

PLANNED = Plan(
    study="xl",
    changes={"training.steps": 7},
    question="Does it help?",
    source=Source("Dai et al. 2019", arxiv="1901.02860"),
    metric=Metric("val/bpb", goal="minimize"),
    factors={"recurrence": ("on", "off")},
    baseline="on",
    match=MatchedBudget("tokens", tolerance=1, per_arm={"on": Matched(1024, 1024.5)}),
    arms=(PlannedArm("on", {"recurrence": "on"}, (PlannedRun(0, "a"),)), PlannedArm("off", runs=(PlannedRun(0, "b"),))),
    contrasts=(Contrast("memory", "on", "off"),),
    published=PublishedNumbers(
        Protocol("words"), "perplexity", (PublishedCell({"recurrence": "on"}, 27),), ("It helps.",)
    ),
    left_out=(LeftOut("both", "no time"),),
)
TUNED = replace(
    PLANNED, tuning=Tuning({"trials": 4}, "val/bpb", "validation", "test", {"on": TunedArm({"rate": 1}, 2)})
)


def record_of(outcome: Outcome, **fields: Any) -> Record:
    gate = Gate("no future", True, "largest change 0")
    return Record(version=VERSION, key="a", outcome=outcome, seed=0, cost={"parameters": 3}, gates=(gate,), **fields)


@pytest.mark.parametrize("plan", [PLANNED, TUNED], ids=["as it stands", "tuned"])
def test_a_plan_that_is_read_and_written_again_is_the_same_file(plan: Plan, tmp_path: Path) -> None:
    write_plan(tmp_path / "first", plan)
    path = tmp_path / "first" / "studies" / plan.folder / PLAN
    write_plan(tmp_path / "second", load_plan(path))
    assert load_plan(path) == plan and json.loads(path.read_text()) == plan_to_plain(plan)
    assert (tmp_path / "second" / path.relative_to(tmp_path / "first")).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "record",
    [
        record_of("finished", metrics={"val/bpb": 2, "val/nats": None}, observed={"tokens": 3}),
        record_of("failed", reason="out of memory", resumable=False),
        record_of("failed", reason="it took longer", resumable=True, time_limit=3),
        record_of("pruned", reason="it lags behind"),
    ],
    ids=["finished", "failed", "cut off", "pruned"],
)
def test_a_record_that_is_read_and_written_again_is_the_same_file(record: Record, tmp_path: Path) -> None:
    write_record(tmp_path / "first", record)
    again = load_record(tmp_path / "first" / RECORD)
    write_record(tmp_path / "second", again)
    assert again == record and record_to_plain(record) == json.loads((tmp_path / "first" / RECORD).read_text())
    assert (tmp_path / "second" / RECORD).read_bytes() == (tmp_path / "first" / RECORD).read_bytes()


def test_results_hold_every_number_as_a_float_and_leave_out_what_concerns_a_search_or_a_repetition() -> None:
    plan, record = dump(TUNED), dump(record_of("failed", resumable=True, time_limit=3))
    numbers = [
        *plan["match"]["per_arm"]["on"].values(),
        plan["match"]["tolerance"],
        plan["published"]["cells"][0]["value"],
    ]
    assert {type(number) for number in [*numbers, record["cost"]["parameters"]]} == {float}
    assert plan["published"]["claims"] == [{"text": "It helps."}]
    assert not {"metric"} & set(plan["tuning"]) and not {"key", "space"} & set(plan["tuning"]["arms"]["on"])
    assert not {"resumable", "time_limit"} & set(record)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"metrics": {"val/bpb": "2.5"}}, "metrics.val/bpb: Input should be a valid number"),
        ({"metrics": {"val/bpb": True}}, "metrics.val/bpb: Input should be a valid number"),
        ({"metrics": {"val/bpb": 10**400}}, "metrics.val/bpb: Input should be a valid number"),
        ({"outcome": "won"}, "outcome: Input should be 'finished', 'pruned', 'failed' or 'invalid'"),
        ({"gates": [{"name": "no future"}]}, "gates.0.passed: Field required"),
    ],
)
def test_a_malformed_record_is_named_by_its_place(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_record(record_to_plain(record_of("finished")) | changes)
    assert first_fault(refused.value).startswith(fault)


def test_a_record_of_another_version_is_refused_as_such() -> None:
    with pytest.raises(VersionError, match="made by version 2 of this format, not 1"):
        parse_record(record_to_plain(record_of("finished")) | {"version": 2})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"version": 2}, "made by version 2 of this format, not 1"),
        ({"metric": {"name": "val/bpb", "goal": "more"}}, "metric.goal: Input should be 'minimize' or 'maximize'"),
        ({"baseline": "onn"}, "there is no arm 'onn'; did you mean on?"),
        ({"contrasts": [{"name": "none", "arm": "on", "against": "on"}]}, "contrast 'none' sets an arm against itself"),
        ({"study": "../xl"}, "'../xl' is no name of a study"),
    ],
)
def test_a_malformed_plan_is_named_by_its_place(changes: dict[str, Any], fault: str) -> None:
    plain = json.loads(json.dumps(plan_to_plain(PLANNED)))
    with pytest.raises(ValueError) as refused:
        parse_plan(plain | changes)
    assert first_fault(refused.value).startswith(fault)
