"""Ends a run early that lags behind others of its search, on all ranks together.

A pruner that judges a run only by runs that ended before it began can fix its criteria beforehand: at each validation,
a bar that the best value so far must reach. The search writes these bars to the run's directory, and the run compares
by itself. So a search ends the same runs at the same steps, regardless of timing and of the program that starts them (a
worker, torchrun or a cluster), and needs no connection back to the parent process.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple, Self

import lightning as L
from lightning.pytorch.callbacks import Callback

from lit_transformers.config import ConfigError, Plain
from lit_transformers.records.files import write_json
from lit_transformers.training.callbacks import Checkpointer, measured
from lit_transformers.training.ranks import from_all_ranks

__all__ = ["BARS", "Bars", "Pruned", "Pruner"]

BARS = "bars.json"


class Bars(NamedTuple):
    """The value that a metric must have reached, by step; goal: "minimize" or "maximize"."""

    metric: str
    goal: str
    by_step: dict[int, float]

    def better(self, value: float, reference: float) -> bool:
        """Whether ``value`` is strictly better than ``reference``."""
        return value < reference if self.goal == "minimize" else value > reference

    def judge(self, step: int, value: float | None, best: float | None) -> tuple[float | None, str | None]:
        """Returns the best value so far, with the one of a step, and why the run ends there; None to continue."""
        if value is not None and math.isfinite(value) and (best is None or self.better(value, best)):
            best = value
        bar = self.by_step.get(step)
        if bar is None or best is None or not self.better(bar, best):
            return best, None
        return best, f"{self.metric} {best:.4g} lags behind {bar:.4g}"

    def write(self, directory: Path) -> None:
        """Writes the bars to the run's directory."""
        write_json(directory / BARS, self._asdict())

    @classmethod
    def read(cls, directory: Path) -> Self | None:
        """Reads the bars of a run; None where no search watches over it. Raises ConfigError for a damaged file."""
        path = directory / BARS
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            return cls(plain["metric"], plain["goal"], {int(step): bar for step, bar in plain["by_step"].items()})
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError("holds no bars of a search; delete it and run the search again", str(path)) from None


class Pruned(RuntimeError):
    """The run was ended by its bars. ``metrics`` are those of its last validation, at ``step``; ``tokens`` were read by
    then, and ``cost`` is the cost until then, where these are known."""

    def __init__(self, step: int, steps: int, metrics: dict[str, float], reason: str) -> None:
        self.step, self.metrics = step, metrics
        self.tokens: int | None = None
        self.cost: dict[str, Plain] | None = None
        super().__init__(f"at step {step} of {steps}, {reason}")


class Verdict(NamedTuple):
    """The verdict of the first rank: why the run ends, or None to continue, and the metrics."""

    reason: str | None
    metrics: dict[str, float]


class Pruner(Callback):
    """Compares the metric with the bars after each validation but the last. The first rank decides, and all ranks stop.

    The checkpoint written then holds the verdict, so a run that is killed before its record is written still ends so.
    """

    def __init__(self, bars: Bars, checkpointer: Checkpointer) -> None:
        self.bars, self.checkpointer = bars, checkpointer
        self.best: float | None = None
        self.verdict = Verdict(None, {})

    def on_train_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._end(trainer, self.verdict)

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.global_step >= trainer.max_steps:
            return
        self.verdict = from_all_ranks(self._judge(trainer.global_step, measured(trainer)))[0]
        if self.verdict.reason:
            self.checkpointer.save(trainer)
        self._end(trainer, self.verdict)

    def _judge(self, step: int, metrics: dict[str, float]) -> Verdict:
        self.best, reason = self.bars.judge(step, metrics.get(self.bars.metric), self.best)
        return Verdict(reason, metrics)

    def _end(self, trainer: L.Trainer, verdict: Verdict) -> None:
        if verdict.reason:
            raise Pruned(trainer.global_step, int(trainer.max_steps), verdict.metrics, verdict.reason)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "reason": self.verdict.reason, "metrics": self.verdict.metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.verdict = state["best"], Verdict(state["reason"], state["metrics"])
