"""Attention within blocks: no query sees beyond its own block, at any length."""

from __future__ import annotations

import pytest
from slow_patterns import (
    DIM,
    Sees,
    agree,
    build,
    context,
    heads_output,
    leaves,
    merged,
    noise,
    same,
    uniform_weights,
    weights,
)

from lit_transformers.encodings import RotaryConfig, ShawConfig, XLConfig
from lit_transformers.mixers import AttentionConfig, LocalConfig

both_ways = pytest.mark.parametrize("causal", [True, False])


def sees(block: int, causal: bool) -> Sees:
    return lambda h, i, j: i // block == j // block and (j <= i or not causal)


@both_ways
@pytest.mark.parametrize(("block", "length"), [(3, 9), (3, 7), (4, 3), (1, 4), (5, 1)])
def test_a_query_sees_its_own_block_and_nothing_else(block: int, length: int, causal: bool) -> None:
    same(weights(LocalConfig(block=block), length, causal), uniform_weights(sees(block, causal), length, length))


@both_ways
def test_outputs_and_gradients_are_those_of_the_equation_in_each_block(causal: bool) -> None:
    config = LocalConfig(block=3, encoding=ShawConfig(distance=2), bias=True)
    mixer, x = build(config), noise(1, 8, DIM).requires_grad_()
    expected = merged(mixer, heads_output(mixer, x[0], sees(3, causal)))
    agree(mixer(x, context(8, causal)).y[0], expected, leaves(mixer, x))


@both_ways
@pytest.mark.parametrize("encoding", [None, RotaryConfig(), XLConfig(), ShawConfig(distance=2)], ids=str)
def test_a_block_as_long_as_the_sequence_is_dense_attention(causal: bool, encoding: object) -> None:
    local, dense = build(LocalConfig(block=9, encoding=encoding)), build(AttentionConfig(encoding=encoding))
    dense.load_state_dict(local.state_dict())
    x = noise(2, 9, DIM)
    ctx = context(9, causal, rows=2)
    same(local(x, ctx).y, dense(x, ctx).y)


def test_a_block_costs_the_same_wherever_it_stands() -> None:
    """Twice the length, twice the cost."""
    mixer = build(LocalConfig(block=16))
    assert mixer.flops(512, 0) == 2 * mixer.flops(256, 0)
