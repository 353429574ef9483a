"""What a step of a run takes here, measured: its time, and the most memory. Trains a few steps and keeps nothing."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from lit_transformers.record import peak_memory, quiet
from lit_transformers.run import RunConfig, make_trainer, require_device

__all__ = ["Probed", "probe"]

WARM, TIMED = 4, 20


class Probed(NamedTuple):
    """Seconds a step of training, and bytes held at most by the process, or by the device where it is no CPU."""

    seconds: float
    memory: float


def probe(config: RunConfig) -> Probed:
    """Trains 24 steps and measures. The time is the lower quartile, for other processes only ever add to it.

    Memory counts from the start of the process, so each probe wants a process of its own.
    Raises ConfigError where the machine lacks the device.
    """
    require_device(config.training)
    L.seed_everything(config.seed, workers=True, verbose=False)
    training = config.training.override({"steps": WARM + TIMED, "validate_every": None})
    data = config.data.build()
    clock = _Clock()
    with quiet(), tempfile.TemporaryDirectory() as folder:
        make_trainer(training, Path(folder), [clock]).fit(config.build_task(data), data)
    took = np.diff(clock.times)[WARM:]
    return Probed(float(np.quantile(took, 0.25)), float(peak_memory()))


class _Clock(Callback):
    """When every step has ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        if task.device.type == "cuda":
            torch.cuda.synchronize(task.device)
        self.times.append(time.perf_counter())
