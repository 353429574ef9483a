"""Feed-forwards: gates are their equations, pieces are the whole, convolutions look where they may."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from allocations import Allocations
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.config import ConfigError
from lit_transformers.mixer import Context, Shape
from lit_transformers.models import LanguageModelConfig
from lit_transformers.stacks.feedforward import (
    Activation,
    FeedForwardConfig,
    SeparableConvolutionConfig,
    TransitionConfig,
)

DIM, LENGTH = 6, 9


def built(config: TransitionConfig, dim: int = DIM) -> Any:
    torch.manual_seed(0)
    return config.build(Shape(dim, 1, LENGTH)).double()


def context(length: int = LENGTH, causal: bool = True, padding_mask: Tensor | None = None) -> Context:
    return Context(torch.arange(length)[None], causal, padding_mask)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


GATED: dict[Activation, Callable[[Tensor], Tensor]] = {
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),  # GLU
    "identity": lambda x: x,  # Bilinear
    "relu": lambda x: x.clamp(min=0),  # ReGLU
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,  # GEGLU
    "silu": lambda x: x / (1 + (-x).exp()),  # SwiGLU
}


@pytest.mark.parametrize("name", GATED)
def test_a_gated_feed_forward_is_its_equation(name: Activation) -> None:
    """(act(x W) * x V) W_2, arXiv:2002.05202, equation 6."""
    layer, x = built(FeedForwardConfig(gated=True, activation=name, bias=False, width=5)), noise(1, LENGTH, DIM)
    w, v, w_2 = (part.weight.T for part in (layer.widen, layer.gate, layer.narrow))
    expected = (GATED[name](x @ w) * (x @ v)) @ w_2
    torch.testing.assert_close(layer(x, context()).y, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dim", [6, 64, 512])
def test_a_gate_takes_its_parameters_from_the_width_unless_that_is_given(dim: int) -> None:
    """Three matrices of 8/3 dim have as many weights as two of 4 dim, up to the remainder of a division by three."""
    ungated, gated, gated_wide = (
        sum(p.numel() for p in built(config, dim).parameters())
        for config in (
            FeedForwardConfig(bias=False),
            FeedForwardConfig(gated=True, bias=False),
            FeedForwardConfig(gated=True, bias=False, width=4 * dim),
        )
    )
    assert 0 <= ungated - gated < 3 * dim and gated_wide == 3 * ungated // 2


def test_a_flat_feed_forward_is_as_wide_as_the_model() -> None:
    """The flattened one of arXiv:2004.11886: a quarter of the usual parameters and products."""
    flat, wide = built(FeedForwardConfig(width=DIM, bias=False)), built(FeedForwardConfig(bias=False))
    assert 4 * flat.flops(LENGTH) == wide.flops(LENGTH)
    assert flat.widen.weight.shape == flat.narrow.weight.shape == (DIM, DIM)


def gradients(layer: Any, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x, context(x.size(1))).y
    return [y.detach(), *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("chunks", [2, 3, LENGTH, LENGTH + 5])
@pytest.mark.parametrize("gated", [False, True])
def test_pieces_are_the_whole(chunks: int, gated: bool) -> None:
    unchunked, chunked = built(FeedForwardConfig(gated=gated)), built(FeedForwardConfig(gated=gated, chunks=chunks))
    chunked.load_state_dict(unchunked.state_dict())
    x = noise(2, LENGTH, DIM)
    for gradient, expected in zip(gradients(chunked, x), gradients(unchunked, x), strict=True):
        torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(chunked(x, context()).y, unchunked(x, context()).y, atol=1e-12, rtol=1e-12)


def test_pieces_drop_the_same_channels_in_both_computations() -> None:
    layer, x = built(FeedForwardConfig(chunks=3, dropout=0.5)), noise(1, LENGTH, DIM).requires_grad_()

    def from_one_seed(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        y: Tensor = layer(x, context()).y
        return y

    assert torch.autograd.gradcheck(from_one_seed, x)


def test_more_pieces_take_less_memory() -> None:
    """A hidden layer 16 times as wide as the model, forward and backward: one piece of it at a time is held."""

    def peak(chunks: int) -> int:
        layer = built(FeedForwardConfig(width=16 * DIM, chunks=chunks)).requires_grad_(False)
        x = noise(1, 4096, DIM).requires_grad_()
        with Allocations() as allocations:
            layer(x, context(4096)).y.sum().backward()
        return allocations.peak

    unchunked_peak, few_chunks_peak, many_chunks_peak = peak(1), peak(4), peak(64)
    assert few_chunks_peak < 0.4 * unchunked_peak and many_chunks_peak < 0.5 * few_chunks_peak


def attention_summary(weights: Tensor, x: Tensor, left_padding: int) -> Tensor:
    """A depthwise convolution (d, 1, k) of one row (t, d), tap by tap; ``left_padding`` of the taps look back."""
    y = torch.zeros_like(x)
    for t in range(x.size(0)):
        for tap in range(weights.size(-1)):
            s = t + tap - left_padding
            if 0 <= s < x.size(0):
                y[t] += weights[:, 0, tap] * x[s]
    return y


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernels", [(3, 5), (1, 1), (2, 4), (7, 12)])
@pytest.mark.parametrize("real", [LENGTH, 4])
def test_a_separable_convolution_is_its_sum_over_taps(causal: bool, kernels: tuple[int, int], real: int) -> None:
    layer, x = built(SeparableConvolutionConfig(kernels=kernels)), noise(1, LENGTH, DIM)
    y = layer(x, context(causal=causal, padding_mask=torch.arange(LENGTH)[None] < real)).y[0, :real]
    left = [kernel - 1 if causal else (kernel - 1) // 2 for kernel in kernels]
    row = attention_summary(layer.first.weight, x[0, :real], left[0])
    hidden = F.relu(row @ layer.widen.weight.T + layer.widen.bias)
    expected = attention_summary(layer.second.weight, hidden, left[1]) @ layer.narrow.weight.T + layer.narrow.bias
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-12)


def test_a_causal_convolution_remembers_as_far_as_it_looks_and_the_other_nothing() -> None:
    layer, x = built(SeparableConvolutionConfig(kernels=(3, 5), width=7)), noise(2, LENGTH, DIM)
    state = layer(x, context()).state
    assert {name: part.shape for name, part in state.items()} == {"input": (2, 2, DIM), "hidden": (2, 4, 7)}
    assert layer(x, context(causal=False)).state is None


def test_kernels_that_look_at_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"kernels\.1: input should be greater than or equal to 1; got 0"):
        SeparableConvolutionConfig(kernels=(3, 0))


@pytest.mark.parametrize("name", ["dense", "separable_convolution"])
def test_a_kind_is_chosen_by_its_name(name: str) -> None:
    assert LanguageModelConfig.from_dict({"kind": "language_model", "feedforward": name}).feedforward.kind == name
