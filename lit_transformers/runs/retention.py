"""Measures how much a run forgets: the score of its network on another task, such as retrieval or masked language
modelling, before and after the run.

Both measurements are separate runs that start from the weights that they measure. They have their own keys and records,
and do not change the measured run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from lit_transformers.config import ConfigError
from lit_transformers.models import ModelConfig
from lit_transformers.models.capabilities import RowNetwork
from lit_transformers.runner import RetentionConfigs
from lit_transformers.runs.config import RunConfig, RunWeightsConfig
from lit_transformers.runs.made_weights import file_of_source
from lit_transformers.runs.rehearsal import small_task
from lit_transformers.runs.sources import StartConfig, WeightSourceConfig
from lit_transformers.runs.starting_weights import part_of, read_weights
from lit_transformers.tasks import Task
from lit_transformers.training.groups import FROZEN_NETWORK, INSTEAD_OF_FROZEN

__all__ = ["retention_configs"]


def retention_configs(config: RunConfig, measured: RunConfig) -> RetentionConfigs | None:
    """Returns the configs of the two runs that measure a run's network before and after the run. None if the network
    starts fresh.

    measured: the task, the data and the training of the measurement. "Before" measures the weights that the first stage
    of the run starts from or, if that stage starts fresh, the weights that it ends with. If the measurement has no
    steps, both runs read the heads of these weights.

    Raises ConfigError if the measurement names a start, if it would train the network, or if it would measure untrained
    parts.
    """
    if measured.start.sources():
        raise ConfigError("it starts from the weights of each arm; drop start", "run.start")
    first = first_weights(config)
    if first is None:
        return None
    source, network = first
    training = measured.training.override({"device": config.training.device})
    parts: dict[str, Any] = {"task": measured.task, "data": measured.data, "training": training, "seed": measured.seed}
    own = type(config)(model=network, **parts)
    heads = source if not training.steps and [*_heads(_small(own))] else None
    before = replace(own, start=StartConfig(network=source, heads=heads))
    _require_measurable(before)
    start = StartConfig(network=RunWeightsConfig(run=config, seed=config.seed), heads=heads)
    return RetentionConfigs(before, type(config)(model=config.model, start=start, **parts))


def first_weights(config: RunConfig) -> tuple[WeightSourceConfig, ModelConfig] | None:
    """Returns a source of weights and the config of their network: the weights that the first stage of a run starts
    from or, if that stage starts fresh, the weights that it ends with. None if the run has no earlier weights."""
    source = config.start.network
    if source is None:
        return None
    if isinstance(source, RunWeightsConfig):  # the seeds of its stages do not depend on the run that starts from it
        return first_weights(source.run) or (replace(source, seed=source.run.seed), source.run.model)
    return source, read_weights(file_of_source(source, "start.network"), whole=False).model


@cache
def _require_measurable(config: RunConfig) -> None:
    """Raises ConfigError if a run that measures weights would measure untrained parts, or train more than heads."""
    if config.training.steps:
        last = config.training.groups[-1:]  # if several groups name a parameter, the last one counts
        if not any(group.frozen and {*FROZEN_NETWORK.parameters} <= {*group.parameters} for group in last):
            raise ConfigError(
                f"its steps would train the network that it measures; {INSTEAD_OF_FROZEN}", "run.training"
            )
        return
    task = _small(config)
    network = task.network
    predicting = {*network.prediction_only()} if isinstance(network, RowNetwork) else set()
    unused = {*task.unused()}
    named = {name: parameter for name, parameter in task.named_parameters() if parameter not in unused}
    needed = {*_heads(task), *(name for name, parameter in named.items() if parameter in predicting)}
    known = {name for source in config.start.sources().values() for name in trained_names(source, task)}
    if missing := sorted(needed - known):
        part = part_of(missing[0], known)
        reason = f"{part} is in none of the weights that it starts from, and no step trains it"
        raise ConfigError(f"{reason}; set steps, and {INSTEAD_OF_FROZEN}", "run.training.steps")


def trained_names(source: WeightSourceConfig, task: Task) -> Iterator[str]:
    """Yields the names, in a task, of the tensors that were trained in a source."""
    if isinstance(source, RunWeightsConfig):
        yield from (name for name, parameter in _small(source.run).named_parameters() if parameter.requires_grad)
    else:
        yield from task.current_names(read_weights(file_of_source(source, "start.network")).tensors)


def _heads(task: Task) -> Iterator[str]:
    """Yields the names of the parameters of a task outside its network."""
    yield from (name for name, _ in task.named_parameters() if not name.startswith("network."))


def _small(config: RunConfig) -> Task:
    return small_task(config, config.build_data().description)
