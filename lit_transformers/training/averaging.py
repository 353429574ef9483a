"""Replaces a network's weights at the end of training by their mean over several updates."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lit_transformers.training.config import AverageConfig
from lit_transformers.training.loop import amid_update

__all__ = ["Averager"]


class Averager(Callback):
    """Adds up the weights after each of the last updates that the config names, and replaces the weights by their mean
    after the very last one (arXiv:1706.03762, section 6.1), before the validation and the checkpoint that follow it.

    Weights that are frozen stay as they are, to the bit. The sums are part of the checkpoint. All ranks hold whole and
    equal weights, so each computes the same mean.
    """

    def __init__(self, config: AverageConfig) -> None:
        self.config = config
        self.sums: dict[str, Tensor] = {}

    @torch.no_grad()
    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        steps = int(trainer.max_steps)
        if amid_update(trainer) or trainer.global_step not in self.config.places(steps):
            return
        weights = {name: weight for name, weight in task.named_parameters() if weight.requires_grad}
        for name, weight in weights.items():
            self.sums[name] = weight + self.sums[name].to(weight.device) if name in self.sums else weight.clone()
        if trainer.global_step == steps:
            for name, weight in weights.items():
                weight.copy_(self.sums.pop(name) / self.config.last)

    def state_dict(self) -> dict[str, Any]:
        return {"sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums = state["sums"]
