"""Tasks and data under a Lightning trainer of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment

from datamodules import Data
from lit_transformers.runs import RunConfig
from lit_transformers.tasks import Task

QUIET: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False} | dict.fromkeys(
    ("enable_progress_bar", "enable_model_summary"), False
)


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
    "enable_*": dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), True),
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
