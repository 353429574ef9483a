"""Runs that lag behind end early: at the step that the bars name, with the metrics of that step, on all ranks."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from forked import training

from lit_transformers.config import ConfigError
from lit_transformers.records.files import CHECKPOINT, RECORD
from lit_transformers.runs import RunConfig, fit
from lit_transformers.training.callbacks import Checkpointer
from lit_transformers.training.search_pruning import BARS, Bars

NEVER = {10: math.inf, 20: math.inf, 30: math.inf, 40: math.inf}


@pytest.fixture(scope="module")
def config(small_run: RunConfig) -> RunConfig:
    return small_run.override({"training.steps": 40, "training.validate_every": 10, "training.log_every": 10})


def validated_steps(directory: Path) -> list[int]:
    """The steps at which it was validated."""
    rows = csv.DictReader((directory / "metrics.csv").open())
    return [int(row["step"]) for row in rows if row["name"] == "val/bpb"]


def reproducible(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "measured"}


@pytest.fixture(scope="module")
def alone(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run without bars; tests only read it."""
    directory = tmp_path_factory.mktemp("alone")
    fit(config, directory)
    return directory


@pytest.fixture(scope="module")
def pruned(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that missed the bar of step 20; tests only read it."""
    directory = tmp_path_factory.mktemp("pruned")
    Bars("val/bpb", "minimize", NEVER | {20: 0.01}).write(directory)
    fit(config, directory)
    return directory


def read_record(directory: Path) -> dict[str, Any]:
    return json.loads((directory / RECORD).read_text())


def test_a_run_that_misses_a_bar_ends_there_with_what_it_measured(pruned: Path, config: RunConfig) -> None:
    record = read_record(pruned)
    assert record["cost"]["planned_tokens"] == record["cost"]["tokens"] == 20 * config.tokens_per_step
    assert record["outcome"] == "pruned" and record["measured"]["steps"] == 20
    assert record["reason"].startswith("at step 20 of 40, val/bpb") and "lags behind 0.01" in record["reason"]
    assert validated_steps(pruned) == [10, 20]
    metric_rows = [row for row in csv.DictReader((pruned / "metrics.csv").open()) if row["name"] == "val/bpb"]
    assert record["metrics"]["val/bpb"] == float(metric_rows[-1]["value"])


@pytest.mark.slow
def test_bars_that_are_reached_change_nothing_and_the_last_validation_ends_nothing(
    config: RunConfig, alone: Path, tmp_path: Path
) -> None:
    Bars("val/bpb", "minimize", NEVER | {40: 0.01}).write(tmp_path)
    watched = fit(config, tmp_path)
    assert watched["outcome"] == "finished" and reproducible(watched) == reproducible(read_record(alone))


@pytest.mark.slow
def test_what_counts_is_the_best_value_so_far(config: RunConfig, alone: Path, tmp_path: Path) -> None:
    """Bits a byte fall, so where more are wanted the first value stays the best."""
    rows = csv.DictReader((alone / "metrics.csv").open())
    first, second, *_ = (float(row["value"]) for row in rows if row["name"] == "val/bpb")
    assert first > second
    for name, bar in (("reached", first), ("missed", first + 1e-9)):
        Bars("val/bpb", "maximize", {20: bar}).write(tmp_path / name)
    assert fit(config, tmp_path / "reached")["outcome"] == "finished"
    assert fit(config, tmp_path / "missed")["outcome"] == "pruned"


@pytest.mark.slow
def test_a_run_killed_between_the_verdict_and_its_record_ends_alike(
    config: RunConfig, pruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Stands for SIGKILL: nothing is written after it."""

    save = Checkpointer.save

    def save_and_die(self: Checkpointer, trainer: Any) -> None:
        save(self, trainer)
        raise Killed

    Bars("val/bpb", "minimize", {20: 0.01, 30: 0.01}).write(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Checkpointer, "save", save_and_die)
        with pytest.raises(Killed):
            fit(config, tmp_path)
    assert (tmp_path / CHECKPOINT).exists()
    assert reproducible(fit(config, tmp_path)) == reproducible(read_record(pruned))


@pytest.mark.slow
def test_without_its_bars_a_pruned_run_goes_on_to_its_end(
    config: RunConfig, alone: Path, pruned: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(pruned, tmp_path / "run")
    (directory / BARS).unlink()
    assert reproducible(fit(config, directory)) == reproducible(read_record(alone))


def test_damaged_bars_are_an_error_that_names_the_file(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / BARS).write_text("{}")
    with pytest.raises(ConfigError, match=r"bars\.json: holds no bars"):
        fit(config, tmp_path)


@pytest.mark.slow
def test_two_ranks_end_together(config: RunConfig, tmp_path: Path) -> None:
    """One rank alone would wait for the other for ever, which the time limit would show."""
    Bars("val/bpb", "minimize", {20: 0.01}).write(tmp_path)
    training(config.override({"training.devices": 2}), tmp_path).finish()
    record = read_record(tmp_path)
    assert record["outcome"] == "pruned" and record["measured"]["steps"] == 20
    assert validated_steps(tmp_path) == [10, 20]
    assert "val/bpb" in record["metrics"]
