"""Facts about a run before it starts, from one batch of training and one of measuring, on the CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from torch.utils.flop_counter import FlopCounterMode

from lit_transformers.config import ConfigError, nearest
from lit_transformers.lightning_runs.config import LightningRunConfig
from lit_transformers.lightning_runs.metrics import ExampleValues, LoggedNames, stated_measures
from lit_transformers.lightning_runs.train import LOSS, built, trainer_switches
from lit_transformers.printing.error_lines import first_line
from lit_transformers.records.measure import Measure, maximized, measure_of, measure_of_measured, minimized
from lit_transformers.records.measurement import PREFIXES
from lit_transformers.records.record import Gate
from lit_transformers.runs.train import quiet
from lit_transformers.training.config import refuse_checkpoints

__all__ = ["Cost", "FirstBatch", "check", "describe", "first_batch", "measure_of_module"]

MEASURED: Mapping[str, Measure] = (
    minimized("seconds", "training_seconds", "steps", per="run")
    | maximized("steps_per_second", per="step")
    | minimized("peak_memory_bytes", per="run")
)
"""The measures of time and memory that every run has, by their names below ``measured/``."""
SHOWN = 3
"""The most names of parameters in the detail of a gate."""
LEFT_OUT = (
    "precision",
    "limit_train_batches",
    "limit_val_batches",
    "limit_test_batches",
    "overfit_batches",
    "profiler",
)
"""Arguments of the Trainer that do not hold for a single batch, or that another device is for."""


class FirstBatch(NamedTuple):
    """The results of one batch. flops: of its training, forward and backward, by torch.utils.flop_counter; 0 where that
    knows none of the operations. idle, broken: the trained parameters that received no gradient, or one that is not
    finite. metrics: the names, in a record, of the metrics that the measured split logs. unreadable: why a checkpoint
    of the module could not be read back, or an empty text. measures: those that the module states for its metrics."""

    parameters: int
    flops: int
    loss: float | None
    idle: tuple[str, ...]
    broken: tuple[str, ...]
    metrics: tuple[str, ...]
    unreadable: str
    measures: Mapping[str, Measure]


class Cost(NamedTuple):
    """The cost of a run as far as it is known without training: parameters are counted, FLOPs are those of one batch of
    training as measured, times the batches; nothing is known of tokens."""

    parameters: int
    embedding_parameters: None
    flops_per_token: None
    train_flops: float | None
    tokens: None
    state_bytes: None
    decoding_state: None


def describe(config: LightningRunConfig) -> Cost:
    """Returns the cost of a run. Raises ConfigError where its first batch cannot be trained."""
    first = first_batch(config)
    batches = config.training.steps * config.trainer.get("accumulate_grad_batches", 1) * config.training.devices
    return Cost(first.parameters, None, None, float(first.flops * batches) or None, None, None, None)


def check(config: LightningRunConfig) -> Sequence[Gate]:
    """Returns the gates that apply to any module, each checked by one batch of training."""
    first = first_batch(config)
    finite = first.loss is None or bool(torch.isfinite(torch.tensor(first.loss)))
    idle = _listed([name for name in first.idle if not _is_below(name, config.unused)])
    broken = _listed(first.broken)
    measured = ", ".join(first.metrics)
    return (
        Gate("the loss is finite", finite, f"it is {first.loss}"),
        Gate("every parameter learns", not idle, f"without gradient: {idle}; name them in unused" if idle else ""),
        Gate("gradients are finite", not broken, f"not finite: {broken}" if broken else ""),
        Gate("metrics are logged", bool(measured), measured or "the measured split logs none"),
        Gate("a checkpoint can be read", not first.unreadable, first.unreadable),
    )


def measure_of_module(config: LightningRunConfig, metric: str) -> Measure | None:
    """Returns the measure of a metric, None where the module does not state it. Raises ConfigError where the module
    logs no such metric, with the names that its record would have."""
    if metric.startswith("measured/"):
        return measure_of_measured(metric, MEASURED)
    first = first_batch(config)
    if metric not in first.metrics:
        known = nearest(metric, first.metrics)
        raise ConfigError(f"no {metric!r} would be in the record of its runs; {known}", "metric")
    return measure_of(metric, first.measures)


def first_batch(config: LightningRunConfig) -> FirstBatch:
    """Trains and measures one batch, once for all calls with one config. Raises ConfigError where that fails."""
    alike = {"seed": 0, "search": {}, "unused": [], "training": {}}
    return _first_batch(config.override(alike))


@lru_cache(maxsize=64)
def _first_batch(config: LightningRunConfig) -> FirstBatch:
    state = torch.get_rng_state()
    try:
        L.seed_everything(config.seed, workers=True, verbose=False)
        with quiet(), tempfile.TemporaryDirectory() as folder:
            return _measured(config, Path(folder))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"one batch of {config.model.class_path} cannot be trained and measured: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
    finally:
        torch.set_rng_state(state)


def _measured(config: LightningRunConfig, folder: Path) -> FirstBatch:
    module, data = built(config)
    for callback in _configured(module):
        refuse_checkpoints(type(callback), type(callback).__name__, f"configure_callbacks of {type(module).__name__}")
    split = PREFIXES[config.data.evaluation.split]
    gradients, names, examples = _Gradients(), LoggedNames(split), ExampleValues(split)
    trainer = _trainer(config, folder, [gradients])
    trainer.fit(module, data)
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    path = folder / "checkpoint.ckpt"
    trainer.save_checkpoint(path)
    unreadable = _fault(path)
    measuring = _trainer(config, folder, [names, examples])
    try:
        run = measuring.test if config.data.evaluation.split == "test" else measuring.validate
        run(module, datamodule=data, verbose=False)
    except MisconfigurationException:  # it has no such loader or no such step
        names.measured = {}
    return FirstBatch(
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        flops=gradients.flops,
        loss=gradients.loss,
        idle=tuple(name for name in trained if name not in gradients.finite),
        broken=tuple(name for name in trained if gradients.finite.get(name) is False),
        metrics=tuple(sorted({**names.measured, **examples.means()})),
        unreadable=unreadable,
        measures=stated_measures(module),
    )


def _configured(module: L.LightningModule) -> Sequence[Callback]:
    """Returns the callbacks that a module configures by itself."""
    callbacks = module.configure_callbacks()
    return [callbacks] if isinstance(callbacks, Callback) else callbacks


def _trainer(config: LightningRunConfig, folder: Path, callbacks: list[Callback]) -> L.Trainer:
    arguments = {name: value for name, value in config.trainer_arguments.items() if name not in LEFT_OUT}
    return L.Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=1,
        plugins=[LightningEnvironment()],
        max_epochs=1,
        limit_train_batches=1,
        limit_val_batches=1,
        limit_test_batches=1,
        log_every_n_steps=1,
        callbacks=callbacks,
        **arguments | trainer_switches(folder),
    )


def _fault(path: Path) -> str:
    """Returns the fault of a Lightning checkpoint that torch can read only by executing code from it; empty if none."""
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        return f"it holds more than tensors and plain data: {first_line(error)}"
    return ""


class _Gradients(Callback):
    """Records the loss of a batch, its FLOPs, and whether the gradient of each parameter is finite, by name."""

    def __init__(self) -> None:
        self.counter = FlopCounterMode(display=False)
        self.loss: float | None = None
        self.flops = 0
        self.finite: dict[str, bool] = {}

    def on_train_batch_start(self, trainer: L.Trainer, task: L.LightningModule, batch: Any, i: int) -> None:
        self.counter.__enter__()

    def on_before_optimizer_step(self, trainer: L.Trainer, task: L.LightningModule, optimizer: Any) -> None:
        for name, parameter in task.named_parameters():
            if parameter.grad is not None:
                is_finite = bool(torch.isfinite(parameter.grad).all())
                self.finite[name] = is_finite and self.finite.get(name, True)  # of several optimizers, for each

    def on_train_batch_end(self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int) -> None:
        self.counter.__exit__(None, None, None)
        self.flops = self.counter.get_total_flops()
        loss = outputs.get(LOSS) if isinstance(outputs, dict) else outputs
        self.loss = float(loss.detach().mean()) if isinstance(loss, torch.Tensor) else None


def _is_below(name: str, modules: Sequence[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
