"""Loggers of a run: the values that they receive, and a stopped and killed run that resumes in the same logger."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Forked

from lit_transformers.cli.callback_options import chosen_loggers
from lit_transformers.config import ConfigError
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import Interrupted, RunConfig, fit, load
from lit_transformers.runs.loggers import LoggerConfig
from lit_transformers.tasks.causal_lm import CausalLM

LOGGERS = ("csv", "tensorboard", "mlflow", "trackio")
INSTALLED = tuple(name for name in LOGGERS if name == "csv" or importlib.util.find_spec(name) is not None)
METRICS = ("train/loss", "train/nats", "val/bpb")
EARLIER, LATER = 6, 11
"""The updates after which a run is stopped, with a checkpoint, and killed, without another one."""

Points = dict[str, list[tuple[int, float]]]


@pytest.fixture(scope="module")
def config(small_run: RunConfig) -> RunConfig:
    """Whose update at which it is stopped is one that is logged."""
    return small_run.override({"training.steps": 16, "training.log_every": 2, "training.validate_every": 5})


def train_logged(config: RunConfig, *attempts: tuple[Path, int, signal.Signals]) -> None:
    """Does runs with all loggers that are installed, each in its folder and up to an update in which it gets a signal.
    Checkpoints are those of its ends alone."""
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    os.environ["TRACKIO_DIR"] = str(attempts[0][0].parent / "trackio")
    train = CausalLM.training_step
    for directory, step, number in attempts:

        def train_and_end(
            task: CausalLM, batch: Any, index: int, step: int = step, number: signal.Signals = number
        ) -> Any:
            if task.global_step == step - 1:
                os.kill(os.getpid(), number)
            return train(task, batch, index)

        CausalLM.training_step = train_and_end  # type: ignore[method-assign]
        with suppress(Interrupted):
            fit(config, directory, keep_every=1e9, logger_config=LoggerConfig(INSTALLED, study=directory.name))


@pytest.fixture(scope="module")
def runs(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs: ``whole``, and ``resumed``, which was stopped after an update, resumed, killed at a later
    update, and resumed from the earlier one."""
    folder = tmp_path_factory.mktemp("runs")
    whole, resumed, never = folder / "whole", folder / "resumed", config.training.steps + 1
    attempts = ((whole, never, signal.SIGTERM), (resumed, EARLIER, signal.SIGTERM), (resumed, LATER, signal.SIGKILL))
    assert Forked(folder / "log.txt", train_logged, config, *attempts).wait() == [-signal.SIGKILL]
    assert torch.load(resumed / CHECKPOINT, weights_only=True)["global_step"] == EARLIER
    assert max(step for step, _ in csv_points(resumed)["val/bpb"]) > EARLIER, "nothing is repeated"
    Forked(folder / "log.txt", train_logged, config, (resumed, never, signal.SIGTERM)).finish()
    return folder


def csv_points(directory: Path) -> Points:
    points = Points()
    with (directory / "csv" / "version_0" / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name in row.keys() - {"step"}:
                points.setdefault(name, []).extend([(int(row["step"]), float(row[name]))] if row[name] else [])
    return points


def tensorboard_points(directory: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (directory / "tensorboard").iterdir()
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def mlflow_points(directory: Path) -> Points:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{directory / 'mlflow.db'}")
    (experiment,) = [each for each in client.search_experiments() if each.name == directory.name]
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: [(point.step, point.value) for point in history] for name, history in histories.items()}


def trackio_points(directory: Path) -> Points:
    """Read from its database, for the package's folder is that of the process which imported it first."""
    points = Points()
    with sqlite3.connect(directory.parent / "trackio" / f"{directory.name}.db") as database:
        runs, rows = (
            database.execute(f"SELECT {columns} FROM metrics").fetchall()
            for columns in ("DISTINCT run_id", "step, metrics")
        )
    assert len(runs) == 1
    for step, metrics in rows:
        for name, value in json.loads(metrics).items():
            points.setdefault(name, []).append((step, value))
    return points


READERS = {"csv": csv_points, "tensorboard": tensorboard_points, "mlflow": mlflow_points, "trackio": trackio_points}


@pytest.fixture(params=LOGGERS)
def logger(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param not in INSTALLED:
        pytest.skip(f"{request.param} is not installed: pip install 'lit-transformers[loggers]'")
    yield request.param


@pytest.mark.slow
def test_a_logger_receives_the_values_and_steps_that_the_file_has(logger: str, runs: Path) -> None:
    expected, points = csv_points(runs / "whole"), READERS[logger](runs / "whole")
    for metric in METRICS:
        assert expected[metric] and sorted(points[metric]) == [
            (step, pytest.approx(value)) for step, value in expected[metric]
        ]


@pytest.mark.slow
def test_a_run_that_was_stopped_and_killed_goes_on_in_the_same_run_of_its_logger(logger: str, runs: Path) -> None:
    """Each step stands there once, and has the value of a run that was never disturbed."""
    expected, points = (READERS[logger](runs / name) for name in ("whole", "resumed"))
    assert expected.keys() == points.keys()
    for metric in METRICS:
        assert sorted(points[metric]) == sorted(expected[metric]), metric
    missing = {*expected["train/tokens"]} - {*points["train/tokens"]}
    assert {step for step, _ in missing} <= {EARLIER - 1}, "tokens are not counted on"
    assert len(points["train/tokens"]) + len(missing) == len(expected["train/tokens"])


def test_a_logger_changes_no_number_of_a_run(small_run: RunConfig, tmp_path: Path) -> None:
    config = small_run.override({"training.steps": 6, "training.log_every": 2, "training.validate_every": 3})
    plain = fit(config, tmp_path / "plain")
    logged = fit(config, tmp_path / "logged", logger_config=LoggerConfig(("csv",)))
    assert plain["metrics"] == logged["metrics"]
    weights = [load(tmp_path / name / CHECKPOINT)[0].state_dict() for name in ("plain", "logged")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    lines = (tmp_path / "logged" / "csv" / "version_0" / "metrics.csv").read_text()
    assert "train/gradient_norm" in lines and "val/bpb" in lines


def test_loggers_are_chosen_by_name() -> None:
    assert chosen_loggers(["csv", "wandb"]) == ("offline", ("csv",))
    assert chosen_loggers(["wandb"], "online") == ("online", ())
    with pytest.raises(ConfigError, match="no logger 'tensorbord'; did you mean tensorboard"):
        chosen_loggers(["tensorbord"])
