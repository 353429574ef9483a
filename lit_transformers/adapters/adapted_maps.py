"""The base of adapters of linear maps within sublayers, which select the maps by their roles."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import final

from torch import nn

from lit_transformers.adapters.adapter import AdapterConfig, Sublayer
from lit_transformers.config import ConfigError
from lit_transformers.maps import Adapter, LinearMap, MapAdapter, MapRole
from lit_transformers.mixer import Shape

__all__ = ["MapsConfig", "require_rank"]

OF_FEEDFORWARDS: tuple[MapRole, ...] = ("up", "gate", "down")
"""The roles of the maps of a feed-forward; all other roles belong to mixers."""
PLACES: Mapping[Sublayer, str] = {"mixer": "mixer", "cross": "cross mixer", "feedforward": "feed-forward"}


class MapsConfig(AdapterConfig):
    """Base of the configs of adapters of linear maps. maps: the maps that get an adapter, by their role in a mixer
    (query, key, value, output), cross mixers included, or in a feed-forward (up, gate, down). A map that several layers
    share has one adapter."""

    maps: tuple[MapRole, ...] = ("query", "value")

    @abstractmethod
    def adapter_of(self, linear: LinearMap, shape: Shape) -> Adapter | MapAdapter:
        """Builds the adapter of a map, for a block of the given shape."""

    def conflicts(self) -> Iterator[str]:
        if not self.maps:
            yield "no map is adapted; set maps to some of query, key, value, output, up, gate, down, or adapter: null"
        if len(set(self.maps)) < len(self.maps):
            yield f"maps {', '.join(self.maps)} name one twice; drop it"

    @final
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
                    linear.adapter = self.adapter_of(linear, shape)


def require_rank(rank: int, linear: LinearMap) -> None:
    """Raises ConfigError for a rank above the smaller side of a map, which no change of the map has."""
    most = min(linear.in_features, linear.out_features)
    if rank > most:
        sizes = f"{linear.in_features} inputs and {linear.out_features} outputs"
        raise ConfigError(f"is {rank}, but the {linear.role} map has {sizes}; set it to at most {most}", "adapter.rank")
