"""What every stack is: a way to spend depth. It threads one state per step, may keep every step's output, and knows
nothing of what a block mixes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.block import Block
from lit_transformers.config import Config
from lit_transformers.mixer import Context, Shape
from lit_transformers.positions import Positions

MakeBlock = Callable[[int, int], Block]
"""Builds block ``layer`` of ``depth`` that have weights of their own."""


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

    def offsets(self, positions: Int[Tensor, "b t"]) -> Int[Tensor, " b"] | None:
        """What added positions count from in one pass; None where it is zero."""
        return None if self.positions is None else self.positions.offsets(positions)

    def drawn(self, ctx: Context) -> Int[Tensor, "b t"]:
        """The positions of one pass, drawn once and the same at all its steps."""
        offset = self.offsets(ctx.positions) if ctx.offset is None else ctx.offset
        return ctx.positions if offset is None else ctx.positions + offset[:, None]

    def forward(self, x: Float[Tensor, "b t d"], positions: Int[Tensor, "b t"], step: int) -> Float[Tensor, "b t d"]:
        if self.positions is not None:
            x = self.positions(x, positions, step)
        return self.dropout(x) if step == 0 else x


class StackConfig(Config):
    """Base of every stack's config; the table STACKS lists the kinds."""

    def build(self, shape: Shape, make: MakeBlock, entry: Entry) -> Stack:
        """``shape.depth`` is how many steps a pass takes; what is asked of ``make`` is how many blocks it has."""
        raise NotImplementedError


class Stack(nn.Module, ABC):
    """Maps (x, context, state) to Stacked. State is a tuple with one part for each step."""

    entry: Entry

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None, keep_hidden: bool = False
    ) -> Stacked: ...

    @abstractmethod
    def flops(self, queries: int, remembered: int, causal: bool = True, source: int = 0) -> int:
        """Forward FLOPs for one sequence, which cross mixers read ``source`` tokens for."""
