"""Uniform levels of numbers, and linear maps whose inputs are quantised: simulated, or by int8 products of oneDNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import torch
from jaxtyping import Float, Int, Int8
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


class Int8Weights(NamedTuple):
    """The weights and the bias of an int8 product. packed: the codes (o, i) in the layout of oneDNN. scales (o,), zeros
    (o,): the scale and the zero point, 0, of each channel. sums (o,): of the codes of each channel."""

    packed: Any
    scales: Float[Tensor, " o"]
    zeros: Int[Tensor, " o"]
    sums: Float[Tensor, " o"]
    bias: Float[Tensor, " o"] | None

    @classmethod
    def of(cls, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Self:
        """Packs the weights and biases of linear maps with the same inputs. Raises ConfigError where ``int8_levels``
        does."""
        codes, scales = (
            torch.cat(parts) for parts in zip(*(int8_levels(weight.float()) for weight in weights), strict=True)
        )
        packed, zeros = torch.ops.onednn.qlinear_prepack(codes, None), torch.zeros(len(codes), dtype=torch.int64)
        bias = torch.cat([bias.detach().float() for bias in biases]) if biases else None
        return cls(packed, scales, zeros, codes.sum(dim=1).float(), bias)

    def product(self, codes: Int8[Tensor, "n i"], scales: Float[Tensor, " o"]) -> Float[Tensor, "n o"]:
        """Returns the products of the codes of inputs and weights, times scales. Sums are exact: no row changes
        another."""
        form: tuple[Any, ...] = (1.0, 0, self.packed, scales, self.zeros, None, 1.0, 0, torch.float32, "none", [], "")
        y: Tensor = torch.ops.onednn.qlinear_pointwise(codes, *form)
        return y


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
    quantised numbers in float32; ``int8`` multiplies their codes by oneDNN's int8 product, whose sums are exact.
    """

    form: Tensor

    def __init__(self, form: Float[Tensor, " f"]) -> None:
        super().__init__()
        self.register_buffer("form", form)
        self.execution: Execution = "simulated"
        bits, scale, self.by_row, *zero = form.tolist()
        self.bits, self.is_fixed, self.is_symmetric = int(bits), scale > 0, not zero
        self.lowest, self.highest = codes_within(self.bits, self.is_symmetric)
        self._packed: dict[int, tuple[tuple[tuple[int, int], ...], Int8Weights]] = {}

    def shares_codes(self, other: InputQuantiser) -> bool:
        """Whether both give the same inputs the same codes for an int8 product."""
        forms = [(own.execution, own.bits, own.is_fixed, own.by_row, own.is_symmetric) for own in (self, other)]
        return forms[0] == forms[1] and self.execution == "int8" and not self.is_fixed

    def scaling(self, x: Float[Tensor, "*n i"]) -> Scaling:
        """Returns the scales and zero points of vectors or of all inputs."""
        if self.is_fixed:
            return Scaling(self.form[1], NO_ZEROS if self.is_symmetric else self.form[3])
        low, high = (x.amin(dim=-1, keepdim=True), x.amax(dim=-1, keepdim=True)) if self.by_row else x.aminmax()
        if self.is_symmetric:
            return Scaling(torch.maximum(high, -low).div_(self.highest).clamp_(min=SMALLEST), NO_ZEROS)
        return Scaling(*scales_and_zeros(low, high, self.lowest, self.highest))

    def levels(self, x: Float[Tensor, "*n i"]) -> Levels:
        """Returns the level of each input, with its scale and zero point."""
        x = full_precision(x.detach())
        scales, zeros = self.scaling(x)
        codes = (x / scales).round_()
        codes = codes if self.is_symmetric else codes.add_(zeros)
        may_exceed = self.is_fixed or not self.is_symmetric
        return Levels(codes.clamp_(self.lowest, self.highest) if may_exceed else codes, scales, zeros)

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n i"]:
        codes, scales, zeros = self.levels(x)
        quantised = (codes * scales if self.is_symmetric else (codes - zeros) * scales).to(x.dtype)
        return quantised + (x - x.detach()) if x.requires_grad and torch.is_grad_enabled() else quantised

    def product(
        self, x: Float[Tensor, "*n i"], weights: Sequence[Float[Tensor, "o i"]], biases: Sequence[Float[Tensor, " o"]]
    ) -> Float[Tensor, "*n s"]:
        """Returns W x + b of linear maps with the same inputs, end to end (s is the sum of their o), computed from the
        codes of inputs and weights. biases: none, or one of each map. Raises ConfigError where weights have no codes.
        """
        if x.device.type != "cpu":
            raise ConfigError(f"the int8 product is of the CPU, and this is {x.device}; set simulated", "execution")
        packed = self._packed_of(weights, biases)
        rows = x.flatten(end_dim=-2).float()
        levels = self.levels(rows)
        codes = torch.empty(rounded_count(len(rows)), rows.size(1), dtype=torch.int8)
        codes[: len(rows)] = levels.codes
        if self.is_symmetric:
            y = packed.product(codes, packed.scales)[: len(rows)]
        else:  # zero points are subtracted from sums of codes, which are exact
            sums = packed.product(codes, torch.ones_like(packed.scales))[: len(rows)]
            y = sums.addcmul_(levels.zeros, packed.sums, value=-1).mul_(packed.scales)
        y = y.mul_(levels.scales) if packed.bias is None else torch.addcmul(packed.bias, y, levels.scales, out=y)
        return y.to(x.dtype).unflatten(0, x.shape[:-1])

    def _packed_of(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Int8Weights:
        places = tuple((tensor.data_ptr(), tensor._version) for tensor in (*weights, *biases))
        if len(weights) not in self._packed or self._packed[len(weights)][0] != places:
            self._packed[len(weights)] = places, Int8Weights.of(weights, biases)
        return self._packed[len(weights)][1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": {}}  # weights in the layout of oneDNN cannot be copied


def rounded_count(rows: int) -> int:
    """Returns the number of rows that an int8 product reads for a number of them: at most an eighth more, or the next
    multiple of 16. oneDNN compiles a product for each number of rows, and this takes as long as a product of few."""
    step = max(16, 1 << max(rows - 1, 0).bit_length() >> 4)
    return -(-rows // step) * step


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
