"""LayerDrop: passes of training skip layers at random, evaluation uses all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from forked import training
from golden.runs import RUNS
from stopped_runs import stop_run
from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.encodings import XLConfig
from lit_transformers.mixer import Context, state_tensors
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import LanguageModelConfig
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, fit, load
from lit_transformers.stacks import SequentialConfig, Stack
from lit_transformers.tasks.question_answering import QuestionAnswering

DEPTH = 6
STEPS = {"training.steps": 12, "training.validate_every": 4, "training.log_every": 4, "training.device": "cpu"}
RUN = RunConfig.from_dict(RUNS["deformer"]).override(
    {**STEPS, "model.stack": {"kind": "sequential", "layer_drop": 0.4}}
)


def built(layer_drop: float, memory: int = 0, permuted: bool = False) -> Stack:
    mixer = AttentionConfig(bias=True, memory=memory, encoding=XLConfig(biases="per_layer") if memory else None)
    config = LanguageModelConfig(
        dim=8, heads=2, depth=DEPTH, mixer=mixer, stack=SequentialConfig(layer_drop=layer_drop), norm="pre"
    )
    stack = config.build_stack("permuted" if permuted else "causal" if memory else "bidirectional", 64)
    torch.manual_seed(1)
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return stack.double()


def drawn(layer_drop: float) -> list[bool]:
    """Which layers the next pass keeps; the random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        return [float(torch.rand(())) >= layer_drop for _ in range(DEPTH)]


def seed_of(kept: list[bool], layer_drop: float) -> None:
    """Seeds random numbers so that the next pass keeps these layers."""
    for seed in range(10_000):
        torch.manual_seed(seed)
        if drawn(layer_drop) == kept:
            return
    raise AssertionError(f"no seed keeps {kept}")


def read(stack: Stack, x: Tensor, causal: bool = False, state: Any = None) -> Any:
    return stack(x, Context(torch.arange(x.size(1)).expand(x.shape[:2]), causal), state)


def test_training_skips_layers_and_evaluation_uses_all_of_them() -> None:
    stack, whole = built(0.4), built(0.0)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    counts = torch.zeros(DEPTH)
    for seed in range(50):
        torch.manual_seed(seed)
        kept = drawn(0.4)
        counts += torch.tensor(kept)
        expected, ctx = x, Context(torch.arange(5).expand(3, 5), False)
        for block, is_kept in zip(whole.steps(), kept, strict=True):
            expected = block(expected, ctx).y if is_kept else expected
        torch.testing.assert_close(read(stack.train(), x).y, expected)
    assert abs(counts.sum() / (50 * DEPTH) - 0.6) < 3 * (0.24 / (50 * DEPTH)) ** 0.5
    random = torch.get_rng_state()
    torch.testing.assert_close(read(stack.eval(), x).y, read(whole, x).y, rtol=0, atol=0)
    assert torch.equal(random, torch.get_rng_state())


def test_a_skipped_layer_has_gradients_of_zero_and_the_others_those_without_it() -> None:
    stack = built(0.5).train()
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    seed_of([True, False, True, True, False, True], 0.5)
    kept = drawn(0.5)
    read(stack, x).y.square().sum().backward()
    for block, is_kept in zip(stack.steps(), kept, strict=True):
        for parameter in block.parameters():
            assert parameter.grad is not None
        assert block.feedforward.narrow.weight.grad.any() == is_kept  # type: ignore[union-attr, operator]
    assert x.grad is not None and x.grad.any()


def test_memory_does_not_depend_on_what_the_last_layer_skips() -> None:
    """A skipped layer remembers its inputs as others do: the next segment reads no gap."""
    stack, whole = built(0.5, memory=4), built(0.0, memory=4)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    seed_of([True] * (DEPTH - 1) + [False], 0.5)
    states = [read(one.train(), x, causal=True).state for one in (stack, whole)]
    for own, other in zip(*map(state_tensors, states), strict=True):
        torch.testing.assert_close(own, other)


def test_queries_of_a_second_stream_skip_the_same_layers() -> None:
    stack, whole = built(0.5, permuted=True), built(0.0, permuted=True)
    x, queries = torch.randn(2, 2, 5, 8, dtype=torch.float64).unbind()
    places, ctx = torch.randperm(5).expand(2, 5), Context(torch.arange(5).expand(2, 5), False)
    torch.manual_seed(0)
    kept = drawn(0.5)
    output = stack.train().forward_with_queries(x, queries, ctx, places)
    torch.manual_seed(0)
    chosen = [block for block, is_kept in zip(whole.steps(), kept, strict=True) if is_kept]
    whole.blocks = torch.nn.ModuleList(chosen)
    expected = whole.forward_with_queries(x, queries, ctx, places)
    torch.testing.assert_close(output.content, expected.content)
    torch.testing.assert_close(output.queries, expected.queries)
    assert 0 < len(chosen) < DEPTH


def test_a_divided_stack_drops_layers_in_both_parts() -> None:
    assert [part.layer_drop for part in built(0.3).split(2)] == [0.3, 0.3]  # type: ignore[attr-defined]


def test_a_stopped_run_skips_the_same_layers_when_it_is_resumed(tmp_path: Path) -> None:
    fit(RUN, tmp_path / "whole")
    stop_run(RUN, tmp_path / "parts", QuestionAnswering, steps=6)
    fit(RUN, tmp_path / "parts")
    whole, parts = (load(tmp_path / name / CHECKPOINT)[0].state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())


@pytest.mark.slow
def test_two_ranks_that_skip_different_layers_train_together(tmp_path: Path) -> None:
    config = RUN.override({"training.devices": 2, "training.steps": 6, "training.validate_every": None})
    training(config, tmp_path / "run").finish()
    assert (tmp_path / "run" / CHECKPOINT).exists()


@pytest.mark.parametrize(
    ("stack", "reason"),
    [
        ({"kind": "sequential", "layer_drop": 1.0}, "model.stack.layer_drop: input should be less than 1; got 1.0"),
        ({"kind": "sequential", "layer_drop": -0.1}, "model.stack.layer_drop: input should be greater than"),
        ({"kind": "reversible", "layer_drop": 0.2}, "ReversibleConfig has no field 'layer_drop'"),
        ({"kind": "universal", "layer_drop": 0.2}, "UniversalConfig has no field 'layer_drop'"),
    ],
)
def test_what_cannot_skip_layers_is_refused_in_a_line(stack: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        RUN.override({"model.stack": stack})
    assert reason in str(refusal.value) and "\n" not in str(refusal.value)
