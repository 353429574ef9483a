"""The metrics that a module logs, by their names in records, and the values of single examples that it may hand over.

A module that logs ``val_loss``, ``val/loss`` or ``loss`` in its validation has ``val/loss`` in its record. Where the
test split is measured, one that logs ``test_loss``, ``test/loss`` or ``loss`` in its test has ``test/loss``.

``validation_step`` and ``test_step`` may return, in a mapping, ``example_values``: the value of a metric for each
example of the batch, by the metric's name in the record without the split. Its mean is the metric, and intervals are
over examples too: ``return {"example_values": {"accuracy": (logits.argmax(1) == labels).float()}}``.

A module states the meaning of its metrics in ``measures``, by their names in records without the split:
``measures = maximized("accuracy", per="example") | minimized("loss", per="example")`` of
``lit_transformers.records.measure``. Of a metric that it does not name a study states the goal.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from lit_transformers.config import ConfigError
from lit_transformers.records.measure import Measure

__all__ = ["EXAMPLE_VALUES", "ExampleValues", "LoggedNames", "logged_in_record", "stated_measures"]

EXAMPLE_VALUES = "example_values"
PREFIX = re.compile(r"^(?:val|valid|validation|test)[/_.-](?=.)")


def logged_in_record(logged: Mapping[str, Any], split: str = "val") -> dict[str, float]:
    """Returns the logged values by their names in a record, below the split. Where two values would get one name, each
    has its full name.

    If a validation logs a value for steps and for the epoch, Lightning gives it two names, one of which ends in
    ``_epoch``; the other one counts. Names that a module has chosen stay, however they end.
    """
    names = [name for name in logged if not _is_fork(name, logged)]
    short = [PREFIX.sub("", name) for name in names]
    return {
        f"{split}/{name if short.count(name) == 1 else whole}": float(logged[whole])
        for name, whole in zip(short, names, strict=True)
    }


def stated_measures(module: L.LightningModule) -> dict[str, Measure]:
    """Returns the measures that a module states for its metrics; none where its ``measures`` holds anything else."""
    stated = getattr(module, "measures", None)
    if not isinstance(stated, Mapping):
        return {}
    return {str(name): measure for name, measure in stated.items() if isinstance(measure, Measure)}


def _is_fork(name: str, logged: Mapping[str, Any]) -> bool:
    """Whether Lightning has logged this value by another name too."""
    whole, suffix, loader = name.partition("/dataloader_idx_")
    other = f"{whole.removesuffix('_epoch')}{suffix}{loader}"
    return other != name and other in logged and logged[other] is logged[name]


class LoggedNames(Callback):
    """Adds to the metrics of a validation or a test their names in records, by which pruning, progress and curves know
    them. ``measured`` holds those of the last one, split: their first word outside of training."""

    def __init__(self, split: str = "val") -> None:
        self.split = split
        self.before: dict[str, Any] = {}
        self.measured: dict[str, float] = {}

    def on_validation_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.before = dict(trainer.callback_metrics)

    def on_test_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._add(trainer)

    def on_test_end(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._add(trainer)

    def _add(self, trainer: L.Trainer) -> None:
        """Adds the names of the metrics that have changed since the start, without those that training has logged."""
        metrics = trainer.callback_metrics
        logged = {name: value for name, value in metrics.items() if self.before.get(name) is not value}
        self.measured = logged_in_record(logged, "val" if trainer.state.fn == "fit" else self.split)
        for name, value in self.measured.items():
            metrics[name] = torch.tensor(value)


class ExampleValues(Callback):
    """Collects the values of single examples of a measurement.

    ``values`` holds those of each metric, in the order of the examples. split: the first word of their names.
    """

    def __init__(self, split: str = "val") -> None:
        self.split = split
        self.values: dict[str, list[float]] = {}

    def on_validation_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.values = {}

    def on_validation_batch_end(
        self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int, loader: int = 0
    ) -> None:
        self._collect(outputs)

    def on_test_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.values = {}

    def on_test_batch_end(
        self, trainer: L.Trainer, task: L.LightningModule, outputs: Any, batch: Any, i: int, loader: int = 0
    ) -> None:
        self._collect(outputs)

    def _collect(self, outputs: Any) -> None:
        by_name = outputs.get(EXAMPLE_VALUES) if isinstance(outputs, Mapping) else None
        for name, values in (by_name or {}).items():
            if not name.isidentifier():
                raise ConfigError(f"{name!r} is no name of a column of values", EXAMPLE_VALUES)
            self.values.setdefault(name, []).extend(torch.as_tensor(values).double().flatten().tolist())

    def rows(self) -> Sequence[Any]:
        """Returns a row for each example as ``write_documents`` takes them. Raises ConfigError where metrics have
        values of different numbers of examples."""
        counts = {name: len(values) for name, values in self.values.items()}
        if len({*counts.values()}) > 1:
            raise ConfigError(f"metrics have values of different numbers of examples: {counts}", EXAMPLE_VALUES)
        named: Any = namedtuple  # whose type knows no fields that are only known here
        example = named("example", ["document", "nats", "tokens", "bytes", *self.values])
        return [example(number, 0.0, 1, 1, *row) for number, row in enumerate(zip(*self.values.values(), strict=True))]

    def means(self) -> dict[str, float]:
        """Returns the mean of each metric over its examples, by its name in a record."""
        return {f"{self.split}/{name}": sum(values) / len(values) for name, values in self.values.items() if values}
