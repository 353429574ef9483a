"""One block after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.attention.patterns import Ordered
from lit_transformers.config import Dropout, Fraction
from lit_transformers.host import HOST
from lit_transformers.mixer import Context, MixerOutput, QueryStream, Shape
from lit_transformers.named_tuples import with_fields
from lit_transformers.stacks.block import Block, TwoStreamOutput, add_losses
from lit_transformers.stacks.stack import MakeBlock, Stack, StackConfig, StackInput, StackOutput, require_between


class SequentialConfig(StackConfig, kind="sequential"):
    """Every layer has its own weights.

    layer_drop: the probability with which a pass of training skips a layer, whose output is then its input (LayerDrop,
    Fan et al. 2020, arXiv:1909.11556, section 3.2). Evaluation uses all layers; a network of some of them starts by
    ``start.layers``. Costs count all layers.
    """

    reads_queries: ClassVar[bool] = True

    layer_drop: Annotated[Fraction, Dropout] = 0.0

    def build(self, shape: Shape, make: MakeBlock, entry: StackInput) -> Sequential:
        blocks = [make(layer, shape.depth) for layer in range(shape.depth)]
        return Sequential(blocks, entry, layer_drop=self.layer_drop)


class Sequential(Stack):
    """One block after another. With shared weights a block takes several steps, each with a separate state.

    first: the number of its first step; above 0 for the upper part of a divided stack. layer_drop: the probability with
    which a pass of training skips a step.
    """

    def __init__(self, blocks: Iterable[Block], entry: StackInput, first: int = 0, layer_drop: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.entry, self.first, self.layer_drop = entry, first, layer_drop

    def forward(
        self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None, keep_hidden: bool = False
    ) -> StackOutput:
        states: list[Any] = []
        hidden: list[Tensor] = []
        aux: dict[str, Tensor] = {}
        positions, last = self.entry.drawn(ctx), self.entry.last(ctx)
        x = entered = self.entry(x, positions, self.first, last)
        for layer, block in enumerate(self.blocks):
            x = self.entry(x, positions, self.first + layer, last) if layer else x
            before = None if state is None else state[layer]
            output: MixerOutput = self.skipped(block, x, ctx, before) if self.skips(block) else block(x, ctx, before)
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
        positions, last = self.entry.drawn(ctx), self.entry.last(ctx)
        query_positions = positions if at is None else positions.gather(1, at)
        for layer, block in enumerate(self.steps()):
            x = self.entry(x, positions, self.first + layer, last)
            vectors = self.entry(queries, query_positions, self.first + layer, last)
            skips = self.skips(block)
            output = block.forward_with_queries(
                x, QueryStream(vectors, at, before), ctx, None if state is None else state[layer]
            )
            if skips:
                content, read = skipping([x, vectors], block)
                output = TwoStreamOutput(content, read, {}, output.state)
            x, queries, aux = output.content, output.queries, add_losses(aux, output.aux)
            states.append(output.state)
        return TwoStreamOutput(x, queries, aux, tuple(states))

    @property
    def reads_first(self) -> bool:
        steps = self.steps()
        return len(steps) > 1 and steps[-1].reads_first

    def first_tokens(self, x: Float[Tensor, "b t d"], ctx: Context) -> Float[Tensor, "b 1 d"]:
        (block,) = self.steps()
        return block.first_tokens(self.entry(x, self.entry.drawn(ctx), self.first, self.entry.last(ctx)), ctx)

    def skips(self, block: nn.Module) -> bool:
        """Draws whether this pass skips a step, from the host's generator: its state is part of checkpoints."""
        return self.layer_drop > 0 and block.training and float(torch.rand((), device=HOST)) < self.layer_drop

    def skipped(self, block: nn.Module, x: Float[Tensor, "b t d"], ctx: Context, state: Any) -> MixerOutput:
        """Returns x as the output of a skipped step. Where segments may follow, its state is the state that the step
        would have left, so that later segments do not depend on the skipping."""
        left = block(x, ctx, state).state if ctx.causal and ctx.source is None else None
        (y,) = skipping([x], block)
        return MixerOutput(y, left)

    def flops(self, queries: int, remembered: int, causal: bool = True, source: int = 0) -> int:
        return sum(block.flops(queries, remembered, causal, source) for block in self.steps())

    def query_flops(self, queries: int, length: int, remembered: int = 0) -> int:
        return sum(block.query_flops(queries, length, remembered) for block in self.steps())

    def split(self, step: int) -> tuple[Sequential, Sequential]:
        blocks = self.steps()
        require_between(step, len(blocks))
        upper = Sequential(blocks[step:], self.entry, self.first + step, self.layer_drop)
        return Sequential(blocks[:step], self.entry, self.first, self.layer_drop), upper

    def without_steps(self) -> Sequential:
        return Sequential([], self.entry, self.first)

    def steps(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]


class Skipped(torch.autograd.Function):
    """Returns vectors as they are. Parameters, which have no effect, get gradients of zero: ranks that skip different
    layers add up gradients of the same parameters."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.shapes = [(tensor.shape, tensor.dtype, tensor.device) for tensor in tensors[count:]]
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        zeros = (torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.shapes)
        return (None, *gradients, *zeros)


def skipping(streams: Sequence[Tensor], block: nn.Module) -> tuple[Tensor, ...]:
    """Returns streams past a block, whose parameters get gradients of zero."""
    parameters = [parameter for parameter in block.parameters() if parameter.requires_grad]
    passed: tuple[Tensor, ...] = Skipped.apply(len(streams), *streams, *parameters)  # type: ignore[no-untyped-call]
    return passed
