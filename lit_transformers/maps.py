"""The linear maps of sublayers, with roles, and the base classes of adapters.

A mixer or a feed-forward builds its maps as ``LinearMap``, whose role (query, key, ...) adapters of maps select. A
plain ``nn.Linear`` has no role and gets no adapter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers import onednn
from lit_transformers.quantisation import InputQuantiser

__all__ = [
    "Adapter",
    "AdapterWeights",
    "LinearMap",
    "MapAdapter",
    "MapPairs",
    "MapRole",
    "paired_maps",
    "products",
    "share_quantisers",
]

MapRole = Literal["query", "key", "value", "output", "up", "gate", "down"]
"""The result of a map: the queries, keys, values and output of a mixer; in a feed-forward, the hidden layer, the map
that is multiplied with it, and the output."""


class AdapterWeights(nn.Module, ABC):
    """Base of the modules that hold the weights of adapters. At its start an adapter changes no output."""

    role: ClassVar[str] = "adapters"
    """The role of its parameters in parameter groups, within a map of any role."""

    @abstractmethod
    def flops(self, vectors: int) -> int:
        """Returns its forward FLOPs for n vectors of one row, without the FLOPs of the adapted part."""


class Adapter(AdapterWeights):
    """Computes an addition to the output of a sublayer, or of a ``LinearMap`` whose input it reads. At its start it
    adds zero."""

    reads_input: bool = False
    """For an adapter of a sublayer: whether it reads the sublayer's input, not its output."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        """Returns the addition to the output, for each vector."""


class MapAdapter(AdapterWeights):
    """Computes the output in place of a ``LinearMap``, from the map's weights. At its start the output equals the
    map's."""

    needs_weight_gradient: ClassVar[bool] = False
    """Whether its gradients are computed from the gradient of a matrix (o, i), which takes as many FLOPs as the
    gradient of the map's weights, even if these are frozen."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "*n i"], weight: Float[Tensor, "o i"], bias: Float[Tensor, " o"] | None
    ) -> Float[Tensor, "*n o"]:
        """Returns the output for each vector, given the weights of the map."""


class LinearMap(nn.Linear):
    """Computes W x + b, changed by its adapter if it has one. role: the use of the map in its sublayer. quantiser: of
    its inputs; None for inputs as they are. packed: its weights in the layout of oneDNN, which computes no gradient;
    None for torch's product."""

    def __init__(self, inputs: int, outputs: int, role: MapRole, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.role = role
        self.adapter: Adapter | MapAdapter | None = None
        self.quantiser: InputQuantiser | None = None
        self.packed: Any = None

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        if self.quantiser is not None:
            if self.quantiser.execution == "int8":
                return self.quantiser.product(x, [self.weight], [] if self.bias is None else [self.bias])
            x = self.quantiser(x)
        if isinstance(self.adapter, MapAdapter):
            adapted: Tensor = self.adapter(x, self.weight, self.bias)
            return adapted
        y = F.linear(x, self.weight, self.bias) if self.packed is None else onednn.product(x, self.packed, self.bias)
        return y if self.adapter is None else y + self.adapter(x)

    def frozen(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        """Applies the map with detached weights, so that a gradient reaches x alone."""
        weights = {name: weight.detach() for name, weight in self.named_parameters()}
        y: Tensor = torch.func.functional_call(self, weights, (x,))
        return y

    def flops(self, vectors: int) -> int:
        """Returns its forward FLOPs for n vectors, with the FLOPs of its adapter."""
        own = 2 * vectors * self.in_features * self.out_features
        return own if self.adapter is None else own + self.adapter.flops(vectors)


def products(x: Float[Tensor, "*n i"], maps: Sequence[LinearMap]) -> Sequence[Float[Tensor, "*n o"]]:
    """Applies linear maps to the same vectors, by one int8 product where all maps multiply the same codes."""
    first = maps[0].quantiser
    if first is None or not all(m.quantiser is not None and first.shares_codes(m.quantiser) for m in maps):
        return [m(x) for m in maps]
    y = first.product(x, [m.weight for m in maps], [m.bias for m in maps if m.bias is not None])
    return y.split([m.out_features for m in maps], dim=-1)


MapPairs = Sequence[tuple[LinearMap, LinearMap]]
"""The linear maps of two modules of the same structure, each with the one of the same name."""


def paired_maps(module: nn.Module, other: nn.Module) -> MapPairs:
    """Returns the linear maps of a module and of another one of the same structure."""
    maps = {name: m for name, m in module.named_modules() if isinstance(m, LinearMap)}
    return [(maps[name], m) for name, m in other.named_modules() if isinstance(m, LinearMap)]


def share_quantisers(pairs: MapPairs) -> None:
    """Gives the second of each pair of linear maps the quantiser of the first."""
    for own, other in pairs:
        other.quantiser = own.quantiser
