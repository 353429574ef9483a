"""Adapters of random matrices that maps share, VeRA (Kopiczko et al. 2023, arXiv:2310.11454, section 3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.adapters.adapted_maps import MapsConfig
from lit_transformers.config import Dropout, Fraction, NonNegative, Positive, PositiveFloat, RandomSeed, Width
from lit_transformers.maps import Adapter, LinearMap
from lit_transformers.mixer import Shape

__all__ = ["VeRA", "VeRAConfig"]

RANKS, OUTPUTS = ".adapter.ranks", ".adapter.outputs"
"""The ends of the names of a map's vectors."""
DOWN, UP = ".adapter.projections.down", ".adapter.projections.up"
"""The ends of the names of the shared matrices."""


@final
class VeRAConfig(MapsConfig, kind="vera"):
    """rank: of the random matrices, which do not learn; all maps of equal sizes share them. It may exceed the sizes of
    a map, since each rank has one learned number. seed: of the random matrices, independent of the seed of the run.
    dropout: of the inputs. start: the initial value of d. maps: the maps that get an adapter, by their roles, as in
    low_rank."""

    rank: Annotated[Positive, Width] = 256
    dropout: Annotated[Fraction, Dropout] = 0.0
    start: PositiveFloat = 0.1
    seed: Annotated[NonNegative, RandomSeed] = 0

    def adapter_of(self, linear: LinearMap, shape: Shape) -> VeRA:
        inputs, outputs = linear.in_features, linear.out_features
        shared = shape.share(f"vera {inputs} {outputs}", lambda: Projections(self, inputs, outputs))
        return VeRA(self, cast("Projections", shared))

    def merged(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        merged = {name: tensor for name, tensor in tensors.items() if ".adapter." not in name}
        owners = (name.removesuffix(DOWN) for name in tensors if name.endswith(DOWN))
        pairs = ((tensors[f"{name}{DOWN}"], tensors[f"{name}{UP}"]) for name in owners)
        shared = {(up.size(0), down.size(1)): (down, up) for down, up in pairs}  # a file has only one of their names
        for name in (name.removesuffix(RANKS) for name in tensors if name.endswith(RANKS)):
            weight = merged[f"{name}.weight"]
            down, up = shared[weight.size(0), weight.size(1)]
            change = (tensors[f"{name}{OUTPUTS}"][:, None] * up * tensors[f"{name}{RANKS}"]) @ down
            merged[f"{name}.weight"] = weight + change
        return merged


@final
class Projections(nn.Module):
    """The random matrices A (r, i) and B (o, r), drawn by the uniform initialization of He et al. 2015
    (arXiv:1502.01852)."""

    down: Tensor
    up: Tensor

    def __init__(self, config: VeRAConfig, inputs: int, outputs: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(config.seed)
        for name, shape in (("down", (config.rank, inputs)), ("up", (outputs, config.rank))):
            drawn = nn.init.kaiming_uniform_(torch.empty(shape, device="cpu"), generator=generator)
            self.register_buffer(name, torch.empty(shape).copy_(drawn))


@final
class VeRA(Adapter):
    """Computes b B (d A x) for the input x of a linear map; b and d multiply channels (equation 2). b starts at
    zero."""

    def __init__(self, config: VeRAConfig, projections: Projections) -> None:
        super().__init__()
        self.start, self.dropout, self.projections = config.start, nn.Dropout(config.dropout), projections
        self.ranks = nn.Parameter(torch.empty(projections.down.size(0)))
        self.outputs = nn.Parameter(torch.empty(projections.up.size(0)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.ranks, self.start)
        nn.init.zeros_(self.outputs)

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        low = F.linear(self.dropout(x), self.projections.down) * self.ranks
        return F.linear(low, self.projections.up) * self.outputs

    def flops(self, vectors: int) -> int:
        return 2 * vectors * (self.projections.down.numel() + self.projections.up.numel())
