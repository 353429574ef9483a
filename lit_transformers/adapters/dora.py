"""Adapters that learn the direction and the magnitude of a map, DoRA (Liu et al. 2024, arXiv:2402.09353, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.adapters.adapted_maps import MapsConfig, require_rank
from lit_transformers.config import Positive, PositiveFloat, Rank
from lit_transformers.maps import LinearMap, MapAdapter, MapRole
from lit_transformers.mixer import Shape

__all__ = ["DoRA", "DoRAConfig"]

GAIN = ".adapter.gain"
"""The end of the name of a map's gains."""


@final
class DoRAConfig(MapsConfig, kind="dora"):
    """rank: of the product B A, which is added to the direction of a map. alpha: the product is multiplied by
    alpha / rank. maps: the maps that get an adapter, by their roles, as in low_rank; the paper adapts query, key,
    value, up and down."""

    rank: Annotated[Positive, Rank] = 8
    alpha: PositiveFloat = 16.0
    maps: tuple[MapRole, ...] = ("query", "key", "value", "up", "down")

    def adapter_of(self, linear: LinearMap, shape: Shape) -> DoRA:
        require_rank(self.rank, linear)
        return DoRA(self, linear)

    def merged(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        merged = {name: tensor for name, tensor in tensors.items() if ".adapter." not in name}
        for name in (name.removesuffix(GAIN) for name in tensors if name.endswith(GAIN)):
            down, up, gain = (tensors[f"{name}.adapter.{part}"] for part in ("down", "up", "gain"))
            merged[f"{name}.weight"] = adapted(merged[f"{name}.weight"], down, up, gain, self.alpha / self.rank)
        return merged


def adapted(
    weight: Float[Tensor, "o i"],
    down: Float[Tensor, "r i"],
    up: Float[Tensor, "o r"],
    gain: Float[Tensor, " o"],
    scale: float,
) -> Float[Tensor, "o i"]:
    """Returns the adapted weights of a map: rows with the direction of W + scale B A, whose norms are the norms of the
    rows of W times their gains. The gradient treats norms as constants (arXiv:2402.09353, section 4.3)."""
    direction = weight + scale * (up @ down)
    least = torch.finfo(weight.dtype).tiny
    norms, own_norms = (
        torch.linalg.vector_norm(matrix.detach(), dim=1, keepdim=True).clamp(min=least)
        for matrix in (direction, weight)
    )
    return gain[:, None] * (own_norms / norms) * direction


@final
class DoRA(MapAdapter):
    """Computes m V / |V| x + b with V = W + (alpha / rank) B A, where |V| is the norm of each row (equation 5).

    The magnitude m is stored as a gain on the norm of each row of W. The gain starts at 1, so that it fits weights that
    are loaded later. A starts like a linear map with the same number of inputs, and B starts at zero.
    """

    vector_parameters: ClassVar[tuple[str, ...]] = ("gain",)
    needs_weight_gradient = True

    def __init__(self, config: DoRAConfig, linear: nn.Linear) -> None:
        super().__init__()
        self.scale = config.alpha / config.rank
        self.down = nn.Parameter(torch.empty(config.rank, linear.in_features))
        self.up = nn.Parameter(torch.empty(linear.out_features, config.rank))
        self.gain = nn.Parameter(torch.empty(linear.out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.down, std=self.down.size(1) ** -0.5)
        nn.init.zeros_(self.up)
        nn.init.ones_(self.gain)

    def forward(
        self, x: Float[Tensor, "*n i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None
    ) -> Float[Tensor, "*n o"]:
        return F.linear(x, adapted(weight, self.down, self.up, self.gain, self.scale), bias)

    def flops(self, vectors: int) -> int:
        """Returns the FLOPs of B A, which is computed once for all vectors."""
        return 2 * self.down.numel() * self.up.size(0)
