"""Computes the cost of a task, from its networks and heads, without training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lit_transformers.batch import DataDescription
from lit_transformers.models.cost import ModelCost, require_fitting, shapes_or_values
from lit_transformers.models.model import ModelConfig
from lit_transformers.stacks.carried import Carried
from lit_transformers.training.config import TrainingConfig

if TYPE_CHECKING:
    from lit_transformers.tasks.task import Task, TaskConfig


def task_cost(config: TaskConfig, model: ModelConfig, data: DataDescription) -> ModelCost:
    """Returns the cost of a task with the network of ``model`` on described data.

    It counts the parameters that an output depends on, shared parameters once; and the FLOPs of the network for a row,
    of further texts that the task reads, and of the heads. Raises ConfigError if the task cannot be built.
    """
    require_fitting(model)
    task, (carried, *passes) = shapes_or_values(lambda: config.build(model, data, TrainingConfig()), spent)
    _, length = config.counted_lengths(data)
    unused = {id(parameter) for parameter in task.unused()}
    counts = {id(p): p.numel() for p in task.parameters() if id(p) not in unused}
    embedded = {id(p) for embedding in task.network.embeddings() for p in embedding.parameters()}
    embedding_parameters = sum(count for parameter, count in counts.items() if parameter in embedded)
    decoding_state = task.network.decoding_state(length)
    per_token = sum(flops / length for flops in passes)
    return ModelCost(sum(counts.values()), embedding_parameters, per_token, carried.state_bytes, decoding_state)


def spent(task: Task) -> tuple[Carried, float, float, float]:
    """Returns the state that a row leaves to the next row, and the forward FLOPs of a row after it: of the network, of
    the heads without the network's softmax, and of all else."""
    source, length = task.config.counted_lengths(task.data)
    carried = task.carried()
    flops = task.network.flops(length, carried.tokens, source)
    return carried, flops, task.flops_of_heads(length) - task.network.softmax_flops(length), task.other_flops(length)
