"""One block after another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.attention.patterns import Ordered
from lit_transformers.mixer import Context, MixerOutput, QueryStream, Shape
from lit_transformers.named_tuples import with_fields
from lit_transformers.stacks.block import Block, TwoStreamOutput, add_losses
from lit_transformers.stacks.stack import MakeBlock, Stack, StackConfig, StackInput, StackOutput, require_between


class SequentialConfig(StackConfig, kind="sequential"):
    """Every layer has its own weights."""

    reads_queries: ClassVar[bool] = True

    def build(self, shape: Shape, make: MakeBlock, entry: StackInput) -> Sequential:
        return Sequential([make(layer, shape.depth) for layer in range(shape.depth)], entry)


class Sequential(Stack):
    """One block after another. With shared weights a block takes several steps, each with a separate state.

    first: the number of its first step; above 0 for the upper part of a divided stack.
    """

    def __init__(self, blocks: Iterable[Block], entry: StackInput, first: int = 0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.entry, self.first = entry, first

    def forward(
        self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None, keep_hidden: bool = False
    ) -> StackOutput:
        states: list[Any] = []
        hidden: list[Tensor] = []
        aux: dict[str, Tensor] = {}
        positions = self.entry.drawn(ctx)
        x = entered = self.entry(x, positions, self.first)
        for layer, block in enumerate(self.blocks):
            x = self.entry(x, positions, self.first + layer) if layer else x
            output: MixerOutput = block(x, ctx, None if state is None else state[layer])
            x, aux = output.y, add_losses(aux, output.aux)
            states.append(output.state)
            hidden.append(x)
        kept = (tuple(hidden[:-1]), entered) if keep_hidden else ((), None)
        return StackOutput(x, tuple(states), aux, *kept)

    def forward_with_queries(
        self,
        x: Float[Tensor, "b t d"],
        queries: Float[Tensor, "b m d"],
        ctx: Context,
        places: Int[Tensor, "b t"],
        at: Int[Tensor, "b m"] | None = None,
        state: Any = None,
    ) -> TwoStreamOutput:
        ctx, before = with_fields(ctx, pattern=Ordered(places, itself=True)), Ordered(places, itself=False)
        states: list[Any] = []
        aux: dict[str, Tensor] = {}
        positions = self.entry.drawn(ctx)
        query_positions = positions if at is None else positions.gather(1, at)
        for layer, block in enumerate(self.steps()):
            x = self.entry(x, positions, self.first + layer)
            vectors = self.entry(queries, query_positions, self.first + layer)
            output = block.forward_with_queries(
                x, QueryStream(vectors, at, before), ctx, None if state is None else state[layer]
            )
            x, queries, aux = output.content, output.queries, add_losses(aux, output.aux)
            states.append(output.state)
        return TwoStreamOutput(x, queries, aux, tuple(states))

    def flops(self, queries: int, remembered: int, causal: bool = True, source: int = 0) -> int:
        return sum(block.flops(queries, remembered, causal, source) for block in self.steps())

    def query_flops(self, queries: int, length: int, remembered: int = 0) -> int:
        return sum(block.query_flops(queries, length, remembered) for block in self.steps())

    def split(self, step: int) -> tuple[Sequential, Sequential]:
        blocks = self.steps()
        require_between(step, len(blocks))
        upper = Sequential(blocks[step:], self.entry, self.first + step)
        return Sequential(blocks[:step], self.entry, self.first), upper

    def without_steps(self) -> Sequential:
        return Sequential([], self.entry, self.first)

    def steps(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]
