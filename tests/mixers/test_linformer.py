"""Linformer equals its equations, is plain attention at full rank, shares maps as configured and refuses a past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.config import ConfigError
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixer import Context, LengthError, Shape
from lit_transformers.mixers import AttentionConfig, LinformerConfig
from lit_transformers.mixers.linformer.linformer import Linformer
from lit_transformers.mixers.linformer.projections import LinearProjection, Size, build_projection
from lit_transformers.models import LanguageModelConfig

DIM, HEADS, HEAD_DIM, LENGTH, RANK = 6, 2, 3, 8, 3
SHARINGS = ("none", "heads", "key_value", "layers")


def randomise(layer: Linformer) -> Linformer:
    torch.manual_seed(0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def build(**knobs: Any) -> Linformer:
    torch.manual_seed(0)
    return randomise(LinformerConfig(**{"rank": RANK, **knobs}).build(Shape(DIM, HEADS, LENGTH)).double())


def context(length: int = LENGTH, rows: int = 1, padding_mask: Tensor | None = None) -> Context:
    return Context(torch.arange(length).expand(rows, length), causal=False, padding_mask=padding_mask)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def attention_by_head(
    layer: Linformer, x: Tensor, project_keys: Callable[..., Tensor], project_values: Callable[..., Tensor]
) -> Tensor:
    """softmax(Q project(K)^T / sqrt(k)) project(V) of one sequence x (t, d), one head at a time."""
    outputs = []
    for head in range(HEADS):
        rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        q, k, v = (x @ linear.weight[rows].T for linear in (layer.query, layer.key, layer.value))
        outputs.append((q @ project_keys(k, head).T / HEAD_DIM**0.5).softmax(dim=-1) @ project_values(v, head))
    return torch.cat(outputs, dim=-1) @ layer.merge.weight.T


def matrix(projection: object, head: int, length: int) -> Tensor:
    """E of one head for a sequence of some length."""
    assert isinstance(projection, LinearProjection)
    return projection.weight[min(head, len(projection.weight) - 1), :, :length]


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("length", [1, 5, LENGTH])
def test_outputs_and_gradients_equal_the_equations(sharing: str, length: int) -> None:
    layer, x = build(sharing=sharing), noise(1, length, DIM).requires_grad_()
    expected = attention_by_head(
        layer,
        x[0],
        lambda k, head: matrix(layer.keys, head, length) @ k,
        lambda v, head: matrix(layer.values, head, length) @ v,
    )
    ours, leaves = layer(x, context(length)).y[0], [x, *layer.parameters()]
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=1e-10)
    direction = torch.randn_like(ours)
    gradients = (torch.autograd.grad((y * direction).sum(), leaves) for y in (ours, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("projection", ["linear", "mean", "max", "convolution"])
def test_gradients_are_those_of_differences(projection: str) -> None:
    layer, padding_mask = build(projection=projection), torch.arange(7)[None] < torch.tensor([[7], [4]])
    assert torch.autograd.gradcheck(
        lambda x: layer(x, context(7, 2, padding_mask)).y, noise(2, 7, DIM).requires_grad_()
    )


@pytest.mark.parametrize(("projection", "padded"), [("linear", False), ("mean", False), ("mean", True), ("max", True)])
def test_full_rank_and_an_identity_are_plain_attention(projection: str, padded: bool) -> None:
    layer = build(rank=LENGTH, projection=projection)
    attention = AttentionConfig().build(Shape(DIM, HEADS, LENGTH)).double()
    for part in ("query", "key", "value", "merge"):
        attention.get_submodule(part).load_state_dict(layer.get_submodule(part).state_dict())
    for module in (layer.keys, layer.values):
        if isinstance(module, LinearProjection):
            module.load_state_dict({"weight": torch.eye(LENGTH).expand(HEADS, -1, -1)})
    padding_mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [5 if padded else LENGTH]])
    x, ctx = noise(2, LENGTH, DIM), context(rows=2, padding_mask=padding_mask if padded else None)
    torch.testing.assert_close(layer(x, ctx).y[padding_mask], attention(x, ctx).y[padding_mask], atol=1e-12, rtol=1e-10)


def test_a_causal_model_is_refused_and_the_reason_is_true() -> None:
    """E mixes all positions before any mask could be applied: a triangular one on its rank columns hides nothing."""
    with pytest.raises(
        ConfigError, match=r"mixer: Linformer cannot be causal: .* made of all positions, later ones too"
    ):
        LanguageModelConfig(dim=DIM, heads=HEADS, depth=1, mixer=LinformerConfig()).build(probe_data(11, LENGTH))
    layer, x = build(), noise(LENGTH, DIM).requires_grad_()
    first_key = matrix(layer.keys, 0, LENGTH)[0] @ x @ layer.key.weight[:HEAD_DIM].T
    (gradient,) = torch.autograd.grad(first_key.sum(), x)
    assert gradient.abs().amax(-1).min() > 0, "the one key that such a mask leaves to the first query"


def test_another_sequence_is_refused_with_a_reason() -> None:
    with pytest.raises(ConfigError, match="Linformer cannot be cross: its projections are as long as its own sequence"):
        LinformerConfig().require("cross")


@pytest.mark.parametrize("projection", ["linear", "mean", "max", "convolution"])
def test_padding_is_taken_out_before_anything_is_projected(projection: str) -> None:
    """Biases make keys and values of padding other than zero."""
    layer, x = build(projection=projection, bias=True), noise(1, 7, DIM)
    padding_mask = torch.tensor([[True] * 4 + [False] * 3])
    padded = layer(torch.where(padding_mask[..., None], x, 1e3), context(7, padding_mask=padding_mask)).y[:, :4]
    torch.testing.assert_close(padded, layer(x[:, :4], context(4)).y, atol=1e-12, rtol=1e-10)


def test_a_shorter_sequence_takes_the_first_columns() -> None:
    layer, short_layer, x = build(), LinformerConfig(rank=RANK).build(Shape(DIM, HEADS, 5)).double(), noise(1, 5, DIM)
    weights = layer.state_dict()
    short_layer.load_state_dict({name: part[..., :5] if part.dim() == 3 else part for name, part in weights.items()})
    torch.testing.assert_close(layer(x, context(5)).y, short_layer(x, context(5)).y, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("projection", ["linear", "mean", "max", "convolution"])
def test_a_longer_sequence_is_an_error_that_says_how_long_it_may_be(projection: str) -> None:
    with pytest.raises(LengthError, match="built for 8 positions and reads no 9"):
        build(projection=projection)(noise(1, LENGTH + 1, DIM), context(LENGTH + 1))


def test_a_projection_starts_with_variance_one_over_rank_and_has_no_bias() -> None:
    torch.manual_seed(0)
    projection = build_projection("linear", Size(length=2000, rank=50, heads=4, head_dim=8), frozen=False)
    ((name, weight),) = projection.named_parameters()
    assert name == "weight"
    assert weight.var().item() == pytest.approx(1 / 50, rel=0.02)


def test_projected_keys_are_keys_of_projected_inputs_where_there_is_no_bias() -> None:
    layer, x = build(sharing="heads"), noise(1, LENGTH, DIM)
    ours = layer.keys(layer.key(x).unflatten(-1, (HEADS, HEAD_DIM)), None)
    expected = layer.key(matrix(layer.keys, 0, LENGTH) @ x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize(("sharing", "matrices"), [("none", 288), ("heads", 24), ("key_value", 12), ("layers", 1)])
def test_twelve_layers_of_twelve_heads_have_as_many_matrices_as_the_paper_counts(sharing: str, matrices: int) -> None:
    """Section 4, "parameter sharing between projections"."""
    config, shared = LinformerConfig.from_dict({"kind": "linformer", "sharing": sharing, "rank": 2}), {}
    layers = [config.build(Shape(24, 12, 5, layer, 12, shared)) for layer in range(12)]
    projections = {id(part): part for layer in layers for part in layer.modules() if isinstance(part, LinearProjection)}
    assert sum(len(part.weight) for part in projections.values()) == matrices


def test_keys_and_values_share_a_projection_and_not_their_weights() -> None:
    layer = build(sharing="key_value")
    assert layer.keys is layer.values
    assert not torch.equal(layer.key.weight, layer.value.weight)


def test_every_layer_may_have_a_rank_of_its_own() -> None:
    config, shape = LinformerConfig(rank=(4, 2)), Shape(DIM, HEADS, LENGTH, depth=2)
    layers = [config.build(shape._replace(layer=layer)) for layer in range(2)]
    assert [layer.keys.length_after(LENGTH) for layer in layers] == [4, 2]
    assert layers[0].flops(LENGTH, 0) > layers[1].flops(LENGTH, 0)
    with pytest.raises(ConfigError, match=r"mixer\.rank: 2 values"):
        config.build(shape._replace(depth=3))


def test_frozen_projections_are_kept_with_the_weights_and_do_not_learn() -> None:
    layer = build(frozen=True)
    assert {"keys.weight", "values.weight"} <= layer.state_dict().keys()
    assert {"keys.weight", "values.weight"}.isdisjoint(name for name, _ in layer.named_parameters())


@pytest.mark.parametrize("length", [1, 3, 7, LENGTH])
def test_pooling_takes_the_mean_and_the_largest_of_what_is_real_in_a_window(length: int) -> None:
    """Rank 3 of 8 positions: windows of 3, 3 and 2."""
    padding_mask = torch.rand(length) < 0.7
    padding_mask[0] = True
    windows = [[i for i in range(first, min(first + 3, length)) if padding_mask[i]] for first in range(0, length, 3)]
    windows = [window for window in windows if window]
    x = noise(1, length, DIM)
    for projection, pool in (("mean", lambda k: k.mean(0)), ("max", lambda k: k.amax(0))):
        layer = build(projection=projection)

        def pooled(k: Tensor, head: int, pool: Callable[[Tensor], Tensor] = pool) -> Tensor:
            return torch.stack([pool(k[window]) for window in windows])

        y = layer(x, context(length, padding_mask=padding_mask[None])).y[0]
        torch.testing.assert_close(y[padding_mask], attention_by_head(layer, x[0], pooled, pooled)[padding_mask])


def test_a_convolution_is_that_of_torch_with_kernel_and_stride_of_a_window() -> None:
    layer, x = build(projection="convolution"), noise(1, LENGTH, DIM)

    def convolve(projection: nn.Module, x: Tensor, head: int) -> Tensor:
        weight = projection.get_parameter("weight")[head].permute(2, 1, 0)
        return F.conv1d(F.pad(x, (0, 0, 0, 1)).T, weight, stride=3).T

    expected = attention_by_head(
        layer, x[0], lambda k, head: convolve(layer.keys, k, head), lambda v, head: convolve(layer.values, v, head)
    )
    torch.testing.assert_close(layer(x, context()).y[0], expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"projection": "mean", "sharing": "heads"}, "pooling by mean has no weights to share; write sharing: none"),
        ({"projection": "max", "frozen": True}, "pooling by max has no weights to freeze; write frozen: false"),
        ({"sharing": "layers", "rank": (4, 2)}, "layers that share one projection have one rank"),
        ({"rank": 0}, "rank: "),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        LinformerConfig(**fields)


def test_attention_weights_are_dropped_out_in_training_alone() -> None:
    layer, x = build(dropout=0.5), noise(1, LENGTH, DIM)
    assert torch.equal(layer.eval()(x, context()).y, layer(x, context()).y)
    assert not torch.equal(layer.train()(x, context()).y, layer(x, context()).y)


def test_cost_grows_with_the_length_and_not_with_its_square() -> None:
    layer = build(sharing="layers")
    assert layer.flops(LENGTH, 0) == 2 * layer.flops(LENGTH // 2, 0)
