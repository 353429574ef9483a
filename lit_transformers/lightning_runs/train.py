"""Trains and measures a LightningModule: all of the suite's own that computes the numbers of such a run.

A run's key covers this module and all that it imports (``keys.ROOTS``).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import DummyLogger, Logger

from lit_transformers.config import Plain
from lit_transformers.lightning_runs.config import LightningRunConfig
from lit_transformers.lightning_runs.loaders import DataOrder
from lit_transformers.lightning_runs.measured_batches import MeasuredBatches
from lit_transformers.lightning_runs.metrics import ExampleValues, LoggedNames
from lit_transformers.records.files import CHECKPOINT, CURVES, DOCUMENTS
from lit_transformers.records.measurement import PREFIXES
from lit_transformers.runs.document_losses import write_documents
from lit_transformers.training.arithmetic import arithmetic
from lit_transformers.training.callbacks import Checkpointer, Curves, DivergenceCheck
from lit_transformers.training.checkpoints import TRAINING
from lit_transformers.training.loop import UpdateLoop
from lit_transformers.training.ranks import is_first_rank, mean_over_ranks, node_count
from lit_transformers.training.search_pruning import Bars, Pruned, Pruner
from lit_transformers.training.stopping import Stop

__all__ = ["LOSS", "built", "make_trainer", "train", "trainer_switches"]

LOSS = "loss"
"""The name of the loss in the mapping that a training step returns to Lightning."""


def train(
    config: LightningRunConfig,
    directory: Path,
    training_key: str,
    checkpoint: Path | None,
    stopping: Stop,
    keep_every: float,
    observers: Callable[[Curves], list[Callback]],
    batches: MeasuredBatches,
    loggers: Sequence[Logger] = (),
) -> tuple[dict[str, float], dict[str, Plain], dict[str, Plain]]:
    """Trains from a checkpoint, if there is one, and measures. Returns the metrics, the measured times and speeds, and
    an empty mapping, for nothing is observed of a network that is not known.

    training_key: of all runs with identical training. keep_every: seconds between checkpoints. observers: returns
    callbacks that show the run, and its curves, and change nothing of it. batches: receives the measured batches.
    loggers: receive the values that the module logs.
    """
    L.seed_everything(config.seed, workers=True, verbose=False)
    module, data = built(config)
    order = DataOrder(config.seed, int(os.environ.get("RANK", "0")))
    order.attach(module if data is None else data)
    curves = Curves(config.training.log_every, tokens_per_step=0)
    extra = {"config": config.to_dict(), TRAINING: training_key}
    checkpointer = Checkpointer(directory / CHECKPOINT, keep_every, extra, stopping, order.is_held)
    split = PREFIXES[config.data.evaluation.split]
    names, bars = LoggedNames(split), Bars.read(directory)
    shown = TrainingLoss(curves, [DivergenceCheck(), *observers(curves)])
    callbacks: list[Callback] = [order, names, shown]
    if bars:
        callbacks.append(Pruner(bars, checkpointer))
    callbacks += [callback.build() for callback in config.training.callbacks]
    trainer = make_trainer(config, directory, [*callbacks, checkpointer], loggers)
    try:
        with arithmetic(config.training):
            trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except Pruned:
        if is_first_rank():
            curves.write(directory / CURVES)
        raise
    steps, training_seconds = trainer.global_step, checkpointer.spent()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # one rank measures all examples, each once
    metrics: dict[str, float] = {}
    measuring_since = time.monotonic()
    if is_first_rank():
        with arithmetic(config.training):
            metrics = measure(config, directory, module, data, checkpointer, names, shown, batches)
        curves.write(directory / CURVES)
    timings: dict[str, Plain] = {
        "seconds": training_seconds + time.monotonic() - measuring_since,
        "training_seconds": training_seconds,
        "steps": steps,
        "steps_per_second": steps / training_seconds,
    }
    return metrics, timings, {}


def measure(
    config: LightningRunConfig,
    directory: Path,
    module: L.LightningModule,
    data: L.LightningDataModule | None,
    checkpointer: Checkpointer,
    names: LoggedNames,
    shown: TrainingLoss,
    batches: MeasuredBatches,
) -> dict[str, float]:
    """Measures a trained module on the split of its config, and writes the values of single examples, if it hands over
    any. Returns the metrics by their names in a record."""
    L.seed_everything(config.seed, workers=True, verbose=False)  # a run that resumes after its training draws the same
    examples = ExampleValues(names.split)
    trainer = single_trainer(config, directory, [examples, names, shown, batches, checkpointer])
    run = trainer.test if config.data.evaluation.split == "test" else trainer.validate
    run(module, datamodule=data, verbose=False)
    if examples.values:
        write_documents(directory / DOCUMENTS, examples.rows(), str)
    return examples.means() | names.measured


def built(config: LightningRunConfig) -> tuple[L.LightningModule, L.LightningDataModule | None]:
    """Builds the module and its data. Their draws from torch's random numbers do not change later draws."""
    with torch.random.fork_rng(devices=[]):
        module = config.model.build()
    with torch.random.fork_rng(devices=[]):
        data = config.data.build()
    return module, data


def trainer_switches(directory: Path, loggers: Sequence[Logger] = ()) -> dict[str, Any]:
    """Returns the arguments by which a Trainer itself writes and shows nothing, except through loggers."""
    return {
        "num_sanity_val_steps": 0,
        "default_root_dir": directory,
        "logger": [*loggers] or DummyLogger(),  # so that a module which writes images or texts to its logger finds one
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }


def make_trainer(
    config: LightningRunConfig, directory: Path, callbacks: list[Callback], loggers: Sequence[Logger] = ()
) -> L.Trainer:
    """Returns a Trainer that follows the config."""
    training, arguments = config.training, config.trainer_arguments
    trainer = L.Trainer(
        max_steps=training.steps,
        accelerator={"cuda": "gpu"}.get(training.device, training.device),
        devices=training.devices // node_count(),
        num_nodes=node_count(),
        strategy="ddp" if training.devices > 1 else "auto",
        val_check_interval=training.validate_every or training.steps + 1,
        check_val_every_n_epoch=None,
        log_every_n_steps=training.log_every,
        callbacks=callbacks,
        **arguments | trainer_switches(directory, loggers),
    )
    trainer.fit_loop.epoch_loop = UpdateLoop(trainer, training.validate_every)
    return trainer


def single_trainer(config: LightningRunConfig, directory: Path, callbacks: list[Callback]) -> L.Trainer:
    """Returns a Trainer of one process, on the device of the config, no matter how this process was started."""
    return L.Trainer(
        max_steps=config.training.steps,
        accelerator={"cuda": "gpu"}.get(config.training.device, config.training.device),
        devices=1,
        num_nodes=1,
        plugins=[LightningEnvironment()],
        callbacks=callbacks,
        **config.trainer_arguments | trainer_switches(directory),
    )


class TrainingLoss(Callback):
    """Adds the loss of training, and the metrics of validations, to the curves, and shows each step to other callbacks
    as the library's own tasks show theirs. A step without a loss, as of several optimizers, adds no point.

    A point is the mean over the batches since the update before, of which there are fewer at the end of an epoch.
    """

    def __init__(self, curves: Curves, others: list[Callback]) -> None:
        self.curves, self.others = curves, others
        self.update: list[torch.Tensor] = []
        self.step = 0

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.step = trainer.global_step
        for other in self.others:
            other.on_train_start(trainer, task)

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        loss = outputs.get(LOSS) if isinstance(outputs, Mapping) else outputs
        shown: dict[str, Any] = {LOSS: math.nan, "nats": 0.0}
        if isinstance(loss, torch.Tensor):
            # Lightning has divided the loss by the number of batches of a whole update.
            divided_by = trainer.accumulate_grad_batches if task.automatic_optimization else 1
            loss = loss.detach().float().mean() * divided_by
            self.update.append(loss)
            shown = {LOSS: loss, "nats": loss}
        if trainer.global_step != self.step:
            self._end_update(trainer.global_step)
        for other in self.others:
            other.on_train_batch_end(trainer, task, shown, batch, i)

    def _end_update(self, step: int) -> None:
        """Adds a point where the update, or one of those of several optimizers, is one that a point is due at."""
        losses, self.update = self.update, []
        before, self.step = self.step, step
        if losses and step // self.curves.every > before // self.curves.every:
            mean = float(mean_over_ranks(torch.stack(losses).mean()))
            self.curves.points.append((step, 0, "train/loss", mean))

    def on_before_optimizer_step(
        self, trainer: L.Trainer, task: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        for other in self.others:
            other.on_before_optimizer_step(trainer, task, optimizer)

    def on_validation_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        for other in self.others:
            other.on_validation_start(trainer, task)

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.curves.on_validation_end(trainer, task)
        for other in self.others:
            other.on_validation_end(trainer, task)

    def state_dict(self) -> dict[str, Any]:
        return self.curves.state_dict() | {"update": self.update}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.curves.load_state_dict(state)
        self.update = list(state["update"])
