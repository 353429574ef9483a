"""The comparison of golden runs names the values that differ, and leaves out those that may differ."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.golden.changes import CHANGES
from tests.golden.compare import compared
from tests.golden.runs import RUNS, WEIGHTS

RECORD = {
    "key": "a",
    "outcome": "finished",
    "config": {"seed": 0},
    "metrics": {"val/nats": 2.0},
    "cost": {"tokens": 100},
    "gates": [{"name": "causal", "passed": True}],
    "environment": {"torch": "2.0"},
    "measured": {"seconds": 3.0, "steps": 4},
}
DOCUMENTS = "document,name,nats\n0,first,1.5\n1,second,2.5\n"
CURVES = "step,tokens,name,value\n5,50,train/nats,3.5\n5,50,train/loss,3.5\n"
OUTPUTS = '{"id": 0, "hypothesis": "a b"}\n'

Change = Callable[[Path], None]


def in_record(path: str, value: Any) -> Change:
    def change(folder: Path) -> None:
        record = json.loads((folder / "record.json").read_text())
        *parts, name = path.split(".")
        part = record
        for inner in parts:
            part = part[int(inner) if isinstance(part, list) else inner]
        part[name] = value
        (folder / "record.json").write_text(json.dumps(record))

    return change


def in_text(file: str, old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))

    return change


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with the same results of one run."""
    for folder in (tmp_path / "before", tmp_path / "after"):
        place = folder / "text"
        place.mkdir(parents=True)
        (place / "record.json").write_text(json.dumps(RECORD))
        (place / "documents.csv").write_text(DOCUMENTS)
        (place / "metrics.csv").write_text(CURVES)
        (place / "outputs.jsonl").write_text(OUTPUTS)
    return tmp_path / "before", tmp_path / "after"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (in_record("metrics.val/nats", 2.5), "record.json, metrics.val/nats: 2.0 became 2.5 (relative 2.5e-01)"),
        (in_record("metrics.val/bpb", 1.0), "record.json, metrics.val/bpb: nothing became 1.0"),
        (in_record("gates.0.passed", False), "record.json, gates.0.passed: True became False"),
        (in_record("measured.steps", 3), "record.json, measured.steps: 4 became 3 (relative 2.5e-01)"),
        (
            in_text("documents.csv", "2.5", "2.5000000000000004"),
            "documents.csv line 3, nats: 2.5 became 2.5000000000000004 (relative 1.8e-16)",
        ),
        (
            in_text("documents.csv", "1,second,2.5\n", ""),
            "documents.csv line 3, document: 1 became nothing, and 2 more",
        ),
        (
            in_text("metrics.csv", "train/loss,3.5", "train/loss,7"),
            "metrics.csv line 3, train/loss: 3.5 became 7 (relative 1.0e+00)",
        ),
        (in_text("metrics.csv", ",50,", ",60,"), "metrics.csv line 2, tokens: 50 became 60 (relative 2.0e-01)"),
        (in_text("outputs.jsonl", "a b", "a c"), "outputs.jsonl line 1, hypothesis: a b became a c"),
        (lambda folder: (folder / "outputs.jsonl").unlink(), "outputs.jsonl line 1, id: 0 became nothing, and 1 more"),
    ],
)
def test_a_planted_difference_is_named(folders: tuple[Path, Path], change: Change, expected: str) -> None:
    before, after = folders
    change(after / "text")
    assert [*compared(before, after, ["text"], {})] == [(f"text: {expected}", True)]


@pytest.mark.parametrize(
    "change",
    [in_record(path, "other") for path in ("key", "config.seed", "environment.torch", "measured.seconds")],
)
def test_times_keys_and_machines_may_differ(folders: tuple[Path, Path], change: Change) -> None:
    before, after = folders
    change(after / "text")
    assert [*compared(before, after, ["text"], {})] == [("text: equal", False)]


def test_a_further_curve_is_a_further_value_alone(folders: tuple[Path, Path]) -> None:
    before, after = folders
    in_text("metrics.csv", "5,50,train/nats", "5,50,train/mask,1.0\n5,50,train/nats")(after / "text")
    expected = "text: metrics.csv line 2, train/mask: nothing became 1.0"
    assert [*compared(before, after, ["text"], {})] == [(expected, True)]


def test_a_listed_change_is_no_difference_and_hides_no_other(folders: tuple[Path, Path]) -> None:
    before, after = folders
    changes = {"te*": {"record.json cost.*": "tokens were counted with padding"}}
    in_record("cost.tokens", 90)(after / "text")
    assert [*compared(before, after, ["text"], changes)] == [("text: equal but for 1 listed value", False)]
    in_record("metrics.val/nats", 2.5)(after / "text")
    ((line, differs),) = compared(before, after, ["text"], changes)
    assert differs and line.startswith("text: record.json, metrics.val/nats: 2.0 became 2.5")


def test_a_run_that_is_not_there_is_a_difference(folders: tuple[Path, Path]) -> None:
    assert [*compared(*folders, ["other"], {})] == [(f"other: not recorded in {folders[0]}", True)]


def test_there_are_29_runs_of_which_each_change_names_some() -> None:
    names = list(RUNS)
    assert len(names) == 29
    assert names.index(WEIGHTS) < names.index("classification-from-weights")
    for pattern, fields in CHANGES.items():
        assert fnmatch.filter(names, pattern), f"no run is called {pattern}"
        assert all(fields.values()), f"a change of {pattern} has no reason"
