"""The base of adapters' configs, and the names of the adapters' weights in a network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn

from lit_transformers.config import Config, ConfigError
from lit_transformers.maps import Adapter, AdapterWeights
from lit_transformers.mixer import Shape

__all__ = ["AdapterConfig", "Sublayer", "adapter_names"]

Sublayer = Literal["mixer", "cross", "feedforward"]
"""The name of a sublayer of a block; "cross" is the cross mixer of a decoder."""


class AdapterConfig(Config, ABC):
    """Base of every adapter's config; the table ADAPTERS lists the kinds.

    At the start of training, adapters do not change the output of a network. The weights of the network learn together
    with its adapters unless training freezes them.
    """

    @abstractmethod
    def build(self, name: Sublayer, sublayer: nn.Module, shape: Shape) -> Adapter | None:
        """Adapts a sublayer of a block. Returns an adapter whose output is added to the sublayer's output, or None; or
        sets ``adapter`` of some ``LinearMap`` of the sublayer. Raises ConfigError, which names the field, if the
        sublayer has no place for an adapter."""

    def merged(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Hook: merges the adapters into the network. Given the tensors of a network with adapters, by their names in
        its state dict, returns the tensors of a network without adapters that computes the same outputs. By default it
        raises ConfigError."""
        raise ConfigError(
            f"a {self.kind} adapter cannot be merged into the weights of the network; export one that was trained with "
            "low_rank, dora, vera or ia3, or without an adapter",
            "model.adapter",
        )


def adapter_names(network: nn.Module) -> set[str]:
    """Returns the names of the tensors of a network's adapters in its state dict; shared tensors with all their
    names."""
    return {
        name
        for prefix, module in network.named_modules(remove_duplicate=False)
        if isinstance(module, AdapterWeights)
        for name in module.state_dict(prefix=f"{prefix}.")
    }
