"""Adapters that rescale activations, (IA)3 (Liu et al. 2022, arXiv:2205.05638, section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.adapters.adapted_maps import MapsConfig
from lit_transformers.maps import LinearMap, MapAdapter, MapRole
from lit_transformers.mixer import Shape

__all__ = ["IA3", "IA3Config"]

INPUTS, OUTPUTS = ".adapter.inputs", ".adapter.outputs"
"""The ends of the names of a map's vectors."""


@final
class IA3Config(MapsConfig, kind="ia3"):
    """Multiplies each output channel of a map by a learned number; for the down map of a feed-forward, each input
    channel. maps: the maps that get an adapter, by their roles; the paper adapts key, value and down."""

    maps: tuple[MapRole, ...] = ("key", "value", "down")

    def adapter_of(self, linear: LinearMap, shape: Shape) -> IA3:
        return IA3(linear)

    def merged(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        merged = {name: tensor for name, tensor in tensors.items() if not name.endswith((INPUTS, OUTPUTS))}
        for name, factors in tensors.items():
            if name.endswith(INPUTS):
                weight = f"{name.removesuffix(INPUTS)}.weight"
                merged[weight] = merged[weight] * factors
            elif name.endswith(OUTPUTS):
                weight, bias = (f"{name.removesuffix(OUTPUTS)}.{part}" for part in ("weight", "bias"))
                merged[weight] = merged[weight] * factors[:, None]
                if bias in merged:
                    merged[bias] = merged[bias] * factors
        return merged


@final
class IA3(MapAdapter):
    """Computes l (W x + b), channel by channel; for a down map, W (l x) + b. l starts at 1."""

    def __init__(self, linear: LinearMap) -> None:
        super().__init__()
        is_down = linear.role == "down"
        self.inputs = nn.Parameter(torch.ones(linear.in_features)) if is_down else None
        self.outputs = None if is_down else nn.Parameter(torch.ones(linear.out_features))

    def forward(
        self, x: Float[Tensor, "*n i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None
    ) -> Float[Tensor, "*n o"]:
        y = F.linear(x if self.inputs is None else x * self.inputs, weight, bias)
        return y if self.outputs is None else y * self.outputs

    def flops(self, vectors: int) -> int:
        """Returns 0: products channel by channel are not counted as FLOPs."""
        return 0
