"""The linear maps of sublayers, each with its role, and what an adapter adds to the output of a map or of a sublayer.

A mixer or a feed-forward that builds its maps as ``LinearMap`` says by their roles which are its queries' or keys', so
that adapters of low rank find them. A plain ``nn.Linear`` has no role, and no adapter is put beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Adapter", "LinearMap", "MapRole"]

MapRole = Literal["query", "key", "value", "output", "up", "gate", "down"]
"""What a map computes: the queries, keys, values and output of a mixer; in a feed-forward, the hidden layer, the map
that is multiplied with it, and the output."""


class Adapter(nn.Module, ABC):
    """What an adapter adds to the output of a sublayer, which it reads; or to that of a ``LinearMap``, whose input it
    reads. Every weight of an adapter is in such a module, and at its start it adds zero."""

    role: ClassVar[str] = "adapters"
    """As which groups of parameters name it, also within a map whose role is another one."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        """Maps vectors to what is added to the output at each."""

    @abstractmethod
    def flops(self, vectors: int) -> int:
        """Forward FLOPs for so many vectors."""


class LinearMap(nn.Linear):
    """W x + b, and what its adapter adds to it, where it has one. role: what the sublayer uses the map for."""

    def __init__(self, inputs: int, outputs: int, role: MapRole, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.role = role
        self.adapter: Adapter | None = None

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        y = F.linear(x, self.weight, self.bias)
        return y if self.adapter is None else y + self.adapter(x)

    def frozen(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        """Applies the map with detached weights, so that a gradient reaches x alone."""
        y = F.linear(x, self.weight.detach(), None if self.bias is None else self.bias.detach())
        if self.adapter is None:
            return y
        weights = {name: weight.detach() for name, weight in self.adapter.named_parameters()}
        return y + torch.func.functional_call(self.adapter, weights, (x,))

    def flops(self, vectors: int) -> int:
        """Forward FLOPs for so many vectors, those of its adapter included."""
        own = 2 * vectors * self.in_features * self.out_features
        return own if self.adapter is None else own + self.adapter.flops(vectors)
