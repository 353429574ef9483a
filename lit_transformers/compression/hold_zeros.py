"""Holds weights at zero that are zero before training: those that an earlier run pruned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from torch import Tensor, nn

from lit_transformers.compression.compression import Compression, CompressionConfig, Matrices, matrices_of

__all__ = ["HoldZerosConfig"]


@final
class HoldZerosConfig(CompressionConfig, kind="hold_zeros"):
    """Weights that are zero when training begins stay zero: a network whose weights or heads an earlier run pruned
    recovers without them."""

    def build(self, task: nn.Module) -> Compression:
        return HoldZeros(matrices_of(task, self.parameters))


@final
class HoldZeros(Compression):
    """Sets weights to zero that were zero at the start."""

    def __init__(self, matrices: Matrices) -> None:
        self.matrices = matrices
        self.zeros: dict[str, Tensor] = {}

    def begin(self) -> None:
        self.zeros = {name: matrix.detach() == 0 for name, matrix in self.matrices.items()}

    def after_step(self, done: float) -> None:
        for name, zeros in self.zeros.items():
            self.matrices[name].data.masked_fill_(zeros, 0)

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.zeros)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.zeros = {name: zeros.to(self.matrices[name].device) for name, zeros in state.items()}
