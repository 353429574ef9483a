"""Low-rank adapters of linear maps, LoRA (Hu et al. 2021, arXiv:2106.09685, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.adapters.adapter import AdapterConfig, Sublayer
from lit_transformers.config import ConfigError, Dropout, Fraction, Positive, PositiveFloat, Width
from lit_transformers.maps import Adapter, LinearMap, MapRole
from lit_transformers.mixer import Shape

__all__ = ["LowRank", "LowRankConfig"]

OF_FEEDFORWARDS: tuple[MapRole, ...] = ("up", "gate", "down")
"""The roles of the maps of a feed-forward; all others are those of a mixer."""
PLACES: Mapping[Sublayer, str] = {"mixer": "mixer", "cross": "cross mixer", "feedforward": "feed-forward"}
DOWN, UP = ".adapter.down", ".adapter.up"
"""How the names of both matrices beside a map end."""


@final
class LowRankConfig(AdapterConfig, kind="low_rank"):
    """rank: of the product B A that is added to a map. alpha: the product is multiplied by alpha / rank, so that the
    rate of learning suits other ranks too. dropout: of the inputs of A. maps: the maps that have one, by their role
    in a mixer (query, key, value, output), cross mixers included, or in a feed-forward (up, gate, down); the paper
    has query and value. Maps that layers share share their adapters."""

    rank: Annotated[Positive, Width] = 8
    alpha: PositiveFloat = 16.0
    dropout: Annotated[Fraction, Dropout] = 0.0
    maps: tuple[MapRole, ...] = ("query", "value")

    def conflicts(self) -> Iterator[str]:
        if not self.maps:
            yield "no map is adapted; set maps to some of query, key, value, output, up, gate, down, or adapter: null"
        if len(set(self.maps)) < len(self.maps):
            yield f"maps {', '.join(self.maps)} name one twice; drop it"

    def build(self, name: Sublayer, sublayer: nn.Module, shape: Shape) -> None:
        linears = [module for module in sublayer.modules() if isinstance(module, LinearMap)]
        is_feedforward = name == "feedforward"
        for role in (role for role in self.maps if (role in OF_FEEDFORWARDS) == is_feedforward):
            chosen = [linear for linear in linears if linear.role == role]
            if not chosen:
                roles = ", ".join(dict.fromkeys(linear.role for linear in linears)) or "no map with a role"
                reason = f"the {PLACES[name]}, {type(sublayer).__name__}, has no {role} map but {roles}"
                raise ConfigError(f"{reason}; name maps that it has, or set adapter to bottleneck", "adapter.maps")
            for linear in chosen:
                if linear.adapter is None:  # layers may share a map, and then its adapter
                    linear.adapter = LowRank(self, linear)

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
    """(alpha / rank) B A dropout(x) of the input x of a linear map, A (r, i) and B (o, r). A starts as a linear map of
    as many inputs does, and B at zero."""

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
