"""The base of every stack, which applies blocks step by step. It passes one state per step, may keep every step's
output, and does not depend on the kind of mixer in a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, final

from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.config import Config, ConfigError
from lit_transformers.encodings.positions import Positions
from lit_transformers.mixer import Context, Shape
from lit_transformers.stacks.block import Block, TwoStreamOutput

MakeBlock = Callable[[int, int], Block]
"""Builds block ``layer`` of ``depth`` blocks that have their own weights."""


class StackOutput(NamedTuple):
    """The output of a stack. ``aux`` holds the sums of its blocks' losses by name; ``hidden`` has every step's output
    but the last, if requested; ``entered`` is then the input of the first step."""

    y: Float[Tensor, "b t d"]
    state: Any
    aux: Mapping[str, Tensor]
    hidden: tuple[Float[Tensor, "b t d"], ...] = ()
    entered: Float[Tensor, "b t d"] | None = None


class StackInput(nn.Module):
    """The input of each step: x with positions added, and at the first step with dropout of the sum (arXiv:1706.03762,
    section 5.4), after a norm of it where there is one (arXiv:1810.04805), and before a map to the width of the layers
    where embeddings are narrower (arXiv:1909.11942, section 3.1)."""

    def __init__(
        self,
        positions: Positions | None = None,
        dropout: float = 0.0,
        norm: nn.Module | None = None,
        widen: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.positions, self.norm, self.widen = positions, norm, widen
        self.dropout = nn.Dropout(dropout)

    def offsets(self, positions: Int[Tensor, "b t"]) -> Int[Tensor, " b"] | None:
        """Returns the offset (b,) of the added positions in one pass, or None where it is zero."""
        return None if self.positions is None else self.positions.offsets(positions)

    def drawn(self, ctx: Context) -> Int[Tensor, "b t"]:
        """Returns the positions of one pass, with an offset that is drawn once and the same at all steps."""
        offset = self.offsets(ctx.positions) if ctx.offset is None else ctx.offset
        return ctx.positions if offset is None else ctx.positions + offset[:, None]

    def forward(self, x: Float[Tensor, "b t d"], positions: Int[Tensor, "b t"], step: int) -> Float[Tensor, "b t d"]:
        if self.positions is not None:
            x = self.positions(x, positions, step)
        if step > 0:
            return x
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if self.widen is None else self.widen(x)


class StackConfig(Config):
    """Base of every stack's config; the table STACKS lists the kinds. ``reads_queries``: whether its stack has a place
    for a second stream of queries (``Stack.forward_with_queries``)."""

    reads_queries: ClassVar[bool] = False

    def build(self, shape: Shape, make: MakeBlock, entry: StackInput) -> Stack:
        """Builds the stack. ``shape.depth`` is the number of steps of a pass; ``make`` gets the number of distinct
        blocks."""
        raise NotImplementedError


class Stack(nn.Module, ABC):
    """Maps (x, context, state) to StackOutput. State is a tuple with one part for each step."""

    entry: StackInput

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None, keep_hidden: bool = False
    ) -> StackOutput: ...

    @abstractmethod
    def flops(self, queries: int, remembered: int, causal: bool = True, source: int = 0) -> int:
        """Forward FLOPs for one sequence, for which cross mixers read ``source`` tokens."""

    @abstractmethod
    def steps(self) -> Sequence[Block]:
        """Returns the block of each step of a pass; one block may take several."""

    @final
    def decoding_state(self, length: int) -> int | None:
        """Returns the sum over steps of ``Mixer.decoding_state``; None where a mixer does not say."""
        states = [step.mixer.decoding_state(length) for step in self.steps()]
        return None if None in states else sum(state for state in states if state is not None)

    def forward_with_queries(
        self,
        x: Float[Tensor, "b t d"],
        queries: Float[Tensor, "b m d"],
        ctx: Context,
        places: Int[Tensor, "b t"],
        at: Int[Tensor, "b m"] | None = None,
        state: Any = None,
    ) -> TwoStreamOutput:
        """Hook: reads x, the content stream, and a query stream through the same weights (arXiv:1906.08237, section
        2.3). Its blocks are "permuted". Both streams see all that ``state`` remembers.

        at (b, m): where each query stands among the tokens of x, no two of a row at one; None: one at each.
        places (b, t): the place of each token in the order of its row. Content sees its own token and those of lower
        places; a query sees the content of lower places alone, so that it does not depend on the token at its position.
        Raises ConfigError where a stack has no place for a second stream, which is the default.
        """
        reason = f"a {type(self).__name__} stack reads no second stream of queries; set stack: sequential"
        raise ConfigError(reason, "stack")

    def query_flops(self, queries: int, length: int, remembered: int = 0) -> int:
        """Hook: forward FLOPs of a second stream of so many queries in a row of ``length`` tokens, beside those of the
        row, of a stack that has a place for one."""
        raise NotImplementedError(f"a {type(self).__name__} stack reads no second stream of queries")

    def split(self, step: int) -> tuple[Stack, Stack]:
        """Hook: returns the stack of the first ``step`` steps and that of the others, which share this one's weights.

        The second continues with what the first returns, so that a network may keep the first one's output, or read it
        twice. Where positions have a random offset, both passes need the same ``Context.offset``. Raises ConfigError
        where a stack is one piece, which is the default.
        """
        raise ConfigError(f"a {type(self).__name__} stack cannot be divided at a layer; set stack: sequential", "stack")

    def without_steps(self) -> Stack:
        """Hook: returns a stack with this one's entry, whose output is the input of the first step. Raises ConfigError
        where a stack has none, which is the default."""
        reason = f"a {type(self).__name__} stack has no part below its layers; set stack: sequential"
        raise ConfigError(reason, "stack")


def require_between(step: int, depth: int) -> None:
    """Raises ConfigError where a stack of ``depth`` layers is to be divided below its first or above its last one."""
    if not 0 < step < depth:
        raise ConfigError(f"a stack of {depth} layers cannot be divided after {step} of them", "depth")
