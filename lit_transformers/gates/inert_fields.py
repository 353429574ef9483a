"""Detects whether a changed config has any effect: an arm that computes the same as its baseline tests nothing."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from lit_transformers.batch import Vocabulary
from lit_transformers.config import Config, LowerLayers, Memory, Rounding
from lit_transformers.gates.miniature import VOCABULARY, probe_length, seeded, shrink
from lit_transformers.machine.cores import one_thread
from lit_transformers.models.model import ModelConfig
from lit_transformers.tasks.task import TaskConfig
from lit_transformers.training.config import TrainingConfig

BATCHES, LONG = 6, 128


class ComparedData(Protocol):
    """The fields of a data config that are compared."""

    @property
    def length(self) -> int: ...


class ComparedRun(Protocol):
    """The fields of a run's config that are compared."""

    @property
    def model(self) -> ModelConfig: ...
    @property
    def task(self) -> TaskConfig: ...
    @property
    def data(self) -> ComparedData: ...
    @property
    def training(self) -> TrainingConfig: ...
    @property
    def start(self) -> Config: ...
    @property
    def compression(self) -> tuple[Config, ...]: ...
    @property
    def timed(self) -> bool: ...


def changes_nothing(arm: ComparedRun, baseline: ComparedRun) -> bool:
    """Whether the two runs have identical losses, weights and measurements on a few random batches at a small width,
    and store equally many bytes for the backward pass.

    Rows are as long as the longest length that either model names requires; before two runs are declared equal, they
    are also compared at the training length. Other data, another width or another budget differ by definition.
    """
    if defining_fields(arm) != defining_fields(baseline) or arm.task.reads is not baseline.task.reads:
        return False
    if not equal_schedules(arm.training, baseline.training):
        return False
    sizes = shrunk_memories(arm, baseline)
    length = min(arm.data.length, max(probe_length(config.model) for config in (arm, baseline)))
    with one_thread():
        lower = [number for config in (arm, baseline) for _, number in config.model.leaves_with(LowerLayers)]
        depth = max(4, *(layers + 1 for layers in (*lower, *(run.task.fewest_layers() for run in (arm, baseline)))))
        return all(
            tensors_equal(observe(arm, sizes, length, depth), observe(baseline, sizes, length, depth))
            for length in dict.fromkeys((length, arm.data.length))
        )


def defining_fields(config: ComparedRun) -> tuple[Any, ...]:
    """Returns the fields that differ by definition: data, sizes, the budget, groups of parameters, of which a small
    network may have none, the weights that training starts from, their compression, the precision of products,
    which passes in float32 do not show, and how results are measured; where passes are timed, also how they are
    computed."""
    model, training = config.model, config.training
    selection = (training.stop, training.keep, training.stop and training.validate_every, training.callbacks)
    groups = (training.groups, training.unfreezing)
    budget = (training.steps, training.accumulate, training.average, groups, selection)
    widths = {path: model.get(path) for path in model.widths()}
    start = (config.start, config.compression)
    precision = (training.precision, training.tf32)
    computed = (training.compile, training.attention_kernel, dict(model.leaves_with(Rounding)))
    timed = computed if config.timed else None
    return config.data, widths, model.heads, model.depths(), budget, start, precision, config.task.protocol(), timed


def equal_schedules(first: TrainingConfig, second: TrainingConfig) -> bool:
    """Whether two schedules have the same factor at every update of training; most differ only after the warm-up,
    which a few updates do not reach."""
    return first.schedule == second.schedule or all(
        first.schedule.factor(step, first.steps) == second.schedule.factor(step, second.steps)
        for step in range(first.steps)
    )


def tensors_equal(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether all tensors have equal shapes and equal values, of which NaN is one: networks that compute nothing else
    are alike."""
    return len(first) == len(second) and all(
        a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
        for a, b in zip(first, second, strict=True)
    )


def weigh(saved_bytes: dict[int, int], tensor: Tensor) -> Tensor:
    """Records the bytes of a tensor that is saved for the backward pass, by the address of its storage."""
    storage = tensor.untyped_storage()
    saved_bytes[storage.data_ptr()] = storage.nbytes()
    return tensor


def memories(model: ModelConfig) -> dict[str, int]:
    """Returns the paths of a model's config that hold a memory length, with their values."""
    return dict(model.leaves_with(Memory))


def shrunk_memories(*configs: ComparedRun) -> dict[int, int]:
    """Maps every memory length in the configs to a short one: lengths that differ still differ, and 0 stays 0."""
    models = [model for config in configs for model in (config.model, config.model.override(config.task.evaluation))]
    lengths = sorted({length for model in models for length in memories(model).values()} - {0})
    return {0: 0} | {length: 8 * rank for rank, length in enumerate(lengths, start=1)}


def observe(config: ComparedRun, sizes: dict[int, int], length: int, depth: int) -> list[Tensor]:
    """Returns the losses and saved bytes of a few updates, the measurements after them, and the final parameters."""
    size = max(VOCABULARY, config.model.fewest_symbols())
    vocabulary = Vocabulary(size=size, boundary=0, unit="byte", byte_lengths=None)
    data = config.task.probe_data(vocabulary, length)
    model = shrink(config.model, length, {}, depth=depth, shorten=sizes.__getitem__)
    evaluation = dict(config.task.evaluation)
    evaluated_memories = memories(config.model.override(evaluation))
    evaluation |= {path: sizes[evaluated_memories[path]] for path in evaluation if path in evaluated_memories}
    objective = config.task.override({"evaluation": evaluation})
    batches = BATCHES if length <= LONG else BATCHES // 2
    training = config.training.override({"groups": (), "unfreezing": None})
    with seeded():
        task = objective.build(model, data, training)
        objective.teach_probe(task)
        optimizer, schedule = training.learn(task)
        trace: list[Tensor] = []
        for _ in range(batches):
            saved_bytes: dict[int, int] = {}
            with saved_tensors_hooks(partial(weigh, saved_bytes), lambda tensor: tensor):
                loss = task.training_step(objective.random_batch(data), 0)["loss"]
            optimizer.zero_grad()
            loss.backward()
            if config.training.clip is not None:
                torch.nn.utils.clip_grad_norm_(task.parameters(), config.training.clip)
            optimizer.step()
            task.after_step()
            schedule.step()
            trace += [loss.detach(), torch.tensor(sum(saved_bytes.values()))]
        with torch.no_grad():
            task.eval().evaluator().eval()
            trace += [task.evaluation_output(objective.random_batch(data)) for _ in range(batches)]
        return trace + [parameter.detach() for parameter in task.parameters()]
