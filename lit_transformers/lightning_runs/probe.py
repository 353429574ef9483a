"""Measures the time and the peak memory of a training step of a LightningModule on this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

import lightning as L

from lit_transformers.lightning_runs.config import LightningRunConfig
from lit_transformers.lightning_runs.fit import require_device
from lit_transformers.lightning_runs.train import built, make_trainer
from lit_transformers.runs.probe import STEPS, StepClock, StepProbe
from lit_transformers.runs.train import quiet
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["probe"]


def probe(config: LightningRunConfig) -> StepProbe:
    """Trains a few steps and measures them, as ``lit_transformers.runs.probe`` does. Raises ConfigError where the
    machine lacks the device."""
    require_device(config)
    L.seed_everything(config.seed, workers=True, verbose=False)
    short = config.override({"training.steps": STEPS, "training.validate_every": None})
    clock, (module, data) = StepClock(), built(short)
    with quiet(), arithmetic(config.training), tempfile.TemporaryDirectory() as folder:
        make_trainer(short, Path(folder), [clock]).fit(module, data)
    return clock.measured()
