"""A stand-in whose result depends on the tuned fields: best at a learning rate of 3e-3, later with a longer warm-up."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

from lit_transformers.config import Config, NonNegative, Plain, Positive, PositiveFloat, canonical_hash
from lit_transformers.records.measurement import named_on
from lit_transformers.space import Interval, Space
from lit_transformers.training.search_pruning import Bars
from standin import run
from standin.run import Description, Progress

__all__ = ["RUNNER", "RunConfig", "fit"]


class MixerConfig(Config):
    """A mixer with its own search space."""

    space: ClassVar[Space] = {"window": Interval(4, 64, log=True)}

    window: Positive | None = 16
    memory: NonNegative = 8


class ModelConfig(Config):
    """A mixer and nothing else."""

    mixer: MixerConfig = MixerConfig()


class EvaluationConfig(Config):
    """Which split is measured."""

    split: Literal["validation", "test"] = "validation"


class DataConfig(Config):
    """Data with splits."""

    evaluation: EvaluationConfig = EvaluationConfig()


class OptimizerConfig(Config):
    """The optimizer, whose learning rate is tuned in every arm."""

    space: ClassVar[Space] = {"learning_rate": Interval(1e-4, 1e-1, log=True)}

    learning_rate: PositiveFloat = 1e-3


class ScheduleConfig(Config):
    """The schedule, whose warm-up is tuned within the steps of a run."""

    space: ClassVar[Space] = {"warmup": Interval(2, 500, log=True)}

    warmup: NonNegative = 4


class TrainingConfig(Config):
    """The budget."""

    steps: Positive = 60
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    validate_every: Positive | None = None
    breaks_above: PositiveFloat = 1.0
    """The learning rate above which the loss is not a number."""


class RunConfig(Config):
    """All that a run depends on."""

    runner: ClassVar[str] = "standin.tuned:RUNNER"

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    seed: NonNegative = 0


def run_key(config: RunConfig) -> str:
    return canonical_hash(config.to_dict())


def describe(config: RunConfig) -> Description:
    return Description(100, 0, 600.0, 600.0 * config.training.steps, 10 * config.training.steps, 0)


def changes_nothing(arm: RunConfig, baseline: RunConfig) -> bool:
    return arm == baseline


def value_at(config: RunConfig, step: int) -> float:
    """The metric that a validation after ``step`` steps measures."""
    training = config.training
    noise = random.Random(f"{config.seed} {config.data.evaluation.split}").gauss(0, 0.01)
    rate_penalty = abs(math.log10(training.optimizer.learning_rate / 3e-3))
    warmup_penalty = training.schedule.warmup / 200 + 0.1 * (config.model.mixer.memory == 0)
    return 1 + rate_penalty + warmup_penalty + 2 * math.exp(-4 * step / training.steps) + noise


def fit(
    config: RunConfig, directory: Path, progress: Callable[[Progress], None] | None = None, **_: Any
) -> dict[str, Plain]:
    training, bars = config.training, Bars.read(directory)
    directory.mkdir(parents=True, exist_ok=True)
    outcome, reason, last_step, curve = "finished", None, training.steps, []
    every = training.validate_every or training.steps
    for step in range(every, training.steps + 1, every):
        curve.append((step, value_at(config, step)))
        bar = bars.by_step.get(step) if bars else None
        if step < training.steps and bars and bar is not None and bars.better(bar, curve[-1][1]):
            outcome, reason, last_step = "pruned", f"at step {step} it lags behind", step
            break
    if training.optimizer.learning_rate > training.breaks_above:
        outcome, reason = "failed", "not-a-number"
    with (directory / "metrics.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "tokens", "name", "value"])
        rows.writerows((step, 10 * step, "val/bpb", repr(value)) for step, value in curve)
    record = {
        "version": 1,
        "key": run_key(config),
        "outcome": outcome,
        "reason": reason,
        "seed": config.seed,
        "config": config.to_dict(),
        "data": {"name": "none", "fingerprint": "0"},
        "metrics": {} if outcome == "failed" else {named_on("val/bpb", config.data.evaluation.split): curve[-1][1]},
        "protocol": {},
        "cost": describe(config)._asdict(),
        "gates": [],
        "environment": {},
        "measured": {"seconds": 1.0, "steps": last_step},
    }
    (directory / "record.json").write_text(json.dumps(record))
    return record


RUNNER = dataclasses.replace(
    run.RUNNER, config=RunConfig, run_key=run_key, describe=describe, changes_nothing=changes_nothing, fit=fit
)
