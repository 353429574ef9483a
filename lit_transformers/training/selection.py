"""Ends training where validations no longer improve, and keeps the weights of the best one."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lit_transformers.config import ConfigError, nearest
from lit_transformers.records.measure import Goal
from lit_transformers.training.callbacks import measured
from lit_transformers.training.config import StopConfig
from lit_transformers.training.ranks import from_all_ranks

__all__ = ["Selection"]


class Selection(Callback):
    """Compares the metric of every validation of training with the best one before it. The first rank decides for all.

    After ``patience`` validations without an improvement training ends; at its end ``keeps_best`` puts the weights of
    the best validation back, before the checkpoint that follows. All that it decides by is part of the checkpoint.
    goal: whether less or more of the metric is better.
    """

    def __init__(self, config: StopConfig, goal: Goal, keeps_best: bool) -> None:
        self.config, self.goal, self.keeps_best = config, goal, keeps_best
        self.best: float | None = None
        self.best_step = self.waited = 0
        self.weights: dict[str, Tensor] = {}

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        metrics = from_all_ranks(measured(trainer))[0]
        if self.config.metric not in metrics:
            raise ConfigError(
                f"{self.config.metric} is not measured; {nearest(self.config.metric, metrics)}", "training.stop.metric"
            )
        if self._improves(metrics[self.config.metric]):
            self.best, self.best_step, self.waited = metrics[self.config.metric], trainer.global_step, 0
            if self.keeps_best:
                self.weights = {name: weight.detach().cpu().clone() for name, weight in task.state_dict().items()}
        else:
            self.waited += 1
        if self.config.patience is not None and self.waited >= self.config.patience:
            trainer.should_stop = True

    def _improves(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        gain = math.inf if self.best is None else self.best - value
        return (gain if self.goal == "minimize" or self.best is None else -gain) > self.config.min_delta

    def on_train_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if self.weights:
            task.load_state_dict(self.weights)
            self.weights = {}

    def measured_step(self, last: int) -> int:
        """Returns the update after which the weights are measured, given the last one."""
        return self.best_step if self.keeps_best and self.best is not None else last

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.best_step, self.waited = state["best"], state["best_step"], state["waited"]
        self.weights = state["weights"]
