"""Quantisation of weights to 2 to 8 bits: uniform levels, symmetric or not, for a tensor, a channel or a group."""

from __future__ import annotations

from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.compression.compression import (
    Compression,
    CompressionConfig,
    Matrices,
    matrices_of,
    require_whole_groups,
)
from lit_transformers.compression.quantise import Quantise, QuantiseConfig
from lit_transformers.config import ConfigError, Positive
from lit_transformers.quantisation import dequantised, levels_of

__all__ = ["QuantiseWeightsConfig", "rows_of"]

Granularity = Literal["tensor", "channel", "group"]


@final
class QuantiseWeightsConfig(QuantiseConfig, kind="quantise_weights"):
    """Replaces each weight by the nearest of 2^bits uniform levels: w = s (q - z), with an integer q, a scale s and a
    zero point z (Jacob et al. 2017, arXiv:1712.05877, equation 1).

    granularity: the weights that share a scale: the tensor, each row of the matrix (the channel of
    an output, or the vector of a symbol), or each ``group`` of neighbouring weights in a row. symmetric: levels
    -(2^(bits-1) - 1) to 2^(bits-1) - 1 around a zero point of 0, scaled to the largest magnitude; if false, 2^bits
    levels from the smallest weight to the largest, 0 included. In training, gradients change the weights behind the
    quantised ones.
    """

    granularity: Granularity = "channel"
    group: Positive = 64

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


def rows_of(matrix: Float[Tensor, "*o i"], granularity: Granularity, group: int) -> Float[Tensor, "r n"]:
    """Returns the weights with one scale in each row."""
    size = {"tensor": matrix.numel(), "channel": matrix.size(-1), "group": group}[granularity]
    return matrix.reshape(-1, size)


@final
class QuantiseWeights(Quantise):
    """Quantises matrices in place, at the end or for each forward pass."""

    def __init__(self, config: QuantiseWeightsConfig, matrices: Matrices) -> None:
        super().__init__(config)
        self.config, self.matrices = config, matrices
        self.kept: dict[str, Tensor] = {}

    def before_forward(self) -> None:
        if self.is_due and not self.kept:
            self.kept = {name: matrix.detach().clone() for name, matrix in self.matrices.items()}
            self.quantise()

    def after_backward(self) -> None:
        for name, weights in self.kept.items():
            self.matrices[name].data.copy_(weights)
        self.kept = {}

    def finish(self) -> None:
        unchanged = self.quantise()
        if unchanged and self.config.when == "after":
            reason = f"{unchanged[0]} has these levels already, and would not change"
            raise ConfigError(f"{reason}; drop quantise_weights, or name other matrices", "parameters")

    def quantise(self) -> list[str]:
        """Quantises the matrices, and returns the names of those that do not change, but for matrices of zeros."""
        unchanged = []
        for name, matrix in self.matrices.items():
            quantised = self.quantised(matrix.detach())
            if torch.equal(quantised, matrix) and matrix.any():
                unchanged.append(name)
            matrix.data.copy_(quantised)
        return unchanged

    def quantised(self, matrix: Tensor) -> Tensor:
        """Returns a matrix of quantised weights."""
        rows = rows_of(matrix, self.config.granularity, self.config.group)
        return dequantised(levels_of(rows, self.config.bits, self.config.symmetric)).view_as(matrix)
