"""Rehearses a whole run with a small network before it begins, so that errors of its end show at its start."""

from __future__ import annotations

from dataclasses import replace

import torch

from datamodules import Data
from lit_transformers.batch import DataDescription
from lit_transformers.compression.narrow import with_widths_of
from lit_transformers.config import ConfigError, Dropout, Memory, nearest
from lit_transformers.encodings.positions import PositionError
from lit_transformers.gates.miniature import seeded, shrink
from lit_transformers.mixer import LengthError
from lit_transformers.models import ModelConfig
from lit_transformers.runs.config import RunConfig, RunWeightsConfig
from lit_transformers.runs.made_weights import file_of_source
from lit_transformers.runs.narrowed_weights import require_narrower
from lit_transformers.runs.quantised_starts import require_kept_levels
from lit_transformers.runs.shared_weights import model_of_start
from lit_transformers.runs.starting_weights import (
    StartingWeights,
    read_weights,
    require_same_network,
    start_from,
)
from lit_transformers.tasks import Task

__all__ = ["rehearse"]

LONGEST = 1024
"""The longest rows of a rehearsal, in tokens."""
DEPTH = 2


def rehearse(config: RunConfig, data: Data | None = None) -> None:
    """Trains, validates, decodes, saves, loads and measures a small network of the run's config on random rows of the
    lengths of its data. Takes a fraction of a second, and does not change the caller's random state.

    Raises the ConfigError that the run would raise later, at its first or last validation. data: the data of the
    config, if already built.
    """
    data = data or config.build_data()
    description = data.description
    with seeded():
        task = small_task(config, description)
        config.task.teach_probe(task)
        try:
            task.training_step(config.task.random_batch(shortened(description, description.length)), 0)
            names = measured_names(config, task, config.data.measured_length or description.length)
        except (PositionError, LengthError) as error:
            raise ConfigError(str(error), "model") from None
        if config.training.stop is not None and config.training.stop.metric not in names:
            reason = f"{config.training.stop.metric} is not measured; {nearest(config.training.stop.metric, names)}"
            raise ConfigError(reason, "training.stop.metric")
        restored = config.data.description_from(data.checkpoint_metadata())
        small_task(config, restored).load_state_dict(task.state_dict())
        rehearse_start(config, task)


def rehearse_start(config: RunConfig, task: Task) -> None:
    """Copies the weights of small networks of the runs that a run starts from into its small network. Raises
    ConfigError if they do not fit, or are quantised and would not stay so."""
    require_kept_levels(config)
    sources, starts = {}, config.start.sources()
    for part, source in starts.items():
        if part == "teacher":  # a run's description compares it with the task
            continue
        place = f"start.{part}.{source.kind}"
        if isinstance(source, RunWeightsConfig):
            model = source.run.model
        else:
            model = read_weights(file_of_source(source, f"start.{part}"), whole=False).model
        if source == starts.get("network"):  # also the heads of this source fit the smaller network
            whole = model_of_start(model, config.start, config.model)
            model = whole if config.start.narrow is None else with_widths_of(whole, config.model)
            require_same_network(model, config.model, place)
            if config.start.narrow is not None:
                require_narrower(whole, config.model, task.data)
        if isinstance(source, RunWeightsConfig):
            trained = small_task(source.run, source.run.build_data().description, model)
            sources[part] = StartingWeights(trained.model_config, "", trained.state_dict(), place=place)
    if sources:
        start_from(task, sources, config.start.head)


def small_task(config: RunConfig, description: DataDescription, network: ModelConfig | None = None) -> Task:
    """Returns the run's task on a network with few channels and the fewest layers that it needs, but all its
    mechanisms. network: the config of the network; None: the run's."""
    network = network or config.model
    length = min(description.length, LONGEST)
    changes = {path: 0.0 for path, _ in network.leaves_with(Dropout)}
    depth = max(DEPTH, config.task.fewest_layers())
    model = shrink(network, length, changes, depth=depth, shorten=lambda memory: min(memory, length))
    memories = dict(model.override(config.task.evaluation).leaves_with(Memory))
    evaluation = {
        path: min(memories[path], length) if memories.get(path) else value
        for path, value in config.task.evaluation.items()
    }
    # groups may name layers that the small network does not have
    training = config.training.override({"groups": (), "unfreezing": None})
    return config.measured_task.override({"evaluation": evaluation}).build(model, description, training)


def measured_names(config: RunConfig, task: Task, length: int) -> list[str]:
    """Returns the names of the metrics of a validation on rows of a length, as in records."""
    task.eval()
    batches = config.task.random_batches(shortened(task.data, length))
    with torch.no_grad():
        task.begin_evaluation()
        for batch in batches:
            task.validation_step(batch, 0)
    return [f"val/{name}" for name in task.metric.compute()]


def shortened(description: DataDescription, length: int) -> DataDescription:
    """Returns the description of rows of a length, at most LONGEST."""
    return replace(description, length=min(length, LONGEST))
