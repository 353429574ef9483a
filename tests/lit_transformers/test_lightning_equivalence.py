"""Runs of LightningModules are what Lightning's own Trainer does, and are the same however often they are stopped."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from observed_module import EVENTS, KINDS, STOP, STOPS, TRAINED

from lit_transformers.lightning_runs import LightningRunConfig
from lit_transformers.lightning_runs.loaders import DataOrder
from lit_transformers.lightning_runs.measured_batches import MeasuredBatches
from lit_transformers.lightning_runs.train import built, train
from lit_transformers.runs.train import quiet, usable
from lit_transformers.training.callbacks import Interrupted

OBSERVED = LightningRunConfig(
    model={"class_path": "observed_module.Observed"},
    data={"class_path": "observed_module.ObservedData"},
    training={"steps": 12, "validate_every": 3, "log_every": 1, "device": "cpu"},
)


def observed(config: LightningRunConfig, directory: Path, stops: set[int]) -> dict[str, Any]:
    """Returns what happens in a run that is asked to stop in some batches, resumed each time, and what it leaves."""
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
                # Checkpoints are written where the run is stopped alone, so that what follows a stop is resumed there.
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
    """Returns what happens in a plain Trainer, which reads the data in the same order."""
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
    """Returns a config of whatever may meet: data, schedules, accumulation, limits, validations, hooks."""
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
    """Compares a run with what a plain Trainer does, and with the same run, stopped after all or some updates."""
    whole = observed(config, directory / "whole", set())
    if validates_between_updates(config):
        assert whole["events"] == plainly(config, directory)
    rng = random.Random(seed)
    if config.data.init_args.get("kind") != "two_streams":  # of which none would get to the end of an epoch
        assert observed(config, directory / "always", {*range(1000)}) == whole
    assert observed(config, directory / "sometimes", {n for n in range(1000) if rng.random() < 0.2}) == whole


@pytest.mark.parametrize(
    "changes",
    [
        {"model.init_args": {"schedule": "validated_step"}, "trainer": {"limit_train_batches": 3}},
        {"model.init_args": {"schedule": "epoch_loss"}, "trainer": {"accumulate_grad_batches": 2}},
        {"model.init_args": {"by_hand": True}, "data.init_args": {"kind": "generator"}},
        {"data.init_args": {"kind": "drawn"}, "trainer": {"reload_dataloaders_every_n_epochs": 2}},
    ],
    ids=["limits and a plateau", "accumulation", "by hand", "reloading"],
)
def test_a_run_is_what_lightning_does_and_the_same_however_often_it_is_stopped(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    compare(OBSERVED.override({"training.steps": 8, **changes}), tmp_path, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_any_run_is_what_lightning_does_and_the_same_however_often_it_is_stopped(seed: int, tmp_path: Path) -> None:
    compare(sampled(seed), tmp_path, seed)


def test_with_accumulation_curves_and_validations_are_of_whole_updates(tmp_path: Path) -> None:
    """An epoch of five batches has updates of two, two and one."""
    config = OBSERVED.override(
        {
            "model.init_args": {"schedule": "constant_loss"},
            "trainer.accumulate_grad_batches": 2,
            "training.steps": 7,
        }
    )
    left = observed(config, tmp_path / "run", set())
    rows = [line.split(",") for line in left["curves"].splitlines()[1:]]
    assert [(int(step), float(value)) for step, _, name, value in rows if name == "train/loss"] == [
        (step, 1.0) for step in range(1, 8)
    ]
    assert [int(step) for step, _, name, _ in rows if name == "val/loss"] == [3, 6]
    assert [event[:3] for event in left["events"] if event[0] == "on_validation_end"] == [
        ("on_validation_end", 0, 3),
        ("on_validation_end", 1, 6),
    ]


def test_what_cannot_be_resumed_within_an_epoch_is_printed_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = OBSERVED.override({"data.init_args": {"kind": "two_streams"}, "training.steps": 1})
    observed(config, tmp_path / "run", set())
    assert "a run that is stopped resumes from the start of its epoch" in capsys.readouterr().out
