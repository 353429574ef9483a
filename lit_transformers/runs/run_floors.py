"""The floors of a run: the scores of simple predictors on its data, trained on the data that it reads."""

from __future__ import annotations

from collections.abc import Mapping

from datamodules import Data, LanguageDataConfig
from datamodules.floors.measure import measured_cache_floors, measured_floors
from lit_transformers.config import ConfigError
from lit_transformers.records.measure import Measure
from lit_transformers.records.measurement import PREFIXES
from lit_transformers.records.reference import Reference
from lit_transformers.runs.config import RunConfig
from lit_transformers.runs.reach import visible_context
from lit_transformers.runs.stages import source_runs

__all__ = ["document_floors", "floors"]


def floors(config: RunConfig, metric: str) -> tuple[Reference, ...]:
    """Returns the values of a metric that simple predictors reach, by name; they are measured once for a machine. Those
    that remember a text see as much of it as the run's network does.

    metric: its name in a record, such as ``val/bpb``. Raises ConfigError or DataError where there are none.
    """
    data, name, batches = _measured(config, metric)
    if measures := config.measured_task.averaged(name, data.description):
        return (_mean_of_best(config, data, measures, batches),)
    values = measured_floors(data, name, batches)
    if (context := visible_context(config)) is not None:
        values |= measured_cache_floors(data, name, batches, context)
    return tuple(Reference(*item) for item in values.items())


def document_floors(config: RunConfig, metric: str) -> tuple[Reference, ...]:
    """Returns the same of predictors that remember the whole document; nothing where the network itself sees all of it,
    and for data that are not read symbol by symbol. Raises ConfigError or DataError."""
    context = visible_context(config)
    if not isinstance(config.data, LanguageDataConfig) or context is None or context.most(1) is None:
        return ()
    return tuple(Reference(*item) for item in measured_cache_floors(*_measured(config, metric), None).items())


def _mean_of_best(config: RunConfig, data: Data, measures: Mapping[str, Measure], batches: int) -> Reference:
    """Returns the mean over several measures of the value of the best predictor of each, as a share of the perfect
    score."""
    shares = []
    for name, measure in measures.items():
        best = min if measure.goal == "minimize" else max
        values = measured_floors(data, config.measured_task.measured_as(name), batches).values()
        shares.append(best(values) / measure.full)
    return Reference("the best simple predictor of each task", sum(shares) / len(shares))


def _measured(config: RunConfig, metric: str) -> tuple[Data, str, int]:
    """Returns the data of a run, the name that their predictors have for a metric, and the number of batches that a run
    reads. Raises ConfigError where it is none of the split that is measured."""
    split, _, name = metric.partition("/")
    data = config.build_data()
    if split != PREFIXES[data.measured_split]:
        raise ConfigError(f"{metric} is no score of predictions on the {data.measured_split} split")
    return data, config.measured_task.measured_as(name), _batches(config)


def _batches(config: RunConfig) -> int:
    """Returns how many batches a run reads. Of a run that trains nothing, such as a compression after training: how
    many the runs that it starts from read of the same data."""
    own = config.training.steps * config.training.accumulate
    return own or sum(_batches(run) for run in source_runs(config).values() if run.data == config.data)
