"""Reversible residual layers (Gomez et al. 2017, arXiv:1707.04585; Kitaev et al. 2020, arXiv:2001.04451, section 3):
the backward pass computes the inputs of each layer from its outputs, so that memory does not grow with depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.attention.recompute import RandomState, drawn_again, random_state
from lit_transformers.config import ConfigError
from lit_transformers.mixer import Context, MixerOutput, Shape, Tape, detach
from lit_transformers.named_tuples import with_fields
from lit_transformers.precision import autocast_of, full_precision
from lit_transformers.stacks.block import Block, Branch, add_losses
from lit_transformers.stacks.sequential import Sequential
from lit_transformers.stacks.stack import MakeBlock, Stack, StackConfig, StackInput, StackOutput

Pair = tuple[Tensor, Tensor]


class ReversibleConfig(StackConfig, kind="reversible"):
    """Two residual streams, y1 = x1 + mix(x2) and y2 = x2 + feed(y1) (arXiv:2001.04451, section 3).

    recompute: whether activations are computed again in the backward pass; if not, the same network keeps them all.
    """

    recompute: bool = True

    def build(self, shape: Shape, make: MakeBlock, entry: StackInput) -> Reversible:
        blocks = [make(layer, shape.depth) for layer in range(shape.depth)]
        if not blocks[0].pre:
            raise ConfigError("a norm after the residual sum cannot be undone; set norm: pre", "norm")
        return Reversible(self, blocks, entry)


class Reversible(Stack):
    """Each branch adds to one stream its output for the other, and the streams are swapped.

    Both streams are as wide as the model and start as x (the authors' code does the same). The output is their mean:
    that code concatenates them for a softmax twice as wide, which would fit neither tied embeddings nor a comparison
    with other stacks at equal parameters. A cross mixer is one more branch. Positions that are added at a later
    layer are added to both streams. Streams are float32 or finer, for half precision cannot be inverted accurately.
    State is a constant: with every mixer, no gradient flows to an earlier segment.
    """

    def __init__(self, config: ReversibleConfig, blocks: list[Block], entry: StackInput) -> None:
        super().__init__()
        self.recompute = config.recompute
        self.blocks = nn.ModuleList(blocks)
        self.entry = entry

    def forward(
        self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None, keep_hidden: bool = False
    ) -> StackOutput:
        forward_pass = ForwardPass(self, ctx, state, x.dtype, keep_hidden, self.recompute and torch.is_grad_enabled())
        x = self.entry(x, forward_pass.positions, 0, forward_pass.last)
        if forward_pass.recompute:
            parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
            apply = torch.compiler.disable(Recomputed.apply)
            y1, y2, *others = apply(forward_pass, full_precision(x), ctx.source, *parameters)
        else:
            y1, y2, *others = forward_pass.compute(full_precision(x), ctx.source)
        aux = dict(zip(forward_pass.losses, others, strict=False))
        streams = others[len(aux) :]
        hidden = tuple(
            mean((first, second), x.dtype) for first, second in zip(streams[::2], streams[1::2], strict=True)
        )
        y = mean((y1, y2), x.dtype)
        return StackOutput(y, tuple(forward_pass.states), aux, hidden, x if keep_hidden else None)

    def flops(self, queries: int, remembered: int, causal: bool = True, source: int = 0) -> int:
        """As in ``Stack.flops``, without recomputation in the backward pass, which costs one more forward pass."""
        return sum(block.flops(queries, remembered, causal, source) for block in self.steps())

    def steps(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def split(self, step: int) -> tuple[Stack, Stack]:
        reason = "a reversible stack passes two streams from layer to layer, so it cannot be divided"
        raise ConfigError(f"{reason}; set stack: sequential", "stack")

    def without_steps(self) -> Sequential:
        return Sequential([], self.entry)


def mean(pair: Pair, dtype: torch.dtype) -> Float[Tensor, "b t d"]:
    """Returns the mean of both streams."""
    return ((pair[0] + pair[1]) / 2).to(dtype)


class BranchCall(NamedTuple):
    """A branch, and all that it needs to be computed again: its state before the segment, the state of the random
    number generators at its start, and its discrete choices."""

    block: Block
    branch: Branch
    state: Any
    random: RandomState | None = None
    tape: Tape | None = None

    def parameters(self) -> list[Tensor]:
        modules = (self.branch.sublayer, self.branch.norm, self.branch.adapter)
        parameters = [parameter for module in modules if module is not None for parameter in module.parameters()]
        return [parameter for parameter in parameters if parameter.requires_grad]


class ForwardPass:
    """One pass through the stack; with ``recompute`` it records the inputs of the backward pass."""

    def __init__(
        self, stack: Reversible, ctx: Context, state: Any, dtype: torch.dtype, keep_hidden: bool, recompute: bool
    ) -> None:
        self.stack, self.ctx, self.state = stack, with_fields(ctx, source=None), detach(state)
        self.positions, self.last, self.device = stack.entry.drawn(ctx), stack.entry.last(ctx), ctx.positions.device
        self.dtype, self.keep_hidden, self.recompute = dtype, keep_hidden, recompute
        self.cast = autocast_of(self.device)
        self.states: list[dict[str, Any]] = []
        self.losses: list[str] = []
        self.calls: list[list[BranchCall]] = []

    def compute(self, x: Float[Tensor, "b t d"], source: Float[Tensor, "b s d"] | None) -> tuple[Tensor, ...]:
        """Returns both streams, the losses named in ``self.losses``, and, with ``keep_hidden``, both streams after each
        layer but the last."""
        y1, y2 = x, x
        aux: dict[str, Tensor] = {}
        streams: list[Tensor] = []
        for layer, block in enumerate(self.stack.steps()):
            if layer:
                streams += [y1, y2] if self.keep_hidden else []
                position_vectors = self.position_vectors(layer, x.dtype)
                y1, y2 = (y1, y2) if position_vectors is None else (y1 + position_vectors, y2 + position_vectors)
            self.states.append({})
            self.calls.append([])
            for branch in block.branches():
                call = BranchCall(block, branch, None if self.state is None else self.state[layer][branch.name])
                output = self.compute_first(call, y2, source) if self.recompute else self.run(call, y2, source)
                y1, y2 = y2, y1 + output.y
                self.states[layer][branch.name], aux = output.state, add_losses(aux, output.aux)
        self.losses = list(aux)
        return y1, y2, *aux.values(), *streams

    def position_vectors(self, layer: int, dtype: torch.dtype) -> Float[Tensor, "b t d"] | None:
        """Returns the vectors of the positions, or None if the layer adds none."""
        positions = self.stack.entry.positions
        return None if positions is None else positions.vectors(layer, self.positions, dtype, self.last)

    def run(self, call: BranchCall, x: Float[Tensor, "b t d"], source: Float[Tensor, "b s d"] | None) -> MixerOutput:
        ctx = with_fields(self.ctx, source=source, tape=call.tape or self.ctx.tape)
        return call.block.compute(call.branch, x.to(self.dtype), ctx, call.state)

    def compute_first(
        self, call: BranchCall, x: Float[Tensor, "b t d"], source: Float[Tensor, "b s d"] | None
    ) -> MixerOutput:
        """Computes a branch for the first of two times. Gradients are on, for a mixer keeps another state without them;
        the graph is dropped with the branch."""
        call = with_fields(call, random=random_state(self.device), tape=Tape())
        self.calls[-1].append(call)
        with torch.enable_grad():
            output = self.run(call, x.detach(), source)
        losses = {name: loss.detach() for name, loss in output.aux.items()}
        return with_fields(output, y=output.y.detach(), state=detach(output.state), aux=losses)

    def compute_again(
        self, call: BranchCall, x: Float[Tensor, "b t d"], source: Float[Tensor, "b s d"] | None
    ) -> MixerOutput:
        """Computes a branch again with the same random numbers, choices and precision; the caller's are unchanged."""
        if call.tape is not None:
            call.tape.rewind()
        with torch.enable_grad(), self.cast(), drawn_again(call.random, self.device):
            return self.run(call, x, source)


class BackwardPass:
    """Goes from both streams at the end of a pass and their gradients back to those at its beginning."""

    def __init__(
        self, forward_pass: ForwardPass, y1: Tensor, y2: Tensor, source: Tensor | None, gradients: tuple[Tensor, ...]
    ) -> None:
        self.forward_pass, self.y1, self.y2, self.source = forward_pass, y1, y2, source
        self.gradient1, self.gradient2, *others = gradients
        self.loss_gradients = dict(zip(forward_pass.losses, others, strict=False))
        self.hidden_gradients = others[len(forward_pass.losses) :]
        self.gradients: dict[Tensor, Tensor] = {}

    def compute(self) -> None:
        for layer in reversed(range(len(self.forward_pass.calls))):
            for call in reversed(self.forward_pass.calls[layer]):
                self.undo_branch(call)
            if layer:
                self.undo_positions(layer)

    def undo_branch(self, call: BranchCall) -> None:
        """Inverts a branch, which mapped (a, b) to (b, a + f(b)), and adds up its gradients."""
        b = self.y1.detach().requires_grad_()
        reads_source = self.source is not None and call.branch.name == "cross"
        output = self.forward_pass.compute_again(call, b, self.source if reads_source else None)
        outputs, gradients = [output.y], [self.gradient2.to(output.y.dtype)]
        for name, loss in output.aux.items():
            if loss.requires_grad:
                outputs.append(loss)
                gradients.append(self.loss_gradients[name].to(loss.dtype))
        inputs = [b, *call.parameters()]
        if reads_source and self.source is not None and self.source.requires_grad:
            inputs.append(self.source)
        b_gradient, *other_gradients = torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)
        self.add(inputs[1:], other_gradients)
        self.y1, self.y2 = self.y2 - output.y.detach(), b.detach()
        self.gradient1, self.gradient2 = (
            self.gradient2,
            self.gradient1 if b_gradient is None else self.gradient1 + b_gradient,
        )

    def undo_positions(self, layer: int) -> None:
        """Subtracts from both streams the positions that were added before a layer; adds gradients of its output."""
        with torch.enable_grad():
            position_vectors = self.forward_pass.position_vectors(layer, self.y1.dtype)
        if position_vectors is not None:
            self.y1, self.y2 = self.y1 - position_vectors.detach(), self.y2 - position_vectors.detach()
            if position_vectors.requires_grad and self.forward_pass.stack.entry.positions is not None:
                parameters = list(self.forward_pass.stack.entry.positions.parameters())
                self.add(parameters, torch.autograd.grad(position_vectors, parameters, self.gradient1 + self.gradient2))
        if self.hidden_gradients:
            self.gradient1 = self.gradient1 + self.hidden_gradients[2 * layer - 2]
            self.gradient2 = self.gradient2 + self.hidden_gradients[2 * layer - 1]

    def add(self, tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        for tensor, gradient in zip(tensors, gradients, strict=True):
            if gradient is not None:
                self.gradients[tensor] = self.gradients[tensor] + gradient if tensor in self.gradients else gradient


class Recomputed(torch.autograd.Function):
    """A pass that keeps its outputs alone. Parameters are inputs, so that each gets its gradient once, however many
    layers use it, and DDP sees that all of them are used."""

    @staticmethod
    def forward(
        ctx: Any, forward_pass: ForwardPass, x: Tensor, source: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        outputs = forward_pass.compute(x, source)
        ctx.forward_pass = forward_pass
        ctx.save_for_backward(*outputs[:2], source, *parameters)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        y1, y2, source, *parameters = ctx.saved_tensors
        source_leaf = None if source is None else source.detach().requires_grad_(ctx.needs_input_grad[2])
        backward_pass = BackwardPass(ctx.forward_pass, y1, y2, source_leaf, gradients)
        backward_pass.compute()
        source_gradient = None if source_leaf is None else backward_pass.gradients.get(source_leaf)
        return (
            None,
            backward_pass.gradient1 + backward_pass.gradient2,
            source_gradient,
            *(backward_pass.gradients.get(parameter) for parameter in parameters),
        )
