"""Runs that end early or keep their best weights, and callbacks of others."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from forked import training
from waiting import wait_for

from lit_transformers.cli.callback_options import callback_assignments
from lit_transformers.config import ConfigError, parse_assignments
from lit_transformers.records.files import CHECKPOINT, CURVES, RECORD
from lit_transformers.runs import RunConfig, fit, run_key
from lit_transformers.runs.metrics import stopping_goal
from lit_transformers.tasks.classification import ClassificationConfig
from lit_transformers.training.config import StopConfig
from lit_transformers.training.selection import Selection

STOPPED = {
    "training.steps": 60,
    "training.validate_every": 4,
    "training.optimizer.learning_rate": 2.0,
    "training.stop": {"metric": "val/bpb", "patience": 2},
    "training.keep": "best",
}
"""A learning rate so high that validations soon grow worse."""


def validations(directory: Path) -> dict[int, float]:
    rows = [line.split(",") for line in (directory / CURVES).read_text().splitlines()]
    return {int(step): float(value) for step, _, name, value in rows if name == "val/bpb"}


@pytest.fixture(scope="module")
def stopped(small_run: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stopped")
    fit(small_run.override(STOPPED), directory)
    return directory


def test_a_run_ends_early_and_measures_its_best_weights(small_run: RunConfig, stopped: Path) -> None:
    record, curve = json.loads((stopped / RECORD).read_text()), validations(stopped)
    best = min(curve, key=curve.__getitem__)
    assert record["measured"]["measured_step"] == best
    assert record["measured"]["steps"] == max(curve) == best + 2 * 4 < 60
    assert record["metrics"]["val/bpb"] == pytest.approx(curve[best], rel=1e-6)
    assert record["cost"]["planned_tokens"] == record["cost"]["tokens"] == max(curve) * small_run.tokens_per_step


def test_a_run_is_selected_on_validation_where_another_split_is_measured(
    small_run: RunConfig, stopped: Path, tmp_path: Path
) -> None:
    source = small_run.data.get("source").to_dict() | {"validation": 0.2, "test": 0.2}
    changes = STOPPED | {"data.source": source}
    fit(small_run.override(changes), tmp_path / "validation")
    for split in ("test", "train"):
        record = fit(small_run.override(changes | {"data.evaluation.split": split}), tmp_path / split)
        assert validations(tmp_path / split) == validations(tmp_path / "validation")
        values = validations(tmp_path / split).values()
        assert all(abs(record["metrics"][f"{split}/bpb"] - value) > 1e-4 for value in values)
        assert not [name for name in record["metrics"] if not name.startswith(f"{split}/")]


@pytest.mark.slow
def test_a_run_that_is_killed_ends_early_at_the_same_step(small_run: RunConfig, stopped: Path, tmp_path: Path) -> None:
    config, checkpoint = small_run.override(STOPPED), tmp_path / CHECKPOINT
    for _ in range(3):
        process = training(config, tmp_path, 0.0)
        saved_at = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        wait_for(lambda saved_at=saved_at: checkpoint.exists() and checkpoint.stat().st_mtime_ns != saved_at)
        process.send(9)
        process.wait()
    training(config, tmp_path).finish()
    records = [json.loads((directory / RECORD).read_text()) for directory in (stopped, tmp_path)]
    assert records[0]["metrics"] == records[1]["metrics"]
    assert records[0]["measured"]["steps"] == records[1]["measured"]["steps"]
    assert (stopped / CURVES).read_bytes() == (tmp_path / CURVES).read_bytes()


def test_a_run_without_its_record_is_not_trained_further(small_run: RunConfig, stopped: Path, tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).write_bytes((stopped / CHECKPOINT).read_bytes())
    again = fit(small_run.override(STOPPED), tmp_path)
    record = json.loads((stopped / RECORD).read_text())
    assert again["metrics"] == record["metrics"] and again["measured"]["steps"] == record["measured"]["steps"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"training.keep": "best"}, "keep best is by the metric of stop"),
        ({"training.stop": {}}, "stop looks at validations, and there are none in 30 steps"),
        ({"training.stop": {"metric": "train/loss"}}, "pattern"),
        (STOPPED | {"training.average": {"last": 2, "every": 1}}, "average takes the last weights"),
    ],
)
def test_what_cannot_be_selected_is_refused(changes: dict[str, Any], reason: str, small_run: RunConfig) -> None:
    with pytest.raises(ConfigError, match=reason):
        small_run.override(changes)


def test_a_metric_that_is_not_measured_is_refused(small_run: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="val/bbp is not measured; did you mean val/bpb"):
        fit(small_run.override(STOPPED | {"training.stop.metric": "val/bbp"}), tmp_path)


def test_an_improvement_is_one_by_more_than_the_least_that_counts() -> None:
    less = Selection(StopConfig(min_delta=0.1), "minimize", True)
    more = Selection(StopConfig(metric="val/accuracy"), "maximize", True)
    less.best = more.best = 0.5
    assert [less._improves(value) for value in (0.45, 0.39, 0.6, float("nan"))] == [False, True, False, False]
    assert [more._improves(value) for value in (0.5, 0.6, 0.4)] == [False, True, False]


NEEDLES = {"kind": "labelled", "source": {"kind": "needle", "length": 12, "distance": 4}}


def test_stopping_follows_the_goal_that_the_objective_states(
    small_run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def goal(metric: str, config: RunConfig) -> str:
        return stopping_goal(metric, config.task, config.build_data().description)

    needles = RunConfig.from_dict({"model": "encoder", "task": "classification", "data": NEEDLES})
    assert goal("val/nats", small_run) == goal("val/nats", needles) == "minimize"
    assert goal("val/accuracy", needles) == goal("val/matthews", needles) == "maximize"
    monkeypatch.setattr(ClassificationConfig, "measures", lambda task, data: {})
    with pytest.raises(
        ConfigError, match=r"stop\.metric: classification does not say whether less or more of val/nats"
    ):
        goal("val/nats", needles)


def test_an_objective_that_states_units_alone_is_refused_with_what_replaces_them() -> None:
    with pytest.raises(ConfigError, match="Old defines units, which state no goal; define measures, which returns"):
        type("Old", (ClassificationConfig,), {"units": lambda self, data: {"nats": "example"}}, kind="old")


CALLBACK = """
import lightning as L
CALLS = 0
class Halve(L.Callback):
    def __init__(self, step):
        self.step = step
    def on_train_batch_end(self, trainer, task, *_):
        if trainer.global_step == self.step:
            for parameter in task.parameters():
                parameter.data *= 0.5
"""


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a callback in a separate module, ``halving``."""
    path = tmp_path / "halving.py"
    path.write_text(CALLBACK)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return path


def test_a_callback_acts_and_its_source_and_arguments_are_part_of_the_key(
    small_run: RunConfig, callback: Path, tmp_path: Path
) -> None:
    from lit_transformers.runs import code

    def key(specification: str) -> str:
        return run_key(small_run.override(parse_assignments(callback_assignments([specification]))))

    keys = {run_key(small_run), key("halving:Halve{step: 1}"), key("halving.Halve{step: 2}")}
    callback.write_text(CALLBACK.replace("0.5", "0.25"))
    code.read.cache_clear()
    keys.add(key("halving:Halve{step: 1}"))
    assert len(keys) == 4
    short = small_run.override({"training.steps": 2})
    plain = fit(short, tmp_path / "plain")
    changed = fit(short.override(parse_assignments(callback_assignments(["halving:Halve{step: 1}"]))), tmp_path / "it")
    assert plain["metrics"] != changed["metrics"]


@pytest.mark.parametrize(
    ("specification", "reason"),
    [
        ("halving:Double", "halving:Double cannot be imported: module halving has no class 'Double'"),
        ("halvin.Halve", "halvin.Halve cannot be imported: there is no module 'halvin'"),
        ("halving.CALLS", "halving.CALLS cannot be imported: module halving has no class 'CALLS'"),
        ("foreign_module.Net", "foreign_module.Net is no class of Lightning callbacks"),
        ("lightning.pytorch.callbacks:ModelCheckpoint", "a run writes its own checkpoint"),
        ("halving:Halve{steps: 3}", "halving:Halve refuses its arguments"),
    ],
)
def test_what_is_no_callback_of_a_run_is_refused(
    specification: str, reason: str, small_run: RunConfig, callback: Path
) -> None:
    config = small_run.override(parse_assignments(callback_assignments([specification])))
    with pytest.raises(ConfigError, match=reason):
        config.training.callbacks[0].build()
