"""A diet sees few keys in lower layers and more, or more distant ones, in upper ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
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

from lit_transformers.config import ConfigError
from lit_transformers.encodings import EncodingConfig, RotaryConfig, ShawConfig, XLConfig
from lit_transformers.mixers import AttentionConfig, DietConfig

LENGTH, DEPTH = 17, 3
CASES: dict[str, dict[str, Any]] = {
    "dilated": {"pattern": "dilated"},
    "dilated by threes": {"pattern": "dilated", "base": 3, "taps": 2},
    "dilated_memory": {"pattern": "dilated_memory"},
    "dilated_memory by threes": {"pattern": "dilated_memory", "base": 3, "taps": 4},
    "dilated by one": {"pattern": "dilated_memory", "base": 1},
    "cascade": {"pattern": "cascade"},
    "cascade by threes": {"pattern": "cascade", "window": 2, "growth": 3},
}
every_case = pytest.mark.parametrize("name", CASES)


def sees(name: str, layer: int) -> Sees:
    """Section 3 of the paper, with its defaults."""
    knobs = {"base": 2, "taps": 3, "window": 4, "growth": 2} | CASES[name]

    def is_tapped(layer: int, i: int, j: int) -> bool:
        return j in [i - tap * knobs["base"] ** layer for tap in range(knobs["taps"])]

    def is_visible(h: int, i: int, j: int) -> bool:
        match knobs["pattern"]:
            case "dilated":
                return is_tapped(layer, i, j)
            case "dilated_memory":
                return any(is_tapped(below, i, j) for below in range(layer + 1))
            case _:
                return 0 <= i - j < knobs["window"] * knobs["growth"] ** layer

    return is_visible


@every_case
@pytest.mark.parametrize("layer", range(DEPTH))
@pytest.mark.parametrize("length", [1, LENGTH])
def test_a_query_sees_what_its_layer_shows_and_counts_no_key_twice(name: str, layer: int, length: int) -> None:
    """In a cascade the query's own key is one of the window's."""
    attention_weights = weights(DietConfig(**CASES[name]), length, True, layer=layer, depth=DEPTH)
    same(attention_weights, uniform_weights(sees(name, layer), length, length))


@every_case
@pytest.mark.parametrize("layer", range(DEPTH))
def test_outputs_and_gradients_are_those_of_the_paper(name: str, layer: int) -> None:
    config = DietConfig(bias=True, encoding=ShawConfig(distance=3), **CASES[name])
    mixer, x = build(config, layer, DEPTH), noise(1, LENGTH, DIM).requires_grad_()
    expected = merged(mixer, heads_output(mixer, x[0], sees(name, layer)))
    agree(mixer(x, context(LENGTH)).y[0], expected, leaves(mixer, x))


@pytest.mark.parametrize(("knobs", "reach"), [({}, 15), ({"pattern": "dilated_memory"}, 15), ({"taps": 2}, 8)])
def test_layers_reach_as_far_as_those_of_dilated_convolutions(knobs: dict[str, Any], reach: int) -> None:
    """1 + (taps - 1) (1 + 2 + 4) positions through three layers."""
    x = noise(1, 24, DIM).requires_grad_()
    y = x
    for layer in range(DEPTH):
        y = build(DietConfig(**knobs), layer, DEPTH)(y, context(24)).y
    (gradient,) = torch.autograd.grad(y[0, -1].square().sum(), x)
    assert gradient[0].abs().amax(-1).nonzero().squeeze(1).tolist() == list(range(24 - reach, 24))


@pytest.mark.parametrize("encoding", [None, RotaryConfig(), XLConfig(), ShawConfig(distance=2)], ids=str)
@pytest.mark.parametrize("knobs", [{"pattern": "cascade", "window": 9}, {"taps": 9}], ids=str)
def test_as_many_keys_as_the_sequence_has_are_dense_attention(
    encoding: EncodingConfig | None, knobs: dict[str, Any]
) -> None:
    ours, dense = build(DietConfig(encoding=encoding, **knobs)), build(AttentionConfig(encoding=encoding))
    dense.load_state_dict(ours.state_dict())
    x, ctx = noise(2, 9, DIM), context(9, rows=2, padding_mask=torch.arange(9) < torch.tensor([[9], [4]]))
    same(ours(x, ctx).y, dense(x, ctx).y)


@every_case
def test_twice_the_length_costs_twice_as_much(name: str) -> None:
    mixer = build(DietConfig(**CASES[name]), 2, DEPTH)
    assert mixer.flops(65_536, 0) / mixer.flops(32_768, 0) == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize(
    "knobs",
    [{"pattern": "cascade", "base": 2}, {"pattern": "cascade", "taps": 2}, {"window": 4}, {"growth": 2}],
    ids=str,
)
def test_a_knob_of_another_pattern_is_refused(knobs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=" is of "):
        DietConfig(**knobs)
