"""Uniform levels of numbers, and linear maps whose inputs are quantised: simulated, or by the int8 product of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from lit_transformers.config import ConfigError

__all__ = [
    "FORM",
    "Execution",
    "InputQuantiser",
    "Levels",
    "dequantised",
    "has_int8_product",
    "int8_levels",
    "levels_of",
    "most_level",
    "restore_quantisers",
]

Execution = Literal["simulated", "int8"]
SCALE_BITS = 12
"""The significant bits of a scale of weights. A product of a scale and a level of up to 8 bits is then exact in
float32, so that packed weights are read back to the bit."""

FORM = "quantiser.form"
"""The name of the tensor of an ``InputQuantiser`` in a linear map."""


class Levels(NamedTuple):
    """codes (r, n): the level of each number. scales (r, 1), zeros (r, 1): of each row of numbers with one scale."""

    codes: Tensor
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
    """Replaces the inputs of a linear map by the nearest of uniform levels around 0, with a scale for each vector, for
    the whole tensor, or a fixed one. Beyond the last level of a fixed scale, inputs become this level.

    form (3,): all that decides its numbers, as a checkpoint holds it: the bits; the fixed scale, or 0; and 1 for scales
    by vector, or 0. execution: ``simulated`` multiplies quantised numbers in float32; ``int8`` multiplies their codes
    by torch's int8 product, whose sums are exact.
    """

    def __init__(self, form: Float[Tensor, " 3"]) -> None:
        super().__init__()
        self.register_buffer("form", form)
        self.execution: Execution = "simulated"
        bits, self.scale, self.by_row = form.tolist()
        self.most = most_level(int(bits))
        self._levels: tuple[tuple[int, int], Tensor, Tensor] | None = None

    def codes(self, x: Float[Tensor, "*n i"]) -> tuple[Float[Tensor, "*n i"], Tensor | float]:
        """Returns the level of each input, and the scales by which levels are multiplied."""
        scales: Tensor | float = self.scale
        if not self.scale:
            largest = x.abs().amax(dim=-1, keepdim=True) if self.by_row else x.abs().amax()
            scales = torch.where(largest > 0, largest / self.most, 1.0)
        codes = (x / scales).round_()
        return codes.clamp_(-self.most, self.most) if self.scale else codes, scales

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n i"]:
        codes, scales = self.codes(x)
        return codes * scales

    def product(
        self, x: Float[Tensor, "*n i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None
    ) -> Float[Tensor, "*n o"]:
        """Returns W x + b, computed from the codes of both. Raises ConfigError where the weights have none."""
        if x.device.type != "cpu":
            raise ConfigError(f"the int8 product is of the CPU, and this is {x.device}; set simulated", "execution")
        place = (weight.data_ptr(), weight._version)
        if self._levels is None or self._levels[0] != place:
            self._levels = (place, *int8_levels(weight))
        _, weights, of_channels = self._levels
        codes, scales = self.codes(x.flatten(end_dim=-2))
        y = torch._int_mm(codes.to(torch.int8), weights.mT).to(x.dtype).mul_(scales)
        y = y.mul_(of_channels) if bias is None else torch.addcmul(bias, y, of_channels)
        return y.unflatten(0, x.shape[:-1])


def restore_quantisers(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Gives the linear maps of a module the quantisers of their inputs that its checkpoint holds."""
    forms = {name.removesuffix(f".{FORM}"): form for name, form in tensors.items() if name.endswith(f".{FORM}")}
    for name, linear in module.named_modules(remove_duplicate=False) if forms else ():
        if name in forms:
            linear.quantiser = InputQuantiser(forms[name].clone())
