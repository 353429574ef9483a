"""Measures the time and the peak memory of a training step on this machine. Trains a few steps and keeps nothing."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.environment import peak_memory
from lit_transformers.runs.fit import require_device
from lit_transformers.runs.train import make_trainer, quiet
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["STEPS", "StepClock", "StepProbe", "probe"]

WARM, TIMED = 4, 20
STEPS = WARM + TIMED
"""The steps of a probe. The first ones are not timed."""


class StepProbe(NamedTuple):
    """Seconds per training step, and the peak memory in bytes: of the device, or on a CPU of the process."""

    seconds: float
    memory: float


def probe(config: RunConfig) -> StepProbe:
    """Trains 24 steps and measures them. The time is the lower quartile, because other processes can only add to it.

    Memory counts from the start of the process, so each probe needs a separate process.
    Raises ConfigError where the machine lacks the device.
    """
    require_device(config.training)
    L.seed_everything(config.seed, workers=True, verbose=False)
    training = config.training.override({"steps": STEPS, "validate_every": None})
    data = config.build_data()
    clock = StepClock()
    with quiet(), arithmetic(training), tempfile.TemporaryDirectory() as folder:
        task = config.build_task(data)
        task.reports_training = False
        make_trainer(training, Path(folder), [clock]).fit(task, data)
    return clock.measured()


class StepClock(Callback):
    """Records the time at which every step ends."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
        self.times.append(time.perf_counter())

    def measured(self) -> StepProbe:
        """Returns the lower quartile of the times of the steps, and the memory of the process so far."""
        durations = np.diff(self.times)[WARM:]
        return StepProbe(float(np.quantile(durations, 0.25)), float(peak_memory()))
