"""Whether a changed config changes anything: an arm that computes what its baseline computes asks no question."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from lit_transformers.batch import DataDescription, Vocabulary
from lit_transformers.miniature import (
    VOCABULARY,
    depths_of,
    first_that_builds,
    keeps_depth,
    probe_length,
    seeded,
)
from lit_transformers.models.model import ModelConfig
from lit_transformers.models.tokens import AdaptiveTokensConfig
from lit_transformers.tasks.task import TaskConfig
from lit_transformers.training import TrainingConfig

BATCHES, LONG = 6, 128
CLASSES = 3


class Rows(Protocol):
    """What is looked at of a config of data."""

    @property
    def length(self) -> int: ...


class Knobs(Protocol):
    """What is looked at of a run's config."""

    @property
    def model(self) -> ModelConfig: ...
    @property
    def task(self) -> TaskConfig: ...
    @property
    def data(self) -> Rows: ...
    @property
    def training(self) -> TrainingConfig: ...


def changes_nothing(arm: Knobs, baseline: Knobs) -> bool:
    """Whether the two train and are measured alike, number by number, on a few random batches at a small width, and
    keep as much for the backward pass.

    Rows are as long as the longest length that either model names needs, and, before two are said to be alike, as
    long as training's. Other data, another width or another budget make a difference by definition.
    """
    if told_apart(arm) != told_apart(baseline) or arm.task.batches is not baseline.task.batches:
        return False
    sizes = shrunk_memories(arm, baseline)
    length = min(arm.data.length, max(probe_length(config.model) for config in (arm, baseline)))
    return all(
        alike(observe(arm, sizes, length), observe(baseline, sizes, length))
        for length in dict.fromkeys((length, arm.data.length))
    )


def told_apart(config: Knobs) -> tuple[Any, ...]:
    """What makes a difference by definition: data, sizes, the budget, and how a number is measured."""
    model, training = config.model, config.training
    budget = (training.steps, training.accumulate, training.average)
    return config.data, model.dim, model.heads, depths_of(model), budget, config.task.protocol()


def alike(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether all numbers are the same."""
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def weigh(kept: dict[int, int], tensor: Tensor) -> Tensor:
    """Notes the bytes that a tensor keeps for the backward pass."""
    storage = tensor.untyped_storage()
    kept[storage.data_ptr()] = storage.nbytes()
    return tensor


def memories(model: ModelConfig) -> dict[str, int]:
    """The paths of a model that hold a length of memory."""
    return {path: value for path, value in model.leaves() if path.rsplit(".", 1)[-1] == "memory"}


def shrunk_memories(*configs: Knobs) -> dict[int, int]:
    """Every length of memory that the configs name, made short: lengths that differ still do, and 0 stays 0."""
    models = [model for c in configs for model in (c.model, c.model.override(c.task.evaluation))]
    lengths = sorted({length for model in models for length in memories(model).values()} - {0})
    return {0: 0} | {length: 8 * rank for rank, length in enumerate(lengths, start=1)}


def shrink(model: ModelConfig, sizes: dict[int, int], length: int) -> ModelConfig:
    """The model with few channels and, where it can be built so, few layers and short memories."""
    narrow = {"dim": 8 * model.heads}
    short: dict[str, Any] = {path: sizes[length] for path, length in memories(model).items()}
    shallow: dict[str, Any] = {}
    if not keeps_depth(model):
        shallow = {path: min(depth, 4) for path, depth in depths_of(model).items()}
    shallow |= {path: 1 for path, _ in model.leaves() if path == "stack.groups" and model.depth > 4}
    return first_that_builds(model, [narrow | short | shallow, narrow | short, narrow | shallow, narrow], length)


def observe(config: Knobs, sizes: dict[int, int], length: int) -> list[Tensor]:
    """Losses and parameters of a few updates, then what comes out as it is measured."""
    size = VOCABULARY
    if isinstance(config.model.tokens, AdaptiveTokensConfig):
        size = config.model.tokens.cutoffs[-1] + 1
    vocabulary = Vocabulary(size, 0, "byte", None)
    data = DataDescription(vocabulary, length, CLASSES, vocabulary, length, str)
    model = shrink(config.model, sizes, length)
    measured = {path: sizes.get(v, v) if path.endswith("memory") else v for path, v in config.task.evaluation.items()}
    objective = config.task.override({"evaluation": measured})
    batches = BATCHES if length <= LONG else BATCHES // 2
    with seeded():
        task = objective.build(model, data, config.training)
        optimizer, schedule = config.training.learn(task)
        seen: list[Tensor] = []
        for _ in range(batches):
            kept: dict[int, int] = {}
            with saved_tensors_hooks(partial(weigh, kept), lambda tensor: tensor):
                loss = task.training_step(objective.random_batch(data), 0)["loss"]
            optimizer.zero_grad()
            loss.backward()
            if config.training.clip is not None:
                torch.nn.utils.clip_grad_norm_(task.parameters(), config.training.clip)
            optimizer.step()
            task.after_step()
            schedule.step()
            seen += [loss.detach(), torch.tensor(sum(kept.values()))]
        with torch.no_grad():
            task.eval().evaluator().eval()
            seen += [task.measured(objective.random_batch(data)) for _ in range(batches)]
        return seen + [parameter.detach() for parameter in task.parameters()]
