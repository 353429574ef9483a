"""No knob of the objective, the optimizers, the schedules or the budget is silently ignored."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from lit_transformers.config import Config, field_types
from lit_transformers.gates.inert_fields import changes_nothing
from lit_transformers.mixer import MixerConfig
from lit_transformers.mixers import AttentionConfig, SparseConfig, WindowConfig
from lit_transformers.models import LanguageModelConfig
from lit_transformers.runs import RunConfig
from lit_transformers.tasks.causal_lm import CausalLMConfig
from lit_transformers.training.config import OPTIMIZERS, SCHEDULES, TrainingConfig

pytestmark = pytest.mark.slow
MODEL = LanguageModelConfig(dim=16, heads=2, depth=2, mixer=AttentionConfig(memory=8))
SEEN_ELSEWHERE = {
    "optimizer": "every kind and field below",
    "schedule": "every kind and field below",
    "steps": "the length of a run: test_run.py",
    "validate_every": "the points of a curve: test_run.py",
    "log_every": "the points of a curve: test_run.py",
    "device": "refused where there is none: test_run.py",
    "devices": "test_two_ranks.py",
    "strategy": "who holds the weights, not their values: tests/sweeps/test_torchrun.py",
    "precision": "test_precisions_differ_though_the_probe_computes_in_float32",
    "tf32": "test_precisions_differ_though_the_probe_computes_in_float32",
    "attention_kernel": "which kernel of torch computes attention: test_arithmetic.py",
    "stop": "test_selection.py",
    "keep": "test_selection.py",
    "keep_optimizer": "test_checkpoints.py",
    "callbacks": "test_selection.py",
    "groups": "tests/lit_transformers/test_groups.py",
    "unfreezing": "tests/lit_transformers/test_groups.py",
    "recompute": "test_recomputed_layers.py",
    "cache_features": "where outputs of a frozen network are from, not their values: test_probes.py",
    "cached_layers": "where outputs of frozen layers are from, not their values: test_cached_layers.py",
    "compile": "how a network runs, not its outputs: test_run.py",
}
OTHERWISE: dict[str, Any] = {
    "learning_rate": 3e-4,
    "beta1": 0.5,
    "beta2": 0.9,
    "epsilon": 1e-2,
    "weight_decay": 0.5,
    "momentum": 0.1,
    "warmup": 3,
    "floor": 0.5,
    "rise": 0.5,
    "ratio": 4.0,
    "clip": 1e-3,
    "accumulate": 2,
    "average": {"last": 2, "every": 3},
    "heads": [{"kind": "future_symbol"}],
    "loss": "half",
    "intermediate": True,
    "future": [0.5],
    "evaluation": {"mixer.memory": 16},
}


@cache
def repeats_itself(base: RunConfig) -> bool:
    return changes_nothing(base, base)


def changed(training: dict[str, Any], path: str, value: Any) -> bool:
    base = RunConfig(model=MODEL, training=TrainingConfig(steps=8, device="cpu")).override(training)
    assert repeats_itself(base), "the probe must repeat itself"
    return not changes_nothing(base.override({path: value}), base)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, config in OPTIMIZERS.items() for name in field_types(config)]
)
def test_every_field_of_an_optimizer_changes_training(kind: str, name: str) -> None:
    assert changed({"training.optimizer": kind}, f"training.optimizer.{name}", OTHERWISE[name])


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, config in SCHEDULES.items() for name in field_types(config)]
)
def test_every_field_of_a_schedule_changes_training(kind: str, name: str) -> None:
    assert changed({"training.schedule": kind}, f"training.schedule.{name}", OTHERWISE[name])


def test_schedules_that_part_only_after_a_long_warm_up_differ() -> None:
    base = {"training.steps": 100, "training.schedule": {"kind": "cosine", "warmup": 50}}
    assert changed(base, "training.schedule.floor", 0.5)


@pytest.mark.parametrize(("path", "value"), [("training.precision", "bf16"), ("training.tf32", True)])
def test_precisions_differ_though_the_probe_computes_in_float32(path: str, value: Any) -> None:
    base = RunConfig(model=MODEL, training=TrainingConfig(steps=8, device="cuda"))
    assert not changes_nothing(base.override({path: value}), base)


@pytest.mark.parametrize("kind", sorted(set(OPTIMIZERS) - {"adamw"}))
def test_optimizers_differ(kind: str) -> None:
    assert changed({}, "training.optimizer", kind)


@pytest.mark.parametrize("kind", sorted(set(SCHEDULES) - {"cosine"}))
def test_schedules_differ(kind: str) -> None:
    assert changed({}, "training.schedule", {"kind": kind})


@pytest.mark.parametrize(
    ("prefix", "config"), [("task", CausalLMConfig), ("training", TrainingConfig)], ids=["task", "training"]
)
def test_every_other_field_changes_training_or_is_seen_elsewhere(prefix: str, config: type[Config]) -> None:
    for name in field_types(config):
        if prefix == "training" and name in SEEN_ELSEWHERE:
            continue
        assert changed({}, f"{prefix}.{name}", OTHERWISE[name]), name


@pytest.mark.parametrize(
    ("mixer", "field", "value"),
    [
        (WindowConfig(window=30), "window", 25),
        (SparseConfig(block=20), "block", 25),
    ],
    ids=lambda part: part.kind if isinstance(part, Config) else None,
)
def test_rows_are_long_enough_for_a_length_to_make_a_difference(mixer: MixerConfig, field: str, value: int) -> None:
    assert changed({"model.mixer": mixer}, f"model.mixer.{field}", value)
    assert not changed({"model.mixer": mixer, "data.segment_length": 15}, f"model.mixer.{field}", value)


def test_a_value_for_each_layer_is_looked_at_in_all_layers() -> None:
    windows = {"model.depth": 3, "model.mixer": WindowConfig(window=(4, 4, 4))}
    assert changed(windows, "model.mixer.window", [4, 4, 8])


def test_groups_of_shared_layers_are_compared_though_layers_become_fewer() -> None:
    assert changed({"model.depth": 6, "model.stack": {"kind": "shared"}}, "model.stack.groups", 2)


def test_a_loss_counts_what_it_says() -> None:
    assert changed({"task.loss": "half"}, "task.loss", "last")
    assert changed({"task.future": [0.5]}, "task.future", [0.5, 0.25])


def test_an_arm_that_only_looks_different_is_found() -> None:
    """Two names for one thing: a clipping distance beyond every distance there is."""
    encoding = {"model.mixer.encoding": {"kind": "xl", "clamp_length": 5000}}
    base = RunConfig(model=MODEL.override({"mixer.encoding": "xl"}))
    assert changes_nothing(base.override(encoding), base)
