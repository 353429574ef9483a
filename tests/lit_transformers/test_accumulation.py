"""Updates of several batches, and weights averaged over several updates."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from datamodules import GeneratedData
from lit_transformers.batch import IGNORED, StringBatch
from lit_transformers.config import ConfigError
from lit_transformers.runs import RunConfig, describe, fit, load
from lit_transformers.runs.train import train
from lit_transformers.tasks.strings import Strings
from lit_transformers.training.config import AverageConfig, InverseSquareRootConfig
from lit_transformers.training.stopping import Interrupted, Stop

BATCHES = 4
CONFIG = RunConfig.from_dict(
    {
        "model": {"kind": "language_model", "dim": 16, "heads": 2, "depth": 1, "positions": "sinusoidal"},
        "task": "strings",
        "data": {
            "kind": "generated",
            "max_length": 9,
            "lengths": "uniform",
            "batch_size": 4,
            "evaluation": {"examples": 20},
        },
        "training": {
            "steps": 6, "device": "cpu", "accumulate": BATCHES, "log_every": 1, "validate_every": 3,
            "clip": 0.2, "optimizer": {"kind": "sgd", "learning_rate": 0.1},
        },
    }
)  # fmt: skip
DROPPING = CONFIG.override({"model.dropout": 0.2, "training.average": {"last": 3, "every": 2}})


def concatenated(batches: list[StringBatch]) -> StringBatch:
    """The rows of several batches as one."""
    longest = max(batch.inputs.size(1) for batch in batches)

    def padded(column: Tensor, padding: int) -> Tensor:
        return torch.nn.functional.pad(column, (0, longest - column.size(1)), value=padding)

    columns = zip(
        *(
            (
                padded(batch.inputs, 0),
                padded(batch.targets, IGNORED),
                padded(batch.padding_mask, 0),
                batch.example,
                batch.requested_length,
            )
            for batch in batches
        ),
        strict=True,
    )
    parts = [torch.cat(column) for column in columns]
    return StringBatch(*parts, cursor="")


class Joined:
    """A loader whose batches each join the batches of an update of CONFIG."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    def __iter__(self) -> Any:
        batches = iter(GeneratedData(self.config.data).train_dataloader())
        while True:
            yield concatenated([next(batches) for _ in range(BATCHES)])


def weights(task: torch.nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in task.named_parameters()}


def trained_weights(config: RunConfig, directory: Path, loader: Any = None) -> dict[str, Tensor]:
    directory.mkdir()
    data = GeneratedData(config.data)
    if loader is not None:
        data.train_dataloader = lambda: loader  # type: ignore[method-assign]
    train(config, data, directory, "its own", Stop())
    return weights(load(directory / "checkpoint.ckpt")[0])


def curve(directory: Path, name: str) -> list[float]:
    rows = csv.DictReader((directory / "metrics.csv").open())
    return [float(row["value"]) for row in rows if row["name"] == name]


def artifacts(directory: Path) -> tuple[Any, bytes, bytes]:
    record = json.loads((directory / "record.json").read_text())
    del record["measured"]
    return record, (directory / "metrics.csv").read_bytes(), (directory / "documents.csv").read_bytes()


def test_four_batches_of_unequal_size_are_one_large_batch(tmp_path: Path) -> None:
    """Also after clipping, and on the curve: a mean over targets, not a mean of means."""
    batches = [batch for batch, _ in zip(GeneratedData(CONFIG.data).train_dataloader(), range(BATCHES), strict=False)]
    assert len({int((batch.targets != IGNORED).sum()) for batch in batches}) > 1, "they are to be unequal"
    accumulated = trained_weights(CONFIG, tmp_path / "several")
    expected = trained_weights(CONFIG.override({"training.accumulate": 1}), tmp_path / "one", Joined(CONFIG))
    torch.testing.assert_close(accumulated, expected, rtol=1e-5, atol=1e-6)
    for name in ("train/nats", "train/loss", "val/nats"):
        assert curve(tmp_path / "several", name) == pytest.approx(curve(tmp_path / "one", name), rel=1e-5)
    assert len(curve(tmp_path / "several", "train/nats")) == 6 and len(curve(tmp_path / "several", "val/nats")) == 2


def test_an_update_counts_the_tokens_of_all_its_batches() -> None:
    single = CONFIG.override({"training.accumulate": 1})
    assert CONFIG.tokens_per_step == BATCHES * single.tokens_per_step
    assert describe(CONFIG).tokens == BATCHES * describe(single).tokens
    assert describe(CONFIG).train_flops == BATCHES * describe(single).train_flops


def stop_during_call(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Lets SIGTERM come in the ``call``-th training step."""
    step, calls = Strings.training_step, iter(range(1, 1000))

    def step_and_stop(task: Strings, batch: StringBatch, index: int) -> dict[str, Any]:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(task, batch, index)

    monkeypatch.setattr(Strings, "training_step", step_and_stop)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was never stopped."""
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("whole")
    fit(DROPPING, directory)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("call", [6, 15, 19])
def test_a_run_that_is_stopped_amid_an_update_finishes_it_and_goes_on_as_if_it_never_was(
    call: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_during_call(patch, call)
        with pytest.raises(Interrupted, match=f"stopped at step {-(-call // BATCHES)};"):
            fit(DROPPING, tmp_path / "stopped")
    fit(DROPPING, tmp_path / "stopped")
    assert artifacts(tmp_path / "stopped") == artifacts(whole)
    states = [load(directory / "checkpoint.ckpt")[0] for directory in (tmp_path / "stopped", whole)]
    torch.testing.assert_close(*(weights(state) for state in states), rtol=0, atol=0)


@pytest.mark.slow
def test_the_weights_at_the_end_are_the_mean_of_those_of_the_last_updates(tmp_path: Path) -> None:
    constant = CONFIG.override({"training.schedule": "constant"})
    averaged = trained_weights(constant.override({"training.average": {"last": 3, "every": 2}}), tmp_path / "averaged")
    unaveraged = [
        trained_weights(constant.override({"training.steps": steps}), tmp_path / str(steps)) for steps in (2, 4, 6)
    ]
    mean = {name: (unaveraged[0][name] + unaveraged[1][name] + unaveraged[2][name]) / 3 for name in averaged}
    torch.testing.assert_close(averaged, mean)
    assert any(not torch.equal(averaged[name], unaveraged[-1][name]) for name in averaged)


@pytest.mark.slow
def test_what_is_measured_at_the_end_is_the_mean_and_before_it_the_weights_of_then(tmp_path: Path) -> None:
    fit(CONFIG, tmp_path / "plain")
    record = fit(CONFIG.override({"training.average": {"last": 3, "every": 2}}), tmp_path / "averaged")
    unaveraged, averaged = (curve(tmp_path / name, "val/nats") for name in ("plain", "averaged"))
    assert averaged[0] == unaveraged[0] and averaged[1] != unaveraged[1]
    assert record["metrics"]["val/nats"] == pytest.approx(averaged[1], rel=1e-6)
    averager_state = torch.load(tmp_path / "averaged" / "checkpoint.ckpt", weights_only=True)["callbacks"]["Averager"]
    assert averager_state == {"sums": {}}, "a finished average takes no room"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"average": {"last": 4, "every": 2}},
            "weights of 4 updates, every 2, and there are 6 in total; set training.av",
        ),
        (
            {"average": {}, "strategy": "fsdp", "devices": 2},
            "average takes whole weights, .* set training.average to null",
        ),
        ({"accumulate": 0}, "training.accumulate: .*greater than or equal to 1"),
    ],
)
def test_what_cannot_be_averaged_is_refused_when_the_config_is_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CONFIG.override({f"training.{path}": value for path, value in changes.items()})


def test_as_many_weights_as_there_are_updates_can_be_averaged() -> None:
    assert [*AverageConfig(last=3, every=2).places(6)] == [2, 4, 6]
    assert CONFIG.override({"training.average": {"last": 6, "every": 1}}).training.average is not None


def test_the_schedule_of_the_transformer_is_its_equation() -> None:
    dim, warmup = 512, 40
    schedule, peak = InverseSquareRootConfig(warmup=warmup), dim**-0.5 * warmup**-0.5
    for step in range(1, 200):
        equation = dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert peak * schedule.factor(step - 1, 1000) == pytest.approx(equation, rel=1e-12)
