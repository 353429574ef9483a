"""Layers that share weights."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from lit_transformers.config import ConfigError, Groups, Positive
from lit_transformers.mixer import Shape
from lit_transformers.stacks.sequential import Sequential
from lit_transformers.stacks.stack import MakeBlock, StackConfig, StackInput


class SharedConfig(StackConfig, kind="shared"):
    """Layers share weights (Lan et al. 2020, arXiv:1909.11942, section 3.1).

    share: all weights, those of the mixer with its norm, or those of the feed-forward with its norm; groups: the number
    of equal runs of layers, each with its own weights. A mixer's field with one value per layer has one value per
    distinct mixer.
    """

    reads_queries: ClassVar[bool] = True

    share: Literal["all", "mixer", "feedforward"] = "all"
    groups: Annotated[Positive, Groups] = 1

    def build(self, shape: Shape, make: MakeBlock, entry: StackInput) -> Sequential:
        depth = shape.depth
        if depth % self.groups:
            raise ConfigError(f"depth {depth} does not divide into {self.groups} groups", "stack.groups")
        size = depth // self.groups
        if self.share == "all":
            group_blocks = [make(group, self.groups) for group in range(self.groups)]
            return Sequential([group_blocks[layer // size] for layer in range(depth)], entry)
        if self.share == "feedforward":
            blocks = [make(layer, depth) for layer in range(depth)]
        else:
            blocks = [make(layer // size, self.groups) for layer in range(depth)]
        for layer, block in enumerate(blocks):
            first = blocks[layer // size * size]
            if self.share == "mixer":
                block.mixer, block.mixer_norm = first.mixer, first.mixer_norm
                block.cross, block.cross_norm = first.cross, first.cross_norm
            else:
                block.feedforward, block.feedforward_norm = first.feedforward, first.feedforward_norm
        return Sequential(blocks, entry)
