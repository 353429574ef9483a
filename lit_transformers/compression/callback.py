"""Applies the compressions of a run before, during and after training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from lit_transformers.compression.compression import Compression, CompressionConfig, require_order
from lit_transformers.config import ConfigError
from lit_transformers.tasks import Task
from lit_transformers.training.loop import amid_update

__all__ = ["CompressionCallback", "compressions_of"]


def compressions_of(configs: Sequence[CompressionConfig], task: nn.Module) -> list[Compression]:
    """Builds the compressions of a task. Raises ConfigError, which names the field, where one has no place in it, or
    cannot follow another."""
    built = []
    for number, config in enumerate(configs):
        try:
            built.append(config.build(task))
        except ConfigError as error:
            raise error.under(f"compression.{number}") from None
    require_order(configs, task)
    return built


class CompressionCallback(Callback):
    """Calls the hooks of compressions in the order of their list, and finishes them after the last update, before the
    validation and the checkpoint that follow it. Their state is part of the checkpoint. All ranks hold whole and equal
    weights and gradients, so each compresses them alike. batches: returns the batches of training, for calibration."""

    def __init__(self, configs: Sequence[CompressionConfig], task: Task, batches: Callable[[], Iterable[Any]]) -> None:
        self.configs, self.compressions = configs, compressions_of(configs, task)
        self.task, self.batches = task, batches
        self.is_resumed = self.is_finished = False

    def finish(self) -> None:
        """Finishes all compressions, each on the weights that the one before it leaves."""
        for number, compression in enumerate(self.compressions):
            if compression.calibration_batches:
                self._calibrate(compression)
            try:
                compression.finish()
            except ConfigError as error:
                raise error.under(f"compression.{number}") from None
        self.is_finished = True

    def _calibrate(self, compression: Compression) -> None:
        """Calibrates a compression on batches of training. The random numbers of training stay as they are."""
        was_training, first = self.task.training, islice(self.batches(), compression.calibration_batches)
        self.task.eval()
        with torch.enable_grad(), torch.random.fork_rng():
            torch.manual_seed(0)
            batches = (self.task.transfer_batch_to_device(batch, self.task.device, 0) for batch in first)
            compression.calibrate(self.task, batches)
        self.task.train(was_training)

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        for compression in self.compressions if not self.is_resumed else ():
            compression.begin()

    def on_train_batch_start(self, trainer: L.Trainer, task: L.LightningModule, batch: Any, i: int) -> None:
        self._before_forward()

    def on_validation_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._before_forward()

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._after_backward()

    def on_test_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._before_forward()

    def on_test_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._after_backward()

    def on_after_backward(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._after_backward()

    def on_before_optimizer_step(self, trainer: L.Trainer, task: L.LightningModule, optimizer: Any) -> None:
        for compression in self.compressions:
            compression.before_step()

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        if amid_update(trainer):
            return
        steps = int(trainer.max_steps)
        for compression in self.compressions:
            compression.after_step(trainer.global_step / steps)
        if trainer.global_step == steps:
            self.finish()

    def _before_forward(self) -> None:
        for compression in self.compressions if not self.is_finished else ():
            compression.before_forward()

    def _after_backward(self) -> None:
        for compression in reversed(self.compressions) if not self.is_finished else ():
            compression.after_backward()

    def state_dict(self) -> dict[str, Any]:
        states = [{} if self.is_finished else compression.state_dict() for compression in self.compressions]
        return {"compressions": states, "is_finished": self.is_finished}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.is_resumed, self.is_finished = True, state["is_finished"]
        for compression, own in zip(self.compressions, state["compressions"], strict=True):
            if own:
                compression.load_state_dict(own)
        for config in self.configs if self.is_finished else ():
            config.prepare(self.task)
