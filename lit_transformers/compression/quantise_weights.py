"""Quantisation of weights to 2 to 8 bits: uniform levels, symmetric or not, for a tensor, a channel or a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, NamedTuple, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from lit_transformers.compression.compression import (
    Compression,
    CompressionConfig,
    Matrices,
    matrices_of,
    require_whole_groups,
)
from lit_transformers.config import Positive

__all__ = ["Levels", "QuantiseWeightsConfig", "dequantised", "levels_of", "rows_of"]

Granularity = Literal["tensor", "channel", "group"]
SCALE_BITS = 12
"""The significant bits of a scale. A product of a scale and a level of up to 8 bits is then exact in float32, so that
packed weights are read back to the bit."""


@final
class QuantiseWeightsConfig(CompressionConfig, kind="quantise_weights"):
    """Replaces each weight by the nearest of 2^bits uniform levels: w = s (q - z), with an integer q, a scale s and a
    zero point z (Jacob et al. 2017, arXiv:1712.05877, equation 1).

    bits: of a weight. granularity: the weights that share a scale: the tensor, each row of the matrix (the channel of
    an output, or the vector of a symbol), or each ``group`` of neighbouring weights in a row. symmetric: levels
    -(2^(bits-1) - 1) to 2^(bits-1) - 1 around a zero point of 0, scaled to the largest magnitude; if false, 2^bits
    levels from the smallest weight to the largest, 0 included. when: ``after`` training; or ``during``: each forward
    pass reads quantised weights, and gradients change the weights behind them (the straight-through estimator,
    arXiv:1308.3432), from the share ``begin`` of the updates on.
    """

    bits: Annotated[int, Field(ge=2, le=8)] = 8
    granularity: Granularity = "channel"
    group: Positive = 64
    symmetric: bool = True
    when: Literal["after", "during"] = "after"
    begin: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.begin and self.when == "after":
            yield "begin is the start of training with quantised weights; set when: during, or begin: 0"

    def build(self, task: nn.Module) -> Compression:
        matrices = matrices_of(task, self.parameters)
        if self.granularity == "group":
            require_whole_groups(matrices, self.group, "group", "set a divisor, or granularity: channel")
        return QuantiseWeights(self, matrices)

    def conflict_after(self, earlier: CompressionConfig) -> str | None:
        if isinstance(earlier, QuantiseWeightsConfig):
            return "weights that are quantised twice keep the error of both; drop one"
        if earlier.kind == "share_values":
            return "quantisation would replace the shared values; drop one"
        return None


class Levels(NamedTuple):
    """codes (r, n): the level of each weight. scales (r, 1), zeros (r, 1): of each row of weights with one scale."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor


def rows_of(matrix: Float[Tensor, "*o i"], granularity: Granularity, group: int) -> Float[Tensor, "r n"]:
    """Returns the weights with one scale in each row."""
    size = {"tensor": matrix.numel(), "channel": matrix.size(-1), "group": group}[granularity]
    return matrix.reshape(-1, size)


def levels_of(rows: Float[Tensor, "r n"], bits: int, symmetric: bool) -> Levels:
    """Returns the nearest levels of weights, with a scale and a zero point for each row."""
    if symmetric:
        most = 2 ** (bits - 1) - 1
        scales = rounded_up(rows.abs().amax(dim=1, keepdim=True) / most)
        codes = (rows / scales).round().clamp(-most, most)
        return Levels(codes, scales, torch.zeros_like(scales))
    most = 2**bits - 1
    low, high = rows.amin(dim=1, keepdim=True).clamp(max=0), rows.amax(dim=1, keepdim=True).clamp(min=0)
    scales = rounded_up((high - low) / most)
    zeros = (-low / scales).round()
    return Levels((rows / scales).round().add(zeros).clamp(0, most), scales, zeros)


def rounded_up(scales: Float[Tensor, "r 1"]) -> Float[Tensor, "r 1"]:
    """Returns scales rounded up to ``SCALE_BITS`` significant bits, so that no weight lies beyond the last level; 1 for
    rows of zeros."""
    fraction, exponent = torch.frexp(scales)
    rounded = torch.ldexp((fraction * 2**SCALE_BITS).ceil() / 2**SCALE_BITS, exponent)
    return torch.where(scales > 0, rounded, torch.ones_like(scales))


def dequantised(levels: Levels) -> Float[Tensor, "r n"]:
    """Returns the weights that levels stand for; none is a negative zero."""
    return (levels.codes - levels.zeros) * levels.scales + 0.0


@final
class QuantiseWeights(Compression):
    """Quantises matrices in place, at the end or for each forward pass."""

    def __init__(self, config: QuantiseWeightsConfig, matrices: Matrices) -> None:
        self.matrices = matrices
        self.config, self.done = config, 0.0
        self.kept: dict[str, Tensor] = {}

    def before_forward(self) -> None:
        if self.config.when == "during" and self.done >= self.config.begin and not self.kept:
            self.kept = {name: matrix.detach().clone() for name, matrix in self.matrices.items()}
            self.finish()

    def after_backward(self) -> None:
        for name, weights in self.kept.items():
            self.matrices[name].data.copy_(weights)
        self.kept = {}

    def after_step(self, done: float) -> None:
        self.done = done

    def finish(self) -> None:
        for matrix in self.matrices.values():
            matrix.data.copy_(self.quantised(matrix.detach()))

    def quantised(self, matrix: Tensor) -> Tensor:
        """Returns a matrix of quantised weights."""
        rows = rows_of(matrix, self.config.granularity, self.config.group)
        return dequantised(levels_of(rows, self.config.bits, self.config.symmetric)).view_as(matrix)

    def state_dict(self) -> dict[str, Tensor]:
        return {"done": torch.tensor(self.done, dtype=torch.float64)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.done = float(state["done"])
