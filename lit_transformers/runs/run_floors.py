"""The floors of a run: what simple predictors reach on its data, trained on what it reads."""

from __future__ import annotations

from datamodules.floors.measure import measured_floors
from lit_transformers.config import ConfigError
from lit_transformers.records.reference import Reference
from lit_transformers.runs.config import RunConfig

__all__ = ["floors"]


def floors(config: RunConfig, metric: str) -> tuple[Reference, ...]:
    """Returns the values of a metric that simple predictors reach, by name; they are measured once for a machine.

    metric: its name in a record, such as ``val/bpb``. Raises ConfigError or DataError where there are none.
    """
    split, _, name = metric.partition("/")
    if split != "val":
        raise ConfigError(f"{metric} is no score of predictions on the validation split")
    batches = config.training.steps * config.training.accumulate
    name = config.measured_task.measured_as(name)
    return tuple(Reference(*item) for item in measured_floors(config.build_data(), name, batches).items())
