"""Ranks that share one device, for a machine with a single one; and one process that does the run of several.

NCCL refuses two ranks on one device, gloo does not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy

from lit_transformers.records.files import RECORD
from lit_transformers.runs import RunConfig, fit, train
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.stopping import Stop


def train_alone(config: RunConfig, directory: Path) -> None:
    """One process does the run of several ranks, and writes a record of its metrics."""
    single = config.override({"training.devices": 1})
    metrics, _, _ = train.train(single, single.data.build(), directory, "its own", Stop())
    (directory / RECORD).write_text(json.dumps({"metrics": metrics}))


def share_one_device(device: torch.device, backend: str) -> None:
    """Makes all ranks of a run train on ``device`` and communicate by ``backend``."""
    world, make = int(os.environ["WORLD_SIZE"]), train.make_trainer

    def strategy_of(training: TrainingConfig) -> DDPStrategy:
        return DDPStrategy(parallel_devices=[device] * world, process_group_backend=backend)

    def make_trainer(
        training: TrainingConfig, directory: Path, callbacks: list[L.Callback], loggers: Sequence[Logger] = ()
    ) -> L.Trainer:
        # Lightning counts devices, not ranks.
        return make(training.override({"devices": 1}), directory, callbacks, loggers)

    train.strategy_of = strategy_of  # type: ignore[assignment]
    train.make_trainer = make_trainer


def train_as_rank(config: RunConfig, directory: Path, backend: str) -> None:
    """One rank of a run on one device: of two, or the only one; for ``Forked``."""
    share_one_device(torch.device(config.training.device, 0 if config.training.device == "cuda" else None), backend)
    if int(os.environ["WORLD_SIZE"]) == 1:
        train_alone(config, directory)
    else:
        record = fit(config, directory)
        assert record["outcome"] == "finished", record["reason"]
