"""The linear maps of sublayers, each with its role, and what an adapter adds to the output of a map or of a sublayer,
or computes in place of a map.

A mixer or a feed-forward that builds its maps as ``LinearMap`` says by their roles which are its queries' or keys', so
that adapters of maps find them. A plain ``nn.Linear`` has no role, and no adapter is put beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Adapter", "AdapterWeights", "LinearMap", "MapAdapter", "MapRole"]

MapRole = Literal["query", "key", "value", "output", "up", "gate", "down"]
"""What a map computes: the queries, keys, values and output of a mixer; in a feed-forward, the hidden layer, the map
that is multiplied with it, and the output."""


class AdapterWeights(nn.Module, ABC):
    """The base of the modules of adapters. Each weight of an adapter is in one, and at its start it changes nothing."""

    role: ClassVar[str] = "adapters"
    """As which groups of parameters name it, also within a map whose role is another one."""

    @abstractmethod
    def flops(self, vectors: int) -> int:
        """Forward FLOPs for so many vectors of one row, besides those of what is adapted."""


class Adapter(AdapterWeights):
    """What an adapter adds to the output of a sublayer, or to that of a ``LinearMap``, whose input it reads. At its
    start it adds zero."""

    reads_input: bool = False
    """Of one that adds to a sublayer: whether it reads what the sublayer reads, and not the sublayer's output."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        """Maps vectors to what is added to the output at each."""


class MapAdapter(AdapterWeights):
    """What computes the output of a ``LinearMap`` in its place, from the map's own weights. At its start the output is
    that of the map."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "*n i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None
    ) -> Float[Tensor, "*n o"]:
        """Maps vectors to the output at each, given the weights of the map."""


class LinearMap(nn.Linear):
    """W x + b, or what its adapter makes of it, where it has one. role: what the sublayer uses the map for."""

    def __init__(self, inputs: int, outputs: int, role: MapRole, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.role = role
        self.adapter: Adapter | MapAdapter | None = None

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        if isinstance(self.adapter, MapAdapter):
            adapted: Tensor = self.adapter(x, self.weight, self.bias)
            return adapted
        y = F.linear(x, self.weight, self.bias)
        return y if self.adapter is None else y + self.adapter(x)

    def frozen(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        """Applies the map with detached weights, so that a gradient reaches x alone."""
        weights = {name: weight.detach() for name, weight in self.named_parameters()}
        y: Tensor = torch.func.functional_call(self, weights, (x,))
        return y

    def flops(self, vectors: int) -> int:
        """Forward FLOPs for so many vectors, those of its adapter included."""
        own = 2 * vectors * self.in_features * self.out_features
        return own if self.adapter is None else own + self.adapter.flops(vectors)
