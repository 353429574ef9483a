"""The progress of a run, as it is reported during the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import lightning as L
from lightning.pytorch.callbacks import Callback

from lit_transformers.training.callbacks import measured

__all__ = ["Progress", "ProgressReporter", "Report"]


class Progress(NamedTuple):
    """The progress of a run. ``seconds_left`` is an estimate for this phase; None if unknown. ``examples_per_second``
    is the mean of training so far; None for data whose speed is not shown in examples."""

    step: int
    steps: int
    loss: float
    metrics: dict[str, float]
    seconds_left: float | None
    phase: str
    examples_per_second: float | None = None


Report = Callable[[Progress], None]


class ProgressReporter(Callback):
    """Reports the progress of training every ``every`` seconds, and the beginning of an evaluation after it.

    loss: the name of the loss in the output of a training step. examples: the number of examples of an update; None if
    unknown.
    """

    def __init__(
        self, report: Report | None, every: float = 0.2, loss: str = "nats", examples: int | None = None
    ) -> None:
        self.report, self.every, self.loss, self.examples = report, every, loss, examples
        self.reported_at, self.started = -math.inf, 0.0
        self.first_step = 0

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.started, self.first_step = time.monotonic(), trainer.global_step

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        now = time.monotonic()
        if self.report is None or not trainer.is_global_zero or now - self.reported_at < self.every:
            return
        self.reported_at = now
        step, steps = trainer.global_step, int(trainer.max_steps)
        pace = (now - self.started) / max(1, step - self.first_step)
        loss = float(outputs[self.loss]) if self.loss in outputs else math.nan
        speed = self.examples / pace if self.examples is not None and pace else None
        self.report(Progress(step, steps, loss, measured(trainer), pace * (steps - step), "fit", speed))

    def on_validation_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._report_measurement(trainer)

    def on_test_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._report_measurement(trainer)

    def _report_measurement(self, trainer: L.Trainer) -> None:
        if self.report is not None:
            steps = int(trainer.max_steps)
            self.report(Progress(steps, steps, math.nan, {}, None, "evaluate"))
