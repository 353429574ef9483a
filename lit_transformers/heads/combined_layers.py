"""Combines the outputs of several layers into the vectors that heads read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["CombinedLayers", "LayerCombination"]

LayerCombination = Literal["concatenation", "mean", "max", "scalar_mix"]


class CombinedLayers(nn.Module):
    """Combines the outputs of chosen layers of a network (arXiv:1905.05583, section 5.3.2).

    layers: their numbers; 0 is the embeddings. kind: concatenation; the mean or the max of each channel; or
    scalar_mix, g sum_j softmax(s)_j h_j (arXiv:1802.05365, equation 1), whose learned s_j start at 0 and whose learned
    g starts at 1.
    """

    def __init__(self, layers: Sequence[int], kind: LayerCombination) -> None:
        super().__init__()
        self.layers, self.kind = tuple(layers), kind
        self.mixed = nn.Parameter(torch.zeros(len(layers))) if kind == "scalar_mix" else None
        self.scale = nn.Parameter(torch.ones(1)) if kind == "scalar_mix" else None

    def width(self, dim: int) -> int:
        """Returns the number of channels of a combined vector, for layers of ``dim`` channels."""
        return dim * len(self.layers) if self.kind == "concatenation" else dim

    @property
    def last_alone(self) -> bool:
        """Whether only the last layer of a network is read, which has none above the highest that is combined."""
        return len(self.layers) == 1

    def forward(self, outputs: Sequence[Float[Tensor, "b t d"]]) -> Float[Tensor, "b t w"]:
        """Combines the outputs of the layers (b, t, d) into vectors (b, t, w), with w from ``width``."""
        if self.kind == "concatenation":
            return outputs[0] if len(outputs) == 1 else torch.cat(tuple(outputs), dim=-1)
        stacked = torch.stack(tuple(outputs))
        if self.mixed is not None and self.scale is not None:
            shares = (self.scale * self.mixed.softmax(dim=0)).to(stacked.dtype)
            return (shares[:, None, None, None] * stacked).sum(dim=0)
        return stacked.amax(dim=0) if self.kind == "max" else stacked.mean(dim=0)
