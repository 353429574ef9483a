"""Levels of weights and inputs against torchao's primitives, at 8 bits by channel and 4 bits by group."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lit_transformers.compression.quantise_weights import rows_of
from lit_transformers.maps import LinearMap
from lit_transformers.quantisation import InputQuantiser, dequantised, levels_of

pytest.importorskip("torchao", reason="torchao is not installed: pip install torchao==0.18.0")

from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
from torchao.quantization.qat import IntxFakeQuantizeConfig, IntxFakeQuantizer
from torchao.quantization.quant_primitives import (
    MappingType,
    choose_qparams_affine,
    dequantize_affine,
    quantize_affine,
)

WEIGHTS = {
    "8 bits by channel": (8, "channel", 96),
    "4 bits by group": (4, "group", 32),
    "4 bits by tensor": (4, "tensor", 0),
}


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("case", WEIGHTS)
def test_levels_of_weights_are_those_of_torchao(case: str, symmetric: bool) -> None:
    bits, granularity, group = WEIGHTS[case]
    matrix = torch.randn(64, 96, generator=torch.Generator().manual_seed(bits))
    block = [64, 96] if granularity == "tensor" else [1, group]
    low, high = (1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1) if symmetric else (0, 2**bits - 1)
    kind = MappingType.SYMMETRIC if symmetric else MappingType.ASYMMETRIC
    choice: dict[str, Any] = {"quant_min": low, "quant_max": high, "eps": 1e-12, "zero_point_dtype": torch.int32}
    scales, _ = choose_qparams_affine(matrix, kind, tuple(block), torch.int32, **choice)
    ours = levels_of(rows_of(matrix, granularity, group), bits, symmetric)  # type: ignore[arg-type]
    larger = ours.scales.flatten() / (scales.flatten() * (2 * high / (high - low) if symmetric else 1))
    assert (larger >= 1 - 1e-6).all() and (larger <= 1 + 2**-11).all(), "but for rounding up to 12 bits"
    shape = scales.shape
    given = (ours.scales.view(shape), ours.zeros.view(shape).int())
    codes = quantize_affine(matrix, tuple(block), *given, torch.int32, low, high)
    assert torch.equal(codes.reshape(ours.codes.shape), ours.codes.int())
    back = dequantize_affine(codes, tuple(block), *given, torch.int32, low, high)
    assert torch.equal(back.reshape(ours.codes.shape), dequantised(ours))


def test_inputs_in_training_are_those_of_torchao_and_so_are_their_gradients() -> None:
    """torchao quantises inputs of training by vector with zero points alone."""
    torch.manual_seed(0)
    fake = IntxFakeQuantizer(IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False))
    inputs = [(torch.randn(4, 6, 96) + 0.5).requires_grad_() for _ in range(2)]
    inputs[1].data.copy_(inputs[0].data)
    slope = torch.randn(4, 6, 96)
    ours, theirs = InputQuantiser(torch.tensor([8.0, 0.0, 1.0, 0.0]))(inputs[0]), fake(inputs[1])
    torch.testing.assert_close(ours, theirs)
    for own, quantised in zip(inputs, (ours, theirs), strict=True):
        (quantised * slope).sum().backward()
        torch.testing.assert_close(own.grad, slope)


@torch.no_grad()
def test_a_map_of_8_bits_computes_what_torchao_computes() -> None:
    torch.manual_seed(0)
    linear, x = LinearMap(96, 64, "up"), torch.randn(5, 11, 96)
    theirs = torch.nn.Sequential(torch.nn.Linear(96, 64))
    theirs[0].load_state_dict(linear.state_dict())
    exact = linear(x)
    quantize_(theirs, Int8DynamicActivationInt8WeightConfig())
    linear.weight.data = dequantised(levels_of(linear.weight.detach(), 8, True))
    linear.quantiser = InputQuantiser(torch.tensor([8.0, 0.0, 1.0]))
    error = (linear(x) - exact).abs().mean()
    assert 0 < error < 0.01 and (linear(x) - theirs(x)).abs().mean() < 2 * error
    assert float((theirs(x) - exact).abs().mean()) == pytest.approx(float(error), rel=0.2)
