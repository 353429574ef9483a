"""Recomputes layers in the backward pass to save memory (Chen et al. 2016, arXiv:1604.06174, section 3)."""

from __future__ import annotations

from lit_transformers.config import ConfigError
from lit_transformers.models.model import Network
from lit_transformers.stacks.block import Block
from lit_transformers.stacks.reversible import Reversible

__all__ = ["recompute_layers"]


def recompute_layers(network: Network) -> None:
    """Stores only the input of each layer in the forward pass, and recomputes the layer in the backward pass. Raises
    ConfigError for a reversible stack, and for a network without a Block."""
    if any(isinstance(module, Reversible) for module in network.modules()):
        reason = "a reversible stack computes its layers again by itself"
        raise ConfigError(f"{reason}; set it to false, or model.stack to sequential", "training.recompute")
    layers = [layer for stack in network.layers().values() for layer in stack]
    blocks = [layer for layer in layers if isinstance(layer, Block)]
    if not blocks:
        raise ConfigError(
            f"a {type(network).__name__} has no layer that is a Block; set it to false", "training.recompute"
        )
    for block in blocks:
        block.recompute = True
