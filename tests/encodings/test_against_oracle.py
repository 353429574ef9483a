"""Attention equals the equations of the papers, evaluated pair by pair in float64."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import slow_attention
import torch
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.config import ConfigError, field_types
from lit_transformers.encodings import (
    EncodingConfig,
    HuangConfig,
    LearnedRelativeConfig,
    ShawConfig,
    XLConfig,
)
from lit_transformers.mixer import Context, Shape
from lit_transformers.mixers import MIXERS, AttentionConfig
from lit_transformers.mixers.attention import Attention
from lit_transformers.stacks import SequentialConfig, Stack, StackInput
from lit_transformers.stacks.block import Block, BlockConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig

DIM, HEADS, MEMORY, LENGTH = 8, 2, 4, 5

RELATIVE = {
    "xl": XLConfig(),
    "xl per layer": XLConfig(biases="per_layer"),
    "xl clamped": XLConfig(clamp_length=2),
    "xl clamped to nothing": XLConfig(clamp_length=0),
    "xl without u": XLConfig(content_bias=False),
    "xl without v": XLConfig(position_bias=False),
    "xl without u and v": XLConfig(content_bias=False, position_bias=False),
    "shaw": ShawConfig(distance=2),
    "shaw keys": ShawConfig(distance=3, values=False, per_head=True),
    "shaw values": ShawConfig(distance=1, keys=False),
    "huang": HuangConfig(distance=2),
    "huang per head": HuangConfig(distance=30, per_head=True),
    "learned_relative": LearnedRelativeConfig(buckets=4, max_distance=7),
    "none": None,
}


def build(encoding: EncodingConfig | None, **knobs: Any) -> Attention:
    torch.manual_seed(0)
    layer = AttentionConfig(encoding=encoding, **knobs).build(Shape(DIM, HEADS, LENGTH)).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def context(causal: bool = True) -> Context:
    return Context(torch.arange(LENGTH).expand(2, LENGTH), causal)


def gradients(loss: Tensor, layer: torch.nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [x, *layer.parameters()], materialize_grads=True))


@pytest.mark.parametrize("encoding", RELATIVE.values(), ids=RELATIVE.keys())
@pytest.mark.parametrize("same_length", [False, True])
def test_a_second_segment_with_its_memory_equals_the_equations(
    encoding: EncodingConfig | None, same_length: bool
) -> None:
    layer = build(encoding, memory=MEMORY, same_length=same_length)
    first = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    second = torch.randn(2, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    state = layer(first, context()).state
    y = layer(second, context(), state).y

    def sees(i: int, j: int) -> bool:
        return j <= i and (not same_length or i - j <= MEMORY)

    expected = torch.stack([slow_attention.attention(layer, second[b], first[b, -MEMORY:], sees) for b in range(2)])
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-10)
    direction = torch.randn_like(y)
    gradients_of_y, expected_gradients = (
        gradients((output * direction).sum(), layer, second) for output in (y, expected)
    )
    for gradient, expected_gradient in zip(gradients_of_y, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-10, rtol=1e-10)


def test_scores_say_whether_query_and_key_are_of_one_segment() -> None:
    """Keys in memory count as keys of the first segment."""
    layer = build(XLConfig(segments=3), memory=MEMORY)
    first, second = (torch.randn(1, LENGTH, DIM, dtype=torch.float64, requires_grad=True) for _ in range(2))
    segments = [0, 2, 1, 0, 1]
    both_ways = context(causal=False)._replace(positions=torch.arange(LENGTH)[None], segments=torch.tensor([segments]))
    y = layer(second, both_ways, layer(first, both_ways).state).y
    all_segments = [0] * MEMORY + segments
    expected = slow_attention.attention(layer, second[0], first[0, -MEMORY:], lambda i, j: True, all_segments)[None]
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-10)
    pairs = zip(*(gradients(output.square().sum(), layer, second) for output in (y, expected)), strict=True)
    for gradient, expected_gradient in pairs:
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-10, rtol=1e-10)


ENCODED = {kind: config() for kind, config in MIXERS.items() if "encoding" in field_types(config)}


@pytest.mark.parametrize("kind", ENCODED)
def test_segments_reach_every_mixer_that_takes_the_encoding(kind: str) -> None:
    """As a row whose queries and keys are all of one segment differs from one of two."""
    config = ENCODED[kind].override({"encoding": XLConfig(segments=2)})
    if "bidirectional" not in config.promises().modes:
        with pytest.raises(ConfigError, match="cannot be causal: text that is read in order has no segments"):
            config.require("causal")
        return
    torch.manual_seed(0)
    mixer = config.build(Shape(DIM, HEADS, 40)).double().eval()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(1, 40, DIM, dtype=torch.float64)
    ctx = Context(torch.arange(40)[None], False)
    of_one, of_two, as_of_one = (
        mixer(x, ctx._replace(segments=segments)).y
        for segments in (None, torch.arange(40)[None] % 2, torch.ones(1, 40, dtype=torch.long))
    )
    assert (of_one - of_two).abs().max() > 1e-3
    torch.testing.assert_close(of_one, as_of_one)


def test_a_memory_is_no_longer_without_gradients() -> None:
    """A segment exceeds the memory: one that kept all of it would show later queries more than training did."""
    layer = build(XLConfig(), memory=MEMORY)
    first, second = (torch.randn(2, LENGTH, DIM, dtype=torch.float64) for _ in range(2))
    expected = layer(second, context(), layer(first, context()).state).y
    with torch.no_grad():
        y = layer(second, context(), layer(first, context()).state).y
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    "encoding",
    [e for name, e in RELATIVE.items() if name != "learned_relative"],
    ids=[name for name in RELATIVE if name != "learned_relative"],
)
def test_a_bidirectional_layer_equals_the_equations(encoding: EncodingConfig | None) -> None:
    layer = build(encoding)
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64, requires_grad=True)
    y = layer(x, context(causal=False)).y
    expected = torch.stack([slow_attention.attention(layer, x[b], None, lambda i, j: True) for b in range(2)])
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("biases", ["shared", "per_layer"])
def test_the_memory_of_a_layer_is_its_own_input_without_gradient(
    norm: Literal["pre", "post"], biases: Literal["shared", "per_layer"]
) -> None:
    stack = two_layers(norm, biases)
    first, second = (torch.randn(1, LENGTH, DIM, dtype=torch.float64, requires_grad=True) for _ in range(2))
    ctx = Context(torch.arange(LENGTH)[None], causal=True)
    state = stack(first, ctx).state
    y = stack(second, ctx, state).y[0]

    inputs: list[Tensor | None] = [None, None]
    _, inputs = oracle_pass(stack, first[0], inputs)
    expected, _ = oracle_pass(stack, second[0], inputs)
    torch.testing.assert_close(y, expected, atol=1e-10, rtol=1e-10)

    direction = torch.randn_like(y)
    for gradient, expected_gradient in zip(
        gradients((y * direction).sum(), stack, second),
        gradients((expected * direction).sum(), stack, second),
        strict=True,
    ):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-9, rtol=1e-9)
    assert torch.autograd.grad(stack(second, ctx, state).y.sum(), first, allow_unused=True)[0] is None


def two_layers(norm: Literal["pre", "post"], biases: Literal["shared", "per_layer"]) -> Stack:
    torch.manual_seed(0)
    config = BlockConfig(
        mixer=AttentionConfig(encoding=XLConfig(biases=biases), memory=MEMORY),
        feedforward=FeedForwardConfig(width=6),
        norm=norm,
    )
    shape = Shape(DIM, HEADS, LENGTH, 0, 2, shared={})
    stack = SequentialConfig().build(
        shape, lambda layer, _: config.build_block(shape._replace(layer=layer), "causal"), StackInput()
    )
    for parameter in stack.double().parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return stack


def oracle_pass(stack: Stack, x: Tensor, memories: list[Tensor | None]) -> tuple[Tensor, list[Tensor | None]]:
    """Passes a segment through both layers. Returns its output, and the inputs of each layer's attention: the memory of
    the next segment."""
    next_memories: list[Tensor | None] = []
    blocks = [block for block in stack.modules() if isinstance(block, Block)]
    for block, memory in zip(blocks, memories, strict=True):
        assert isinstance(block.mixer, Attention)
        inputs = normalise(block.mixer_norm, x) if block.pre else x
        next_memories.append(inputs[-MEMORY:])
        x = x + slow_attention.attention(block.mixer, inputs, memory, lambda i, j: j <= i)
        x = x if block.pre else normalise(block.mixer_norm, x)
        inputs = normalise(block.feedforward_norm, x) if block.pre else x
        widen, narrow = block.feedforward.widen, block.feedforward.narrow
        x = x + F.linear(F.linear(inputs, widen.weight, widen.bias).relu(), narrow.weight, narrow.bias)
        x = x if block.pre else normalise(block.feedforward_norm, x)
    return x, next_memories


def normalise(norm: torch.nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias
