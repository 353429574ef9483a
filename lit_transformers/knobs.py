"""Whether a changed config changes anything: an arm that computes what its baseline computes asks no question."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lit_transformers.batch import TextBatch, Vocabulary
from lit_transformers.config import Config
from lit_transformers.gates import VOCABULARY, seeded
from lit_transformers.models.model import ModelConfig
from lit_transformers.models.tokens import AdaptiveTokensConfig
from lit_transformers.tasks.causal_lm import CausalLM, CausalLMConfig
from lit_transformers.training import TrainingConfig

SEGMENTS, LENGTH = 6, 24


class Knobs(Protocol):
    """What is looked at of a run's config."""

    @property
    def model(self) -> ModelConfig: ...
    @property
    def task(self) -> CausalLMConfig: ...
    @property
    def data(self) -> Config: ...
    @property
    def training(self) -> TrainingConfig: ...


def changes_nothing(arm: Knobs, baseline: Knobs) -> bool:
    """Whether the two train and are measured alike, number by number, on a few random segments at a small width.

    Other data, another width or another budget make a difference by definition.
    """
    told_apart: tuple[Any, ...] = (arm.data, arm.model.dim, arm.model.heads, arm.model.depth, arm.training.steps)
    others = (baseline.data, baseline.model.dim, baseline.model.heads, baseline.model.depth, baseline.training.steps)
    if told_apart != others:
        return False
    sizes = shrunk_memories(arm, baseline)
    one, other = observe(arm, sizes), observe(baseline, sizes)
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def memories(model: ModelConfig) -> dict[str, int]:
    """The paths of a model that hold a length of memory."""
    return {path: value for path, value in model.leaves() if path.rsplit(".", 1)[-1] == "memory"}


def shrunk_memories(*configs: Knobs) -> dict[int, int]:
    """Every length of memory that the configs name, made short: lengths that differ still do, and 0 stays 0."""
    models = [model for c in configs for model in (c.model, c.model.override(c.task.evaluation))]
    lengths = sorted({length for model in models for length in memories(model).values()} - {0})
    return {0: 0} | {length: 8 * rank for rank, length in enumerate(lengths, start=1)}


def shrink(model: ModelConfig, sizes: dict[int, int]) -> ModelConfig:
    """The model with few channels, few layers and short memories."""
    changes: dict[str, Any] = {path: sizes[length] for path, length in memories(model).items()}
    changes |= {"dim": 8 * model.heads, "depth": min(model.depth, 4)}
    changes |= {path: 1 for path, _ in model.leaves() if path == "stack.groups" and model.depth > 4}
    return model.override(changes)


def observe(config: Knobs, sizes: dict[int, int]) -> list[Tensor]:
    """Losses and parameters of a few updates, then hidden states as they are measured."""
    model, size = shrink(config.model, sizes), VOCABULARY
    measured = {path: sizes.get(v, v) if path.endswith("memory") else v for path, v in config.task.evaluation.items()}
    objective = config.task.override({"evaluation": measured})
    if isinstance(model.tokens, AdaptiveTokensConfig):
        size = model.tokens.cutoffs[-1] + 1
    with seeded():
        task = CausalLM(model, Vocabulary(size, 0, "byte", None), LENGTH, objective, config.training)
        optimizer, schedule = config.training.learn(task)
        seen: list[Tensor] = []
        for _ in range(SEGMENTS):
            loss = task.training_step(random_batch(size), 0)["loss"]
            optimizer.zero_grad()
            loss.backward()
            if config.training.clip is not None:
                torch.nn.utils.clip_grad_norm_(task.parameters(), config.training.clip)
            optimizer.step()
            schedule.step()
            seen.append(loss.detach())
        with torch.no_grad():
            network, state = task.eval().evaluator().eval(), None
            for _ in range(SEGMENTS):
                read = network(random_batch(size).inputs, state)
                state = read.state
                seen.append(read.hidden)
        return seen + [parameter.detach() for parameter in task.parameters()]


def random_batch(size: int) -> TextBatch:
    """A segment of two lanes that have neither end nor beginning."""
    text = torch.randint(1, size, (2, LENGTH + 1))
    real, lanes = torch.ones(2, LENGTH, dtype=torch.bool), torch.zeros(2, LENGTH, dtype=torch.long)
    return TextBatch(text[:, :-1], text[:, 1:], real, lanes, torch.zeros(2, dtype=torch.bool), 0, None)
