"""Reversible residual layers (Gomez et al. 2017, arXiv:1707.04585; Kitaev et al. 2020, arXiv:2001.04451, section 3):
the backward pass finds the inputs of each layer from its outputs, so that memory does not grow with depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.block import Block, Branch, add_losses
from lit_transformers.config import ConfigError
from lit_transformers.mixer import Context, Mixed, Shape, Tape, detach, full_precision
from lit_transformers.recompute import RandomState, autocast_of, drawn_again, random_state
from lit_transformers.stacks.stack import Entry, MakeBlock, Stack, StackConfig, Stacked

Pair = tuple[Tensor, Tensor]


class ReversibleConfig(StackConfig, kind="reversible"):
    """Two residual streams, y1 = x1 + mix(x2) and y2 = x2 + feed(y1) (arXiv:2001.04451, section 3).

    recompute: activations are computed again in the backward pass; else the same network keeps them all.
    """

    recompute: bool = True

    def build(self, shape: Shape, make: MakeBlock, entry: Entry) -> Reversible:
        blocks = [make(layer, shape.depth) for layer in range(shape.depth)]
        if not blocks[0].pre:
            raise ConfigError("a norm after the residual sum cannot be undone; set norm: pre", "norm")
        return Reversible(self, blocks, entry)


class Reversible(Stack):
    """Each branch adds to one stream what it makes of the other, and the streams change places.

    Both streams are as wide as the model and start as x (the authors' code does the same). The output is their mean:
    that code concatenates them for a softmax twice as wide, which would neither fit symbols whose weights are tied nor
    be of equal parameters beside other stacks. A cross mixer is one more branch. Positions that are added at a later
    layer are added to both streams. Streams are float32 or finer, for half precision would not find its way back. What
    a state brings is a constant: no gradient flows to an earlier segment, whatever the mixer.
    """

    def __init__(self, config: ReversibleConfig, blocks: list[Block], entry: Entry) -> None:
        super().__init__()
        self.recompute = config.recompute
        self.blocks = nn.ModuleList(blocks)
        self.entry = entry

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None, keep_hidden: bool = False) -> Stacked:
        passed = Pass(self, ctx, state, x.dtype, keep_hidden, self.recompute and torch.is_grad_enabled())
        x = self.entry(x, passed.positions, 0)
        if passed.again:
            parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
            apply = torch.compiler.disable(Recomputed.apply)
            one, two, *rest = apply(passed, full_precision(x), ctx.source, *parameters)
        else:
            one, two, *rest = passed.compute(full_precision(x), ctx.source)
        aux = dict(zip(passed.losses, rest, strict=False))
        kept = rest[len(aux) :]
        hidden = tuple(mean((a, b), x.dtype) for a, b in zip(kept[::2], kept[1::2], strict=True))
        return Stacked(mean((one, two), x.dtype), tuple(passed.states), aux, hidden)

    def flops(self, queries: int, remembered: int, causal: bool = True, source: int = 0) -> int:
        """Without what the backward pass computes again: one forward pass more."""
        return sum(block.flops(queries, remembered, causal, source) for block in self.layers())

    def layers(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]


def mean(pair: Pair, dtype: torch.dtype) -> Float[Tensor, "b t d"]:
    """The mean of both streams."""
    return ((pair[0] + pair[1]) / 2).to(dtype)


class Half(NamedTuple):
    """A branch, and what it takes to compute it once more: what it read of the past, the random numbers that it began
    with, and its discrete choices."""

    block: Block
    branch: Branch
    state: Any
    random: RandomState | None = None
    tape: Tape | None = None

    def parameters(self) -> list[Tensor]:
        both = [*self.branch.sublayer.parameters(), *self.branch.norm.parameters()]
        return [parameter for parameter in both if parameter.requires_grad]


class Pass:
    """One pass through the stack; where it is to be computed ``again``, with what the way back needs."""

    def __init__(
        self, stack: Reversible, ctx: Context, state: Any, dtype: torch.dtype, keep_hidden: bool, again: bool
    ) -> None:
        self.stack, self.ctx, self.state = stack, ctx._replace(source=None), detach(state)
        self.positions, self.device = stack.entry.drawn(ctx), ctx.positions.device
        self.dtype, self.keep_hidden, self.again = dtype, keep_hidden, again
        self.cast = autocast_of(self.device)
        self.states: list[dict[str, Any]] = []
        self.losses: list[str] = []
        self.halves: list[list[Half]] = []

    def compute(self, x: Float[Tensor, "b t d"], source: Float[Tensor, "b s d"] | None) -> tuple[Tensor, ...]:
        """Both streams, the losses of ``self.losses``, and both streams after each layer but the last, where kept."""
        one, two = x, x
        aux: dict[str, Tensor] = {}
        kept: list[Tensor] = []
        for layer, block in enumerate(self.stack.layers()):
            if layer:
                kept += [one, two] if self.keep_hidden else []
                added = self.added(layer, x.dtype)
                one, two = (one, two) if added is None else (one + added, two + added)
            self.states.append({})
            self.halves.append([])
            for branch in block.branches():
                half = Half(block, branch, None if self.state is None else self.state[layer][branch.name])
                mixed = self.once(half, two, source) if self.again else self.run(half, two, source)
                one, two = two, one + mixed.y
                self.states[layer][branch.name], aux = mixed.state, add_losses(aux, mixed.aux)
        self.losses = list(aux)
        return one, two, *aux.values(), *kept

    def added(self, layer: int, dtype: torch.dtype) -> Float[Tensor, "b t d"] | None:
        """The vectors of the positions, where the layer takes any."""
        positions = self.stack.entry.positions
        return None if positions is None else positions.vectors(layer, self.positions, dtype)

    def run(self, half: Half, x: Float[Tensor, "b t d"], source: Float[Tensor, "b s d"] | None) -> Mixed:
        ctx = self.ctx._replace(source=source, tape=half.tape or self.ctx.tape)
        return half.block.compute(half.branch, x.to(self.dtype), ctx, half.state)

    def once(self, half: Half, x: Float[Tensor, "b t d"], source: Float[Tensor, "b s d"] | None) -> Mixed:
        """The first of two computations. Gradients are on, for without them a mixer remembers otherwise; the graph is
        dropped with the branch."""
        half = half._replace(random=random_state(self.device), tape=Tape())
        self.halves[-1].append(half)
        with torch.enable_grad():
            y, state, aux = self.run(half, x.detach(), source)
        return Mixed(y.detach(), detach(state), {name: loss.detach() for name, loss in aux.items()})

    def twice(self, half: Half, x: Float[Tensor, "b t d"], source: Float[Tensor, "b s d"] | None) -> Mixed:
        """The second, with the same random numbers, choices and precision; the caller's own stay as they are."""
        if half.tape is not None:
            half.tape.rewind()
        with torch.enable_grad(), self.cast(), drawn_again(half.random, self.device):
            return self.run(half, x, source)


class WayBack:
    """From both streams at the end of a pass, and the gradients there, to those at its beginning."""

    def __init__(
        self, passed: Pass, one: Tensor, two: Tensor, source: Tensor | None, gradients: tuple[Tensor, ...]
    ) -> None:
        self.passed, self.one, self.two, self.source = passed, one, two, source
        self.to_one, self.to_two, *rest = gradients
        self.of_losses = dict(zip(passed.losses, rest, strict=False))
        self.of_kept = rest[len(passed.losses) :]
        self.found: dict[Tensor, Tensor] = {}

    def walk(self) -> None:
        for layer in reversed(range(len(self.passed.halves))):
            for half in reversed(self.passed.halves[layer]):
                self.undo(half)
            if layer:
                self.leave(layer)

    def undo(self, half: Half) -> None:
        """Forward, (a, b) became (b, a + f(b))."""
        b = self.one.detach().requires_grad_()
        crossed = self.source is not None and half.branch.name == "cross"
        mixed = self.passed.twice(half, b, self.source if crossed else None)
        outputs, gradients = [mixed.y], [self.to_two.to(mixed.y.dtype)]
        for name, loss in mixed.aux.items():
            if loss.requires_grad:
                outputs.append(loss)
                gradients.append(self.of_losses[name].to(loss.dtype))
        inputs = [b, *half.parameters()]
        if crossed and self.source is not None and self.source.requires_grad:
            inputs.append(self.source)
        to_b, *to_others = torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)
        self.add(inputs[1:], to_others)
        self.one, self.two = self.two - mixed.y.detach(), b.detach()
        self.to_one, self.to_two = self.to_two, self.to_one if to_b is None else self.to_one + to_b

    def leave(self, layer: int) -> None:
        """Takes off both streams what positions added before a layer, and adds the gradients of what was kept there."""
        with torch.enable_grad():
            added = self.passed.added(layer, self.one.dtype)
        if added is not None:
            self.one, self.two = self.one - added.detach(), self.two - added.detach()
            if added.requires_grad and self.passed.stack.entry.positions is not None:
                learned = list(self.passed.stack.entry.positions.parameters())
                self.add(learned, torch.autograd.grad(added, learned, self.to_one + self.to_two))
        if self.of_kept:
            self.to_one = self.to_one + self.of_kept[2 * layer - 2]
            self.to_two = self.to_two + self.of_kept[2 * layer - 1]

    def add(self, learned: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        for tensor, gradient in zip(learned, gradients, strict=True):
            if gradient is not None:
                self.found[tensor] = self.found[tensor] + gradient if tensor in self.found else gradient


class Recomputed(torch.autograd.Function):
    """A pass of which the outputs alone are kept. Its parameters are inputs, so that each gets its gradient once,
    however many layers use it, and DDP finds all of them used."""

    @staticmethod
    def forward(ctx: Any, passed: Pass, x: Tensor, source: Tensor | None, *parameters: Tensor) -> tuple[Tensor, ...]:
        outputs = passed.compute(x, source)
        ctx.passed = passed
        ctx.save_for_backward(*outputs[:2], source, *parameters)
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        one, two, source, *parameters = ctx.saved_tensors
        leaf = None if source is None else source.detach().requires_grad_(ctx.needs_input_grad[2])
        way = WayBack(ctx.passed, one, two, leaf, gradients)
        way.walk()
        to_source = None if leaf is None else way.found.get(leaf)
        return None, way.to_one + way.to_two, to_source, *(way.found.get(parameter) for parameter in parameters)
