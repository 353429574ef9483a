"""Layers that are computed again in the backward pass (Chen et al. 2016, arXiv:1604.06174, section 3)."""

from __future__ import annotations

from lit_transformers.config import ConfigError
from lit_transformers.models.model import Network
from lit_transformers.stacks.block import Block
from lit_transformers.stacks.reversible import Reversible

__all__ = ["recompute_layers"]


def recompute_layers(network: Network) -> None:
    """Lets training keep the inputs of each layer of a network alone, and compute it again in the backward pass. Raises
    ConfigError where a stack already does so by another rule, and where no layer is a block."""
    if any(isinstance(module, Reversible) for module in network.modules()):
        reason = "a reversible stack computes its layers again by itself"
        raise ConfigError(f"{reason}; set it to false, or model.stack to sequential", "training.recompute")
    layers = [layer for stack in network.layers().values() for layer in stack]
    blocks = [layer for layer in layers if isinstance(layer, Block)]
    if not blocks:
        raise ConfigError(f"no layer of a {type(network).__name__} is a Block; set it to false", "training.recompute")
    for block in blocks:
        block.recompute = True
