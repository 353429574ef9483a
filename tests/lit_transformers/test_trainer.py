"""Tasks and data under a Lightning trainer of one's own."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from claims.canaries import CANARIES
from datamodules import Data, DataError
from lit_transformers.config import ConfigError
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, fit, load
from lit_transformers.tasks import Task
from lit_transformers.tasks.strings import Strings

SILENT = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
QUIET: dict[str, Any] = {"accelerator": "cpu", "logger": False} | SILENT


def built(config: RunConfig) -> tuple[Task, Data]:
    """The task and the data of a run, with fixed weights."""
    L.seed_everything(0, verbose=False)
    data = config.data.build()
    return config.build_task(data), data


FLAGS: dict[str, dict[str, Any]] = {
    "accumulate_grad_batches": {"accumulate_grad_batches": 2},
    "gradient clipping by norm": {"gradient_clip_val": 0.5},
    "gradient clipping by value": {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"},
    "precision 64-true": {"precision": "64-true"},
    "precision bf16-mixed": {"precision": "bf16-mixed", "gradient_clip_val": 0.5},
    "precision bf16-mixed by value": {
        "precision": "bf16-mixed",
        "gradient_clip_val": 0.5,
        "gradient_clip_algorithm": "value",
    },
    "precision bf16-true": {"precision": "bf16-true"},
    "plugins": {"plugins": [MixedPrecision("bf16-mixed", "cpu"), LightningEnvironment()]},
    "deterministic": {"deterministic": True},
    "benchmark": {"benchmark": True},
    "limit_*_batches": {"limit_train_batches": 2, "limit_val_batches": 1, "max_epochs": 2, "max_steps": -1},
    "overfit_batches": {"overfit_batches": 2},
    "fast_dev_run": {"fast_dev_run": 2},
    "val_check_interval": {"val_check_interval": 2},
    "check_val_every_n_epoch": {"limit_train_batches": 1, "check_val_every_n_epoch": 2},
    "check_val_every_n_epoch none": {"check_val_every_n_epoch": None, "val_check_interval": 2},
    "max_time": {"max_steps": -1, "max_time": {"seconds": 0.3}},
    "min_steps": {"min_steps": 2},
    "min_epochs": {"min_epochs": 2, "max_epochs": 3, "limit_train_batches": 1, "max_steps": -1},
    "profiler": {"profiler": "simple"},
    "detect_anomaly": {"detect_anomaly": True},
    "inference_mode": {"inference_mode": False},
    "use_distributed_sampler": {"use_distributed_sampler": False},
    "reload_dataloaders_every_n_epochs": {"reload_dataloaders_every_n_epochs": 1, "limit_train_batches": 2},
    "enable_*": dict.fromkeys(SILENT, True),
    "num_sanity_val_steps": {"num_sanity_val_steps": 2},
    "sync_batchnorm": {"sync_batchnorm": True},
    "log_every_n_steps": {"log_every_n_steps": 1},
    "callbacks": {"callbacks": [EarlyStopping("val/nats")], "val_check_interval": 1},
    "barebones": {"barebones": True},
}
"""Flags of a Trainer with which four updates train."""


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_of_the_trainer_works(name: str, small_run: RunConfig, tmp_path: Path) -> None:
    task, data = built(small_run)
    before = {key: value.clone() for key, value in task.state_dict().items()}
    flags = QUIET | {"max_steps": 4, "default_root_dir": tmp_path} | FLAGS[name]
    if "barebones" in flags:
        flags = {"barebones": True, "max_steps": 4, "accelerator": "cpu"}
    trainer = L.Trainer(**flags)
    trainer.fit(task, data)
    assert trainer.global_step >= 2
    after = task.state_dict()
    assert all(torch.isfinite(value).all() for value in after.values())
    assert any(not torch.equal(value.to(before[key]), before[key]) for key, value in after.items())


@pytest.mark.parametrize(
    ("flags", "error", "reason"),
    [
        (
            {"max_epochs": 2},
            DataError,
            "batches of training do not end, so 2 epochs never do",
        ),
        ({"limit_train_batches": 0.5, "max_steps": 4}, MisconfigurationException, "must be `1.0` or an int"),
        ({"val_check_interval": 0.5, "max_steps": 4}, MisconfigurationException, "must be time based, `1.0` or an int"),
    ],
)
def test_a_flag_that_cannot_work_is_refused(
    flags: dict[str, Any], error: type[Exception], reason: str, small_run: RunConfig
) -> None:
    with pytest.raises(error, match=reason):
        L.Trainer(**QUIET | flags).fit(*built(small_run))


def test_overfitting_reads_the_same_batches_in_every_epoch(small_run: RunConfig) -> None:
    task, data = built(small_run)
    read: list[int] = []

    class Seen(L.Callback):
        def on_train_batch_end(self, trainer: Any, task: Any, outputs: Any, batch: Any, i: int) -> None:
            read.append(int(batch.inputs.sum()))

    L.Trainer(**QUIET | {"overfit_batches": 2, "max_epochs": 2, "callbacks": [Seen()]}).fit(task, data)
    assert read[:2] == read[2:] and read[0] != read[1]


def curve(directory: Path) -> list[dict[str, str]]:
    (path,) = directory.rglob("metrics.csv")
    return list(csv.DictReader(path.open()))


def test_training_is_logged_and_the_norm_is_that_before_clipping(small_run: RunConfig, tmp_path: Path) -> None:
    norms = []
    for clip in (None, 1e-3):
        task, data = built(small_run)
        logger, flags = CSVLogger(tmp_path / str(clip)), {"max_steps": 4, "log_every_n_steps": 2}
        L.Trainer(**QUIET | flags | {"logger": logger, "gradient_clip_val": clip}).fit(task, data)
        first, second = curve(tmp_path / str(clip))
        norms.append(float(first["train/gradient_norm"]))
        assert 0 < float(first["train/tokens"]) < float(second["train/tokens"]) <= 4 * small_run.tokens_per_step
        assert float(second["train/tokens_per_second"]) > 0
        assert float(second["train/learning_rate"]) == pytest.approx(1e-3 * task.training_config.schedule.factor(3, 30))
    assert norms[0] == pytest.approx(norms[1], rel=0.3) and norms[1] > 0.1


def test_tokens_are_counted_on_from_a_checkpoint(small_run: RunConfig, tmp_path: Path) -> None:
    flags = QUIET | {"log_every_n_steps": 1}

    def trained(steps: int, checkpoint: Path | None = None) -> L.Trainer:
        trainer = L.Trainer(**flags | {"max_steps": steps})
        trainer.fit(*built(small_run), ckpt_path=checkpoint, weights_only=True)
        return trainer

    trained(2).save_checkpoint(tmp_path / "half.ckpt")
    resumed, whole = trained(4, tmp_path / "half.ckpt"), trained(4)
    assert resumed.callback_metrics["train/tokens"] == whole.callback_metrics["train/tokens"]
    assert resumed.callback_metrics["train/loss"] == whole.callback_metrics["train/loss"]


def test_two_batches_of_an_update_are_a_mean_over_their_targets(small_run: RunConfig) -> None:
    """Under a trainer that accumulates, for any value in the config. Segments are of 7 symbols, because dividing by a
    power of two is exact, so that a mean of means would be equal too."""
    states = []
    for accumulate in (1, 2):
        task, data = built(small_run.override({"training.accumulate": accumulate, "data.segment_length": 7}))
        L.Trainer(**QUIET | {"max_steps": 20, "accumulate_grad_batches": 2}).fit(task, data)
        states.append(task.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


TASKS = sorted(name for name in CANARIES if name != "language model")


def check_what_a_checkpoint_gives_back(config: RunConfig, folder: Path) -> None:
    """Trains two updates, and compares the predictions before and after loading."""
    task, data = built(config)
    trainer = L.Trainer(**QUIET | {"max_steps": 2, "limit_predict_batches": 2, "limit_val_batches": 2})
    trainer.fit(task, data)
    trainer.save_checkpoint(folder / "task.ckpt")
    again = Task.load_from_checkpoint(folder / "task.ckpt")
    assert type(again) is type(task) and again.data.to_dict() == task.data.to_dict()
    assert type(task).load_from_checkpoint(folder / "task.ckpt").hparams == task.hparams
    predicted = trainer.predict(again, data)
    assert predicted and predicted[0] and predicted == trainer.predict(task, data)


def test_a_language_model_is_loaded_from_its_checkpoint_alone(small_run: RunConfig, tmp_path: Path) -> None:
    check_what_a_checkpoint_gives_back(small_run, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_loaded_from_its_checkpoint_alone(name: str, tmp_path: Path) -> None:
    check_what_a_checkpoint_gives_back(CANARIES[name].config, tmp_path)


def test_the_checkpoint_of_a_run_is_loaded_too_and_as_no_other_task(small_run: RunConfig, tmp_path: Path) -> None:
    fit(small_run.override({"training.steps": 2}), tmp_path)
    path = tmp_path / CHECKPOINT
    assert Task.load_from_checkpoint(path).model_config == load(path)[0].model_config == small_run.model
    with pytest.raises(ConfigError, match="holds a CausalLM, not a Strings; load it by Task"):
        Strings.load_from_checkpoint(path)
    contents = torch.load(path, weights_only=True)
    torch.save({name: part for name, part in contents.items() if name != "hyper_parameters"}, path)
    with pytest.raises(ConfigError, match=r"no hyperparameters of a task; .* lit_transformers\.runs\.load reads it"):
        Task.load_from_checkpoint(path)
    assert load(path)[1].model == small_run.model


def test_the_losses_of_documents_that_are_predicted_are_those_of_validation(small_run: RunConfig) -> None:
    task, data = built(small_run)
    trainer = L.Trainer(**QUIET)
    trainer.validate(task, data, verbose=False)
    measured = task.metric.per_document()
    assert task.metric.joined(trainer.predict(task, data) or []) == [pytest.approx(row) for row in measured]


DDP = """
import sys
import lightning as L
from lightning.pytorch.callbacks import EarlyStopping
from lit_transformers.runs import RunConfig
config = RunConfig.from_yaml(sys.argv[1])
data = config.data.build()
trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_steps=4, val_check_interval=2, logger=False,
                    enable_checkpointing=False, enable_progress_bar=False, callbacks=[EarlyStopping("val/nats")],
                    sync_batchnorm=True, gradient_clip_val=1.0, precision="bf16-mixed")
trainer.fit(config.build_task(data), data)
assert trainer.global_step == 4 and trainer.callback_metrics["val/nats"] > 0
print("trained")
"""


@pytest.mark.slow
def test_two_processes_train_and_both_see_what_is_monitored(python: Path, small_run: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(small_run.to_yaml())
    (tmp_path / "ddp.py").write_text(DDP)
    command = [str(python), str(tmp_path / "ddp.py"), str(tmp_path / "run.yaml")]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0 and completed.stdout.count("trained") == 2, completed.stderr
