"""The base of every adapter's config, and which weights of a network are those of its adapters."""

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
        """Adapts a sublayer of a block. Returns what is added to its output, and None where nothing is; sets
        ``adapter`` of those of its ``LinearMap`` that are adapted. Raises ConfigError, which names the field, where the
        sublayer has no place for it."""

    def merged(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Hook: returns the tensors of the network without adapters that computes the same, given those of one with
        them, by their names in its state dict. Raises ConfigError where there is none, which is the default."""
        raise ConfigError(
            f"a {self.kind} adapter cannot be merged into the weights of the network; export one that was trained with "
            "low_rank, dora, vera or ia3, or without an adapter",
            "model.adapter",
        )


def adapter_names(network: nn.Module) -> set[str]:
    """Returns the names of the tensors of a network's adapters, as its state dict has them, shared ones by each name
    that they have."""
    return {
        name
        for prefix, module in network.named_modules(remove_duplicate=False)
        if isinstance(module, AdapterWeights)
        for name in module.state_dict(prefix=f"{prefix}.")
    }
