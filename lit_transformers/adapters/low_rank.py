"""Low-rank adapters of linear maps, LoRA (Hu et al. 2021, arXiv:2106.09685, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.adapters.adapted_maps import MapsConfig, require_rank
from lit_transformers.config import Dropout, Fraction, Positive, PositiveFloat, Rank
from lit_transformers.maps import Adapter, LinearMap, MapRole
from lit_transformers.mixer import Shape

__all__ = ["LowRank", "LowRankConfig"]

DOWN, UP = ".adapter.down", ".adapter.up"
"""The ends of the names of the two matrices of a map."""


@final
class LowRankConfig(MapsConfig, kind="low_rank"):
    """rank: of the product B A, which is added to a map. alpha: the product is multiplied by alpha / rank, so that the
    same learning rate suits other ranks. dropout: of the inputs of A. maps: the maps that get an adapter, by their role
    in a mixer (query, key, value, output), cross mixers included, or in a feed-forward (up, gate, down); the paper
    adapts query and value. A map that several layers share has one adapter."""

    rank: Annotated[Positive, Rank] = 8
    alpha: PositiveFloat = 16.0
    dropout: Annotated[Fraction, Dropout] = 0.0
    maps: tuple[MapRole, ...] = ("query", "value")

    def adapter_of(self, linear: LinearMap, shape: Shape) -> LowRank:
        require_rank(self.rank, linear)
        return LowRank(self, linear)

    def merged(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        merged = {name: tensor for name, tensor in tensors.items() if not name.endswith((DOWN, UP))}
        for name, down in tensors.items():
            if name.endswith(DOWN):
                map_name = name.removesuffix(DOWN)
                change = (tensors[f"{map_name}{UP}"] @ down) * (self.alpha / self.rank)
                merged[f"{map_name}.weight"] = merged[f"{map_name}.weight"] + change
        return merged


@final
class LowRank(Adapter):
    """Computes (alpha / rank) B A dropout(x) for the input x of a linear map, with A (r, i) and B (o, r). A starts like
    a linear map with the same number of inputs, and B starts at zero."""

    def __init__(self, config: LowRankConfig, linear: nn.Linear) -> None:
        super().__init__()
        self.scale, self.dropout = config.alpha / config.rank, nn.Dropout(config.dropout)
        self.down = nn.Parameter(torch.empty(config.rank, linear.in_features))
        self.up = nn.Parameter(torch.empty(linear.out_features, config.rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.down, std=self.down.size(1) ** -0.5)
        nn.init.zeros_(self.up)

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        return F.linear(F.linear(self.dropout(x), self.down), self.up) * self.scale

    def flops(self, vectors: int) -> int:
        return 2 * vectors * (self.down.numel() + self.up.numel())
