"""Factorised attention sees its two patterns, in each of the three ways that heads may meet them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_patterns import (
    DIM,
    HEADS,
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
from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.encodings import EncodingConfig, RotaryConfig, ShawConfig, XLConfig
from lit_transformers.mixer import Shape
from lit_transformers.mixers import AttentionConfig, SparseConfig

LENGTH = 13
PATTERNS: dict[str, dict[str, Any]] = {
    "strided": {"pattern": "strided", "block": 3},
    "strided wide": {"pattern": "strided", "block": 5},
    "fixed": {"pattern": "fixed", "block": 4, "summary": 1},
    "fixed wide": {"pattern": "fixed", "block": 5, "summary": 2},
}
every_pattern = pytest.mark.parametrize("name", PATTERNS)
every_way = pytest.mark.parametrize("heads", ["layers", "merged", "halves"])


def sees_first_pattern(name: str, i: int, j: int) -> bool:
    """A1 of sections 4.2 and 4.3."""
    block = PATTERNS[name]["block"]
    in_pattern = i - j <= block if PATTERNS[name]["pattern"] == "strided" else i // block == j // block
    return in_pattern and j <= i


def sees_second_pattern(name: str, i: int, j: int) -> bool:
    """A2; of the fixed pattern with the query itself, as our docstring says."""
    block = PATTERNS[name]["block"]
    if PATTERNS[name]["pattern"] == "strided":
        return (i - j) % block == 0 and j <= i
    return (j % block >= block - PATTERNS[name]["summary"] or i == j) and j <= i


def sees(name: str, heads: str, layer: int) -> Sees:
    """Equations 6 to 8."""

    def is_visible(h: int, i: int, j: int) -> bool:
        match heads:
            case "layers":
                return (sees_first_pattern, sees_second_pattern)[layer % 2](name, i, j)
            case "merged":
                return sees_first_pattern(name, i, j) or sees_second_pattern(name, i, j)
            case _:
                return (sees_first_pattern, sees_second_pattern)[h](name, i, j)

    return is_visible


@every_pattern
@every_way
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("length", [1, LENGTH])
def test_a_query_sees_its_two_patterns_and_counts_no_key_twice(name: str, heads: Any, layer: int, length: int) -> None:
    """T-SP4: summaries of the query's own block that lie in its future are not seen."""
    config = SparseConfig(heads=heads, **PATTERNS[name])
    attention_weights = weights(config, length, True, layer=layer, depth=2)
    same(attention_weights, uniform_weights(sees(name, heads, layer), length, length))


@every_pattern
@every_way
@pytest.mark.parametrize("layer", [0, 1])
def test_outputs_and_gradients_are_those_of_the_paper(name: str, heads: Any, layer: int) -> None:
    config = SparseConfig(heads=heads, bias=True, encoding=ShawConfig(distance=3), **PATTERNS[name])
    mixer, x = build(config, layer, 2), noise(1, LENGTH, DIM).requires_grad_()
    expected = merged(mixer, heads_output(mixer, x[0], sees(name, heads, layer)))
    agree(mixer(x, context(LENGTH)).y[0], expected, leaves(mixer, x))


def test_a_strided_window_is_as_many_keys_as_the_stride_and_the_query() -> None:
    """T-SP2: the released code counts the query among them."""
    row = weights(SparseConfig(block=4, heads="layers"), 12, True)[0, 10]
    assert row.nonzero().squeeze(1).tolist() == [6, 7, 8, 9, 10]


def test_the_last_eighth_of_a_block_is_its_summary_unless_told() -> None:
    config = SparseConfig(pattern="fixed", block=16, heads="layers")
    same(
        weights(config, 20, True, layer=1, depth=2),
        weights(config.override({"summary": 2}), 20, True, layer=1, depth=2),
    )


def test_in_an_image_the_strided_pattern_reads_the_column_above_and_the_fixed_one_the_ends_of_rows() -> None:
    """T-SP1, why one of them wins on periodic data and the other on text: here a picture of 5 rows of 4."""
    strided, fixed = (
        weights(SparseConfig(pattern=pattern, block=4, heads="layers"), 20, True, layer=1, depth=2)[0, 18]
        for pattern in ("strided", "fixed")
    )
    assert strided.nonzero().squeeze(1).tolist() == [2, 6, 10, 14, 18]
    assert fixed.nonzero().squeeze(1).tolist() == [3, 7, 11, 15, 18]


@given(
    block=st.integers(1, 9),
    summary=st.integers(1, 9),
    length=st.integers(1, 40),
    strided=st.booleans(),
    one=st.booleans(),
)
@settings(max_examples=80)
def test_in_two_steps_every_position_reaches_every_later_one(
    block: int, summary: int, length: int, strided: bool, one: bool
) -> None:
    """T-SP6, over the patterns that the layers declare: a layer of A1 below one of A2, and two merged layers."""
    knobs: dict[str, Any] = {"block": block} if strided else {"block": block, "summary": min(summary, block)}
    config = SparseConfig(pattern="strided" if strided else "fixed", heads="merged" if one else "layers", **knobs)
    i, j = torch.arange(length)[:, None], torch.arange(length)

    def mask(layer: int) -> Tensor:
        mixer = config.build(Shape(DIM, HEADS, 64, layer, 2))
        parts = mixer.bands or mixer.patterns[:1]
        masks = [part.sees(torch.zeros(()), torch.zeros(()), i, j).expand(length, length) for part in parts]
        return torch.stack(masks).any(dim=0).double()

    assert torch.equal(mask(1) @ mask(0) > 0, j <= i)


@every_pattern
@every_way
def test_through_two_layers_the_last_position_hears_all(name: str, heads: Any) -> None:
    """T-SP6, in gradients."""
    config, x = SparseConfig(heads=heads, **PATTERNS[name]), noise(1, 30, DIM).requires_grad_()
    y = x
    for layer in range(2):
        y = build(config, layer, 2)(y, context(30)).y
    (gradient,) = torch.autograd.grad(y[0, -1].square().sum(), x)
    assert gradient[0].abs().amax(-1).min() > 0


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
@pytest.mark.parametrize("encoding", [None, RotaryConfig(), XLConfig(), ShawConfig(distance=2)], ids=str)
def test_a_block_as_long_as_the_sequence_is_dense_attention(pattern: Any, encoding: EncodingConfig | None) -> None:
    ours = build(SparseConfig(pattern=pattern, block=9, encoding=encoding))
    dense = build(AttentionConfig(encoding=encoding))
    dense.load_state_dict(ours.state_dict())
    x, ctx = noise(2, 9, DIM), context(9, rows=2, padding_mask=torch.arange(9) < torch.tensor([[9], [4]]))
    same(ours(x, ctx).y, dense(x, ctx).y)


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
@every_way
def test_what_is_not_seen_is_not_computed(pattern: Any, heads: Any) -> None:
    """T-SP3: of 16,384 keys a query needs 256 or so. That the FLOPs are those counted, the contract tests show."""
    shape, length = Shape(DIM, HEADS, 64), 16_384
    sparse = SparseConfig(pattern=pattern, block=128, summary=8 if pattern == "fixed" else None, heads=heads)
    ours, dense = sparse.build(shape), AttentionConfig().build(shape)
    sparse_flops, dense_flops = (
        mixer.flops(length, 0) - mixer.projection_flops(length, length) for mixer in (ours, dense)
    )
    assert sparse_flops < dense_flops / 10


@every_way
@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_in_half_precision_the_softmax_is_in_single(heads: Any, pattern: Any) -> None:
    """T-SP5: a mean over 600 keys of equal scores, which sums of bfloat16 would miss by more than its own rounding."""
    mixer = build(SparseConfig(pattern=pattern, block=600, heads=heads)).float()
    torch.nn.init.zeros_(mixer.query.weight)
    x = 1 + torch.rand(1, 600, DIM)
    exact = mixer(x, context(600)).y[:, -1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = mixer(x, context(600)).y[:, -1]
    torch.testing.assert_close(y.float(), exact, atol=0.02 * exact.abs().max().item(), rtol=0)


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"summary": 4}, "a strided one has none"),
        ({"pattern": "fixed", "block": 4, "summary": 5}, "longer than block"),
    ],
)
def test_what_contradicts_itself_is_refused(knobs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        SparseConfig(**knobs)


def test_one_head_has_no_halves() -> None:
    with pytest.raises(ConfigError, match=r"mixer\.heads: one head has no halves"):
        SparseConfig(heads="halves").build(Shape(DIM, 1, 64))
