"""The base of every stack. A stack applies blocks step by step, passes one state for each step, and can keep the output
of every step. It does not depend on the kind of mixer in a block."""

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
"""Builds block ``layer`` of ``depth`` blocks, each with separate weights."""


class StackOutput(NamedTuple):
    """The output of a stack. aux: the sums of the losses of its blocks, by name. hidden: the outputs of all steps
    except the last, if requested. entered: the input of the first step, if requested."""

    y: Float[Tensor, "b t d"]
    state: Any
    aux: Mapping[str, Tensor]
    hidden: tuple[Float[Tensor, "b t d"], ...] = ()
    entered: Float[Tensor, "b t d"] | None = None


class StackInput(nn.Module):
    """The input of each step: x plus positions. At the first step an optional norm (arXiv:1810.04805), dropout
    (arXiv:1706.03762, section 5.4) and, for narrower embeddings, a linear map to the width of the layers follow
    (arXiv:1909.11942, section 3.1)."""

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
        """Returns the offset (b,) of the added positions in one pass; None for zero."""
        return None if self.positions is None else self.positions.offsets(positions)

    def drawn(self, ctx: Context) -> Int[Tensor, "b t"]:
        """Returns the positions (b, t) of one pass, with an offset that is drawn once for all steps."""
        offset = self.offsets(ctx.positions) if ctx.offset is None else ctx.offset
        return ctx.positions if offset is None else ctx.positions + offset[:, None]

    def last(self, ctx: Context) -> int | None:
        """Returns a position of one pass that no token is behind, with the offset; None where the host does not know
        one without waiting for a device."""
        if self.positions is None or ctx.last_position is None:
            return None
        return ctx.last_position + (self.positions.offset if self.training else 0)

    def forward(
        self, x: Float[Tensor, "b t d"], positions: Int[Tensor, "b t"], step: int, last: int | None = None
    ) -> Float[Tensor, "b t d"]:
        """Returns the input of a step. positions, last: the results of ``drawn`` and ``last`` for the pass."""
        if self.positions is not None:
            x = self.positions(x, positions, step, last)
        if step > 0:
            return x
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if self.widen is None else self.widen(x)


class StackConfig(Config):
    """Base of the configs of stacks; the table STACKS lists the kinds. ``reads_queries``: whether the stack reads a
    second stream of queries (``Stack.forward_with_queries``)."""

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
        """Returns the forward FLOPs for one sequence. source: tokens that cross mixers read."""

    @abstractmethod
    def steps(self) -> Sequence[Block]:
        """Returns the block of each step of a pass; a block may take several steps."""

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
        """Hook: passes x, the content stream, and a query stream through the same weights (arXiv:1906.08237, section
        2.3). Its blocks are "permuted". Both streams see all of ``state``.

        at (b, m): the token of x at which each query stands, no two queries of a row at the same token; None: one query
        at each token. places (b, t): the place of each token in the order of its row. A token of the content stream
        sees itself and tokens of lower places. A query sees only tokens of lower places, so it does not depend on the
        token at its position. Raises ConfigError if the stack reads no second stream, which is the default.
        """
        reason = f"a {type(self).__name__} stack reads no second stream of queries; set stack: sequential"
        raise ConfigError(reason, "stack")

    @property
    def reads_first(self) -> bool:
        """Hook: whether the part of ``split`` that is its last step alone has ``first_tokens``. By default it does
        not."""
        return False

    def first_tokens(self, x: Float[Tensor, "b t d"], ctx: Context) -> Float[Tensor, "b 1 d"]:
        """Hook: passes padded rows through a stack of one step, and returns the output for the first token of each row
        alone, where the whole stack says so (``reads_first``)."""
        raise NotImplementedError(f"a {type(self).__name__} stack computes the outputs of all tokens")

    def query_flops(self, queries: int, length: int, remembered: int = 0) -> int:
        """Hook: returns the forward FLOPs that a second stream of ``queries`` queries adds to a row of ``length``
        tokens."""
        raise NotImplementedError(f"a {type(self).__name__} stack reads no second stream of queries")

    def split(self, step: int) -> tuple[Stack, Stack]:
        """Hook: returns the lower stack of the first ``step`` steps, and the upper stack of the other steps. Both share
        the weights of this stack.

        The upper stack reads the output of the lower stack, so a network can store this output or read it twice. If
        positions have a random offset, both passes need the same ``Context.offset``. Raises ConfigError if the stack
        cannot be divided, which is the default.
        """
        raise ConfigError(f"a {type(self).__name__} stack cannot be divided at a layer; set stack: sequential", "stack")

    def without_steps(self) -> Stack:
        """Hook: returns a stack without steps, with the entry of this stack: its output is the input of the first step.
        Raises ConfigError if there is no such stack, which is the default."""
        reason = f"a {type(self).__name__} stack needs at least one layer; set stack: sequential"
        raise ConfigError(reason, "stack")


def require_between(step: int, depth: int) -> None:
    """Raises ConfigError unless at least one of ``depth`` layers is below and one above the division at ``step``."""
    if not 0 < step < depth:
        raise ConfigError(f"a stack of {depth} layers cannot be divided after {step} of them", "depth")
