"""Runs of a LightningModule that are drawn at random, next to runs of Lightning's own Trainer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lightning as L
import torch
from observed_module import EVENTS, KINDS, STOP, STOPS, TRAINED

from lit_transformers.lightning_runs import LightningRunConfig
from lit_transformers.lightning_runs.loaders import DataOrder
from lit_transformers.lightning_runs.measured_batches import MeasuredBatches
from lit_transformers.lightning_runs.train import built, train
from lit_transformers.runs.train import quiet, usable
from lit_transformers.training.stopping import Interrupted

__all__ = ["OBSERVED", "compare", "observed", "sampled"]

OBSERVED = LightningRunConfig(
    model={"class_path": "observed_module.Observed"},
    data={"class_path": "observed_module.ObservedData"},
    training={"steps": 12, "validate_every": 3, "log_every": 1, "device": "cpu"},
)


def observed(config: LightningRunConfig, directory: Path, stops: set[int]) -> dict[str, Any]:
    """Returns the events and the results of a run that is stopped in some batches and resumed each time."""
    EVENTS.clear()
    STOPS.clear()
    STOPS.update(stops)
    TRAINED[0] = 0
    directory.mkdir()
    path = directory / "checkpoint.ckpt"
    with quiet():
        while True:
            STOP.request.clear()
            try:
                # Checkpoints are written only where the run is stopped, so that it resumes from there.
                arguments = (config, directory, "key", usable(path), STOP, 1e9, lambda curves: [], MeasuredBatches())
                metrics, _, _ = train(*arguments)
            except Interrupted:
                forget_what_follows(path)
                continue
            break
    saved = torch.load(path, weights_only=True)
    return {
        "events": [*EVENTS],
        "metrics": metrics,
        "curves": (directory / "metrics.csv").read_text(),
        "weights": {name: tensor.tolist() for name, tensor in saved["state_dict"].items()},
        "schedules": saved["lr_schedulers"],
    }


def forget_what_follows(checkpoint: Path) -> None:
    """Removes the events of the batches after a checkpoint, which are trained again."""
    if not checkpoint.exists():
        EVENTS.clear()
        return
    progress = torch.load(checkpoint, weights_only=True)["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    starts = [i for i, event in enumerate(EVENTS) if event[0] == "on_train_batch_start"]
    del EVENTS[[*starts, len(EVENTS)][progress["total"]["completed"]] :]


def plainly(config: LightningRunConfig, directory: Path) -> list[tuple[Any, ...]]:
    """Returns the events of a plain Trainer, which reads the data in the same order."""
    EVENTS.clear()
    STOPS.clear()
    L.seed_everything(config.seed, workers=True, verbose=False)
    module, data = built(config)
    order = DataOrder(config.seed, 0)
    order.attach(data)
    accumulate = config.trainer.get("accumulate_grad_batches", 1)
    with quiet():
        L.Trainer(
            max_steps=config.training.steps,
            accelerator="cpu",
            devices=1,
            callbacks=[order],
            val_check_interval=accumulate * (config.training.validate_every or 1000),
            check_val_every_n_epoch=None,
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            default_root_dir=directory,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **config.trainer,
        ).fit(module, data)
    return [*EVENTS]


def sampled(seed: int) -> LightningRunConfig:
    """Returns a config with a random combination of data, schedules, accumulation, limits, validations and hooks."""
    rng = random.Random(seed)
    by_hand = rng.random() < 0.2
    trainer: dict[str, Any] = {}
    if not by_hand and rng.random() < 0.5:
        trainer["accumulate_grad_batches"] = rng.choice([2, 3])
    if rng.random() < 0.3:
        trainer["limit_train_batches"] = rng.choice([3, 4])
    if rng.random() < 0.2:
        trainer["limit_val_batches"] = 1
    if rng.random() < 0.3:
        trainer["reload_dataloaders_every_n_epochs"] = rng.choice([1, 2])
    if not by_hand and rng.random() < 0.3:
        trainer["gradient_clip_val"] = 0.5
    schedules = ["none", "step", "epoch", "validated_step", "validated_epoch", "epoch_loss"]
    return OBSERVED.override(
        {
            "model.init_args": {
                "schedule": rng.choice(schedules),
                "by_hand": by_hand,
                "augments": rng.random() < 0.5,
            },
            "data.init_args": {
                "kind": rng.choice(KINDS),
                "count": rng.choice([6, 9, 10]),
                "workers": rng.choice([0, 0, 0, 0, 1, 2]),
                "validated": rng.choice([1, 2]),
            },
            "training.validate_every": rng.choice([None, 1, 3, 4]),
            "training.steps": rng.choice([9, 12]),
            "trainer": trainer,
            "seed": seed,
        }
    )


def validates_between_updates(config: LightningRunConfig) -> bool:
    """Whether a plain Trainer, which counts batches, validates where a run does, which counts updates."""
    is_whole = "accumulate_grad_batches" not in config.trainer and not config.model.init_args.get("by_hand")
    return config.training.validate_every is None or is_whole


def compare(config: LightningRunConfig, directory: Path, seed: int) -> None:
    """Compares a run with a plain Trainer, and with the same run, stopped after all or some updates."""
    whole = observed(config, directory / "whole", set())
    if validates_between_updates(config):
        assert whole["events"] == plainly(config, directory)
    rng = random.Random(seed)
    if config.data.init_args.get("kind") != "two_streams":  # of which none would get to the end of an epoch
        assert observed(config, directory / "always", {*range(1000)}) == whole
    assert observed(config, directory / "sometimes", {n for n in range(1000) if rng.random() < 0.2}) == whole
