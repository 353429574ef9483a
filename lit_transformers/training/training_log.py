"""The values that a task logs of its training under a user's own trainer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from lit_transformers.training.token_count import TokenCount

__all__ = ["TrainingLog", "values_of_update"]


class TrainingLog:
    """Logs training by ``LightningModule.log``, under names that begin with train/.

    Of every batch: loss, which is differentiated (the mean of all ranks), nats, which is plotted, and auxiliary losses.
    Every ``log_every_n_steps`` updates of the trainer: learning_rate and gradient_norm (of the whole gradient, before
    it is clipped; not under float16, which scales it) of the update, tokens, which all ranks have read since the first
    update, as the costs of a run count them (``batch.tokens_read``), and tokens_per_second since they were last logged,
    without the time of validations.
    """

    def __init__(self) -> None:
        self._read = TokenCount()
        self._reported = self._step = 0
        self._since: float | None = None

    def count(self, batch: Any) -> None:
        """Counts a batch before it is trained: checkpoints may be written before its values are logged."""
        self._read.add(batch)

    def batch(self, task: L.LightningModule, outputs: Mapping[str, Any]) -> None:
        """Logs a batch of training. outputs: the result of ``training_step``."""
        trainer: Any = task.trainer
        if trainer.barebones:
            return
        if self._since is None:  # the first batch, which prepares much, is not timed
            self._since, self._reported = time.monotonic(), self.tokens()
        of_heads = {f"{name}_nats": nats for name, (nats, _) in outputs["heads"].items()}
        losses = {"loss": outputs["loss"], "nats": outputs["nats"], **of_heads, **outputs["aux"]}
        for name, loss in losses.items():
            task.log(f"train/{name}", loss.detach(), prog_bar=name == "loss", sync_dist=trainer.world_size > 1)
        if trainer.global_step % trainer.log_every_n_steps == 0 and trainer.global_step != self._step:
            self._step = trainer.global_step
            now, tokens = time.monotonic(), self.tokens()
            task.log("train/tokens", float(tokens))
            if now > self._since and tokens > self._reported:
                task.log("train/tokens_per_second", (tokens - self._reported) / (now - self._since), prog_bar=True)
            self._since, self._reported = now, tokens

    def update(self, task: L.LightningModule, optimizer: torch.optim.Optimizer) -> None:
        """Logs the learning rate and the norm of the gradient of the update that follows, where it is logged at all."""
        trainer: Any = task.trainer
        if trainer.barebones or (trainer.global_step + 1) % trainer.log_every_n_steps:
            return
        for name, value in values_of_update(task, optimizer).items():
            task.log(name, value)

    def leave_out(self, seconds: float) -> None:
        """Leaves the time of a validation out of the rate."""
        if self._since is not None:
            self._since += seconds

    def tokens(self) -> int:
        """Returns the number of tokens that all ranks have read. All ranks must call it."""
        return self._read.total()

    def go_on(self, tokens: int) -> None:
        """Counts on from the tokens of a checkpoint."""
        self._read.resume(tokens)
        self._since = None


def values_of_update(module: L.LightningModule, optimizer: torch.optim.Optimizer) -> dict[str, Tensor | float]:
    """Returns the learning rate of an update, which is that of the optimizer's first group, and the norm of the whole
    gradient before it is clipped, but not under float16, which scales it."""
    values: dict[str, Tensor | float] = {"train/learning_rate": float(optimizer.param_groups[0]["lr"])}
    plugin: Any = module.trainer.precision_plugin
    if getattr(plugin, "scaler", None) is None:
        norm = torch.nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
        values["train/gradient_norm"] = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return values
