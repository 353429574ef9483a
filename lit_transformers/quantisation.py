"""Uniform levels of numbers, and linear maps whose inputs are quantised: simulated, or by the int8 product of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from lit_transformers.config import ConfigError
from lit_transformers.precision import full_precision

__all__ = [
    "FORM",
    "Execution",
    "InputQuantiser",
    "Levels",
    "dequantised",
    "form_of",
    "has_int8_product",
    "int8_levels",
    "levels_of",
    "restore_quantisers",
]

Execution = Literal["simulated", "int8"]
SCALE_BITS = 12
"""The significant bits of a scale of weights. A product of a scale and a level of up to 8 bits is then exact in
float32, so that packed weights are read back to the bit."""

SMALLEST = 1e-30
"""The smallest scale, of inputs that are all 0."""
NO_ZEROS = torch.zeros(())
"""The zero points of symmetric levels, which nothing reads."""

BLOCK = 256
"""The inputs of an int8 product that are computed together: their codes and products then stay in the cache."""

FORM = "quantiser.form"
"""The name of the tensor of an ``InputQuantiser`` in a linear map."""


class Levels(NamedTuple):
    """codes (r, n): the level of each number. scales (r, 1), zeros (r, 1): of each row of numbers with one scale."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor


class Scaling(NamedTuple):
    """scales, zeros (r, 1) or (): of each row of inputs, or of all."""

    scales: Tensor
    zeros: Tensor


def levels_of(rows: Float[Tensor, "r n"], bits: int, symmetric: bool) -> Levels:
    """Returns the nearest levels of weights, with a scale and a zero point for each row."""
    if symmetric:
        most = most_level(bits)
        scales = rounded_up(rows.abs().amax(dim=1, keepdim=True) / most)
        codes = (rows / scales).round().clamp(-most, most)
        return Levels(codes, scales, torch.zeros_like(scales))
    most = 2**bits - 1
    low, high = rows.amin(dim=1, keepdim=True).clamp(max=0), rows.amax(dim=1, keepdim=True).clamp(min=0)
    scales = rounded_up((high - low) / most)
    zeros = (-low / scales).round()
    return Levels((rows / scales).round().add(zeros).clamp(0, most), scales, zeros)


def most_level(bits: int) -> int:
    """Returns the greatest magnitude of a symmetric level."""
    return 2 ** (bits - 1) - 1


def rounded_up(scales: Float[Tensor, "r 1"]) -> Float[Tensor, "r 1"]:
    """Returns scales rounded up to ``SCALE_BITS`` significant bits, so that no weight lies beyond the last level; 1 for
    rows of zeros."""
    fraction, exponent = torch.frexp(scales)
    rounded = torch.ldexp((fraction * 2**SCALE_BITS).ceil() / 2**SCALE_BITS, exponent)
    return torch.where(scales > 0, rounded, torch.ones_like(scales))


def dequantised(levels: Levels) -> Float[Tensor, "r n"]:
    """Returns the weights that levels stand for; none is a negative zero."""
    return (levels.codes - levels.zeros) * levels.scales + 0.0


def has_int8_product() -> bool:
    """Whether this processor multiplies vectors of int8 by one instruction (AVX-512 VNNI)."""
    return bool(torch.cpu._is_vnni_supported())


def int8_levels(weight: Float[Tensor, "o i"]) -> tuple[Int8[Tensor, "o i"], Float[Tensor, " o"]]:
    """Returns the codes and scales whose products are the weights, to the bit. Raises ConfigError where weights are not
    of symmetric levels of 8 bits with a scale for each row."""
    levels = levels_of(weight.detach(), 8, True)
    if not torch.equal(dequantised(levels), weight):
        way_out = "put quantise_weights with bits: 8 before, or set execution: simulated"
        raise ConfigError(f"the int8 product needs symmetric weights of 8 bits by channel; {way_out}", "execution")
    return levels.codes.to(torch.int8), levels.scales.flatten()


class InputQuantiser(nn.Module):
    """Replaces the inputs of a linear map by the nearest of uniform levels, with a scale for each vector, for the whole
    tensor, or a fixed one. Symmetric levels have 0 in their middle; others extend from the smallest input to the
    largest, 0 included, and have a zero point: the code of 0. Beyond the last level of a fixed scale, inputs become
    this level. Gradients pass as if inputs were not quantised (the straight-through estimator, arXiv:1308.3432).

    form (3,) or (4,): all that decides its numbers, as a checkpoint holds it: the bits; the fixed scale, or 0; 1 for
    scales by vector, or 0; and for levels with a zero point, the fixed one, or 0. execution: ``simulated`` multiplies
    quantised numbers in float32; ``int8`` multiplies their codes by torch's int8 product, whose sums are exact.
    """

    form: Tensor

    def __init__(self, form: Float[Tensor, " f"]) -> None:
        super().__init__()
        self.register_buffer("form", form)
        self.execution: Execution = "simulated"
        bits, scale, self.by_row, *zero = form.tolist()
        self.bits, self.is_fixed, self.is_symmetric = int(bits), scale > 0, not zero
        self.lowest, self.highest = codes_within(self.bits, self.is_symmetric)
        self._weights: tuple[tuple[int, int], Tensor, Tensor, Tensor] | None = None

    def scaling(self, x: Float[Tensor, "*n i"]) -> Scaling:
        """Returns the scales and zero points of vectors or of all inputs."""
        if self.is_fixed:
            return Scaling(self.form[1], NO_ZEROS if self.is_symmetric else self.form[3])
        if self.is_symmetric:
            largest = x.abs().amax(dim=-1, keepdim=True) if self.by_row else x.abs().amax()
            return Scaling(largest.div_(self.highest).clamp_(min=SMALLEST), NO_ZEROS)
        low, high = (x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)) if self.by_row else x.aminmax()
        return Scaling(*scales_and_zeros(low, high, self.lowest, self.highest))

    def levels(self, x: Float[Tensor, "*n i"], scaling: Scaling | None = None) -> Levels:
        """Returns the level of each input, with its scale and zero point. scaling: those of inputs of which x is a
        part; None where x is all."""
        x = full_precision(x.detach())
        scales, zeros = self.scaling(x) if scaling is None else scaling
        codes = (x / scales).round_()
        codes = codes if self.is_symmetric else codes.add_(zeros)
        may_exceed = self.is_fixed or not self.is_symmetric
        return Levels(codes.clamp_(self.lowest, self.highest) if may_exceed else codes, scales, zeros)

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n i"]:
        codes, scales, zeros = self.levels(x)
        quantised = (codes * scales if self.is_symmetric else (codes - zeros) * scales).to(x.dtype)
        return quantised + (x - x.detach()) if x.requires_grad and torch.is_grad_enabled() else quantised

    def product(
        self, x: Float[Tensor, "*n i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None
    ) -> Float[Tensor, "*n o"]:
        """Returns W x + b, computed from the codes of both. Raises ConfigError where the weights have none."""
        if x.device.type != "cpu":
            raise ConfigError(f"the int8 product is of the CPU, and this is {x.device}; set simulated", "execution")
        place = (weight.data_ptr(), weight._version)
        if self._weights is None or self._weights[0] != place:
            codes, scales = int8_levels(weight)
            self._weights = (place, codes, scales, codes.sum(dim=1, dtype=torch.int32))
        _, weights, of_channels, sums_of_codes = self._weights
        rows = x.flatten(end_dim=-2)
        scaling = None if self.by_row or self.is_fixed else self.scaling(full_precision(rows.detach()))
        y = rows.new_empty(len(rows), len(weight), dtype=full_precision(rows[:0]).dtype)
        parts = [(rows, y)] if len(rows) <= BLOCK else zip(rows.split(BLOCK), y.split(BLOCK), strict=True)
        for part, of_part in parts:
            inputs = self.levels(part, scaling)
            products = torch._int_mm(inputs.codes.to(torch.int8), weights.mT)
            if not self.is_symmetric:
                products -= inputs.zeros.to(torch.int32) * sums_of_codes
            torch.mul(products, inputs.scales, out=of_part)
            if bias is None:
                of_part.mul_(of_channels)
            else:
                torch.addcmul(bias.detach(), of_part, of_channels, out=of_part)
        return y.to(x.dtype).unflatten(0, x.shape[:-1])


def codes_within(bits: int, symmetric: bool) -> tuple[int, int]:
    """Returns the lowest and the highest code of inputs, both of int8 for at most 8 bits."""
    highest = most_level(bits)
    return (-highest, highest) if symmetric else (-highest - 1, highest)


def scales_and_zeros(low: Tensor, high: Tensor, lowest: int, highest: int) -> tuple[Tensor, Tensor]:
    """Returns the scales and zero points of levels with the given codes from low to high, 0 included."""
    low, high = low.clamp(max=0), high.clamp(min=0)
    scales = torch.where(high > low, (high - low) / (highest - lowest), 1.0)
    return scales, lowest - (low / scales).round()


def form_of(bits: int, by_row: bool, symmetric: bool, reach: tuple[float, float] | None) -> Float[Tensor, " f"]:
    """Returns the form of an ``InputQuantiser``. reach: how far its inputs reach below and above 0, for fixed scales;
    None for those of each pass."""
    scale, zero = torch.zeros(()), torch.zeros(())
    lowest, highest = codes_within(bits, symmetric)
    if reach is not None and symmetric:
        scale = torch.tensor(max(reach) / highest)
    elif reach is not None:
        scale, zero = scales_and_zeros(torch.tensor(-reach[0]), torch.tensor(reach[1]), lowest, highest)
    form = torch.stack([torch.tensor(float(bits)), scale, torch.tensor(float(by_row)), zero])
    return form[:3] if symmetric else form


def restore_quantisers(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Gives the linear maps of a module the quantisers of their inputs that its checkpoint holds."""
    forms = {name.removesuffix(f".{FORM}"): form for name, form in tensors.items() if name.endswith(f".{FORM}")}
    for name, linear in module.named_modules(remove_duplicate=False) if forms else ():
        if name in forms:
            linear.quantiser = InputQuantiser(forms[name].clone())
