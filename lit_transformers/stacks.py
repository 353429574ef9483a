"""How depth is spent: which block runs when, and whose state and positions it gets.

A stack threads one state per step of depth, may keep every step's output, and knows nothing of what a block mixes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.block import Block, add_losses
from lit_transformers.config import Config, ConfigError, Positive, table
from lit_transformers.mixer import Context, Mixed
from lit_transformers.positions import Positions

MakeBlock = Callable[[int], Block]


class Stacked(NamedTuple):
    """What a stack returns. ``hidden`` has every step's output but the last, where it was asked for."""

    y: Float[Tensor, "b t d"]
    state: Any
    aux: Mapping[str, Tensor]
    hidden: tuple[Float[Tensor, "b t d"], ...] = ()


class Entry(nn.Module):
    """What happens to x before each step: positions are added, and the first step's sum is dropped out
    (arXiv:1706.03762, section 5.4)."""

    def __init__(self, positions: Positions | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.positions = positions
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b t d"], positions: Int[Tensor, "b t"], step: int) -> Float[Tensor, "b t d"]:
        if self.positions is not None:
            x = self.positions(x, positions, step)
        return self.dropout(x) if step == 0 else x


class StackConfig(Config):
    """Base of every stack's config; the table STACKS lists the kinds."""

    def build(self, depth: int, make: MakeBlock, entry: Entry) -> Stack:
        """``make(layer)`` builds the block of a layer; ``depth`` is how many steps a pass takes."""
        raise NotImplementedError


class Stack(nn.Module, ABC):
    """Maps (x, context, state) to Stacked. State is a tuple with one part for each step."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None, keep_hidden: bool = False
    ) -> Stacked: ...

    @abstractmethod
    def flops(self, queries: int, remembered: int) -> int:
        """Forward FLOPs for one sequence."""


class SequentialConfig(StackConfig, kind="sequential"):
    """Every layer has weights of its own."""

    def build(self, depth: int, make: MakeBlock, entry: Entry) -> Stack:
        return Sequential([make(layer) for layer in range(depth)], entry)


class SharedConfig(StackConfig, kind="shared"):
    """Layers share weights (Lan et al. 2020, arXiv:1909.11942, section 3.1).

    share: everything, the mixer with its norm, or the feed-forward with its norm; groups: runs of layers of equal
    length, each with weights of its own.
    """

    share: Literal["all", "mixer", "feedforward"] = "all"
    groups: Positive = 1

    def build(self, depth: int, make: MakeBlock, entry: Entry) -> Stack:
        if depth % self.groups:
            raise ConfigError(f"depth {depth} does not divide into {self.groups} groups", "stack.groups")
        size = depth // self.groups
        if self.share == "all":
            firsts = [make(group * size) for group in range(self.groups)]
            return Sequential([firsts[layer // size] for layer in range(depth)], entry)
        blocks = [make(layer) for layer in range(depth)]
        for layer, block in enumerate(blocks):
            first = blocks[layer // size * size]
            if self.share == "mixer":
                block.mixer, block.mixer_norm = first.mixer, first.mixer_norm
                block.cross, block.cross_norm = first.cross, first.cross_norm
            else:
                block.feedforward, block.feedforward_norm = first.feedforward, first.feedforward_norm
        return Sequential(blocks, entry)


class Sequential(Stack):
    """One block after another. Where weights are shared a block stands in several places, each with its own state."""

    def __init__(self, blocks: list[Block], entry: Entry) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.entry = entry

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None, keep_hidden: bool = False) -> Stacked:
        states: list[Any] = []
        hidden: list[Tensor] = []
        aux: dict[str, Tensor] = {}
        for layer, block in enumerate(self.blocks):
            x = self.entry(x, ctx.positions, layer)
            mixed: Mixed = block(x, ctx, None if state is None else state[layer])
            x, aux = mixed.y, add_losses(aux, mixed.aux)
            states.append(mixed.state)
            hidden.append(x)
        return Stacked(x, tuple(states), aux, tuple(hidden[:-1]) if keep_hidden else ())

    def flops(self, queries: int, remembered: int) -> int:
        return sum(block.flops(queries, remembered) for block in self.blocks if isinstance(block, Block))


STACKS = table(StackConfig, SequentialConfig, SharedConfig)
