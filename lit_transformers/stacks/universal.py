"""The Universal Transformer (Dehghani et al. 2019, arXiv:1807.03819): one block, applied again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from lit_transformers.config import Config, ConfigError, NonNegativeFloat
from lit_transformers.encodings.positions import sinusoids
from lit_transformers.mixer import Context, MixerOutput, Shape
from lit_transformers.named_tuples import with_fields
from lit_transformers.observable import Observable
from lit_transformers.precision import full_precision
from lit_transformers.stacks.block import Block, add_losses
from lit_transformers.stacks.stack import MakeBlock, Stack, StackConfig, StackInput, StackOutput, require_between


class HaltingConfig(Config):
    """Adaptive computation time of each position (Graves 2016, arXiv:1603.08983, section 2).

    combine: how the output is computed from the steps. "sum" is Graves' weighted sum, in which the last step gets the
    remaining weight, so that weights sum to one. "interpolation" is the listing of arXiv:1807.03819, appendix D, where
    a step of weight w also scales the earlier sum by 1 - w: probabilities of 0.3 and 0.3 and a remainder of 0.4
    count as 0.126, 0.18 and 0.4, and a position that never halts has no remainder.
    epsilon: a position halts where its probabilities would exceed 1 - epsilon; ponder: weight of the loss, which is
    the mean of steps plus remainder over real tokens (section 2.1); bias: initial bias of the halting unit.
    """

    combine: Literal["sum", "interpolation"] = "sum"
    epsilon: Annotated[float, Field(gt=0, lt=1)] = 0.01
    ponder: NonNegativeFloat = 0.01
    bias: Annotated[float, Field(allow_inf_nan=False)] = 1.0

    def build(self, dim: int) -> Halting:
        return Halting(self, dim)


class UniversalConfig(StackConfig, kind="universal"):
    """One block applied ``depth`` times (Dehghani et al. 2019, arXiv:1807.03819, section 2.1).

    timestep: whether sinusoids of the step, counted from 1, are added before each step (equations 6 and 7, whose other
    summand is ``positions.per_layer``). halting: decides at each position how many steps count; None: all steps count.
    """

    timestep: bool = True
    halting: HaltingConfig | None = None

    def build(self, shape: Shape, make: MakeBlock, entry: StackInput) -> Universal:
        if self.timestep and shape.dim % 2:
            reason = f"sinusoids come in pairs, so dim must be even, not {shape.dim}; or set timestep: false"
            raise ConfigError(reason, "stack.timestep")
        if self.halting and shape.depth == 1:
            raise ConfigError("one step leaves nothing to decide; set depth: 2, or halting: null", "stack.halting")
        if entry.widen is not None:
            raise ConfigError("a universal stack reads embeddings as wide as its layers", "embedding_dim")
        block, halting = make(0, 1), self.halting.build(shape.dim) if self.halting else None
        return Universal(shape, block, entry, self.timestep, halting)


class Universal(Stack):
    """H^t = block(H^{t-1} + P^t). A fixed number of steps is taken, so that no shape depends on the data.

    A position is still transformed after it has halted, and its neighbours see that, as in the listing; the paper's
    text copies it instead. Only its contribution to the output ends.
    first: the number of its first step; above 0 for the upper part of a divided stack.
    """

    def __init__(
        self,
        shape: Shape,
        block: Block,
        entry: StackInput,
        timestep: bool,
        halting: Halting | None = None,
        first: int = 0,
    ) -> None:
        super().__init__()
        self.shape, self.timestep, self.first = shape, timestep, first
        self.block, self.entry, self.halting = block, entry, halting

    def forward(
        self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None, keep_hidden: bool = False
    ) -> StackOutput:
        states: list[Any] = []
        hidden: list[Tensor] = []
        aux: dict[str, Tensor] = {}
        positions, last, depth = self.entry.drawn(ctx), self.entry.last(ctx), self.shape.depth
        so_far = None if self.halting is None else HaltingState.nowhere(x)
        x = entered = self.before(x, positions, 0, last)
        for step in range(depth):
            before = self.before(x, positions, step, last) if step else x
            output: MixerOutput = self.block(before, ctx, None if state is None else state[step])
            x, aux = output.y, add_losses(aux, output.aux)
            if self.halting is not None and so_far is not None:
                so_far = self.halting(before, x, so_far, step == depth - 1)
            states.append(output.state)
            hidden.append(x)
        if self.halting is not None and so_far is not None:
            x = so_far.y.to(x.dtype)
            aux = add_losses(aux, {"ponder": self.halting.cost(so_far, ctx.padding_mask)})
        kept = (tuple(hidden[:-1]), entered) if keep_hidden else ((), None)
        return StackOutput(x, tuple(states), aux, *kept)

    def before(
        self, x: Float[Tensor, "b t d"], positions: Int[Tensor, "b t"], step: int, last: int | None
    ) -> Float[Tensor, "b t d"]:
        """Returns the input (b, t, d) of a step, given the output of the previous step: adds the sinusoids of the step,
        and applies the entry. positions, last: those of ``StackInput``."""
        number = self.first + step
        if self.timestep:
            x = x + sinusoids(torch.full((1, 1), number + 1, device=x.device), self.shape.dim, x.dtype)
        entered: Tensor = self.entry(x, positions, number, last)
        return entered

    def steps(self) -> Sequence[Block]:
        return [self.block] * self.shape.depth

    def flops(self, queries: int, remembered: int, causal: bool = True, source: int = 0) -> int:
        halting = 0 if self.halting is None else 2 * queries * self.shape.dim
        return self.shape.depth * (self.block.flops(queries, remembered, causal, source) + halting)

    def split(self, step: int) -> tuple[Universal, Universal]:
        require_between(step, self.shape.depth)
        if self.halting is not None:
            reason = "halting adds up over all steps, so the stack cannot be divided between them"
            raise ConfigError(f"{reason}; set halting: null", "stack.halting")
        return self._steps(self.first, step), self._steps(self.first + step, self.shape.depth - step)

    def without_steps(self) -> Universal:
        return self._steps(self.first, 0)

    def _steps(self, first: int, depth: int) -> Universal:
        """Returns a stack of ``depth`` steps of this one, without halting. first: the number of its first step."""
        return Universal(with_fields(self.shape, depth=depth), self.block, self.entry, self.timestep, None, first)


class HaltingState(NamedTuple):
    """The halting state of each position: its output so far, whether it is still running, the sum of its halting
    probabilities, the number of its steps, and the remainder that it halted with."""

    y: Float[Tensor, "b t d"]
    runs: Bool[Tensor, "b t"]
    total: Float[Tensor, "b t"]
    steps: Float[Tensor, "b t"]
    remainder: Float[Tensor, "b t"]

    @classmethod
    def nowhere(cls, x: Float[Tensor, "b t d"]) -> HaltingState:
        """Returns the halting state before the first step."""
        y = torch.zeros_like(full_precision(x))
        zero = y[..., 0]
        return cls(y, torch.ones_like(zero, dtype=torch.bool), zero, zero, zero)


class Halting(nn.Module, Observable):
    """p = sigmoid(w s + b) of the state s at the start of a step, as in the listing; Graves uses the state at its end.
    The bias is a separate parameter, for a model initialises the bias of a linear layer with zero."""

    def __init__(self, config: HaltingConfig, dim: int) -> None:
        super().__init__()
        self.summed, self.ponder, self.threshold = config.combine == "sum", config.ponder, 1 - config.epsilon
        self.unit = nn.Linear(dim, 1, bias=False)
        self.bias = nn.Parameter(torch.full((1,), config.bias))

    def forward(
        self, before: Float[Tensor, "b t d"], after: Float[Tensor, "b t d"], so_far: HaltingState, last: bool
    ) -> HaltingState:
        """Returns the halting state after one more step, which transforms the state ``before`` to ``after``."""
        y, runs, total, steps, remainder = so_far
        p = full_precision(self.unit(before).squeeze(-1) + self.bias).sigmoid()
        halts = runs if last and self.summed else runs & (total + p > self.threshold)
        continues = runs & ~halts
        new_remainder = (1 - total) * halts
        weight = (p * continues + new_remainder)[..., None]
        y = after * weight + (y if self.summed else y * (1 - weight))
        return HaltingState(y, continues, total + p * continues, steps + runs, remainder + new_remainder)

    def observed(self, inputs: Sequence[Any], output: HaltingState) -> Mapping[str, Tensor]:
        """Returns the distribution of steps, padding included, after the last step; nothing before it."""
        if not inputs[-1]:
            return {}
        counts = output.steps.long().flatten().bincount()[1:]
        return {"Share of tokens that took 1, 2, ... steps": counts / counts.sum()}

    def cost(self, halted: HaltingState, padding_mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, ""]:
        """The weighted ponder cost N + R. Its gradient flows through the remainder R alone: N is a count."""
        costs = halted.steps + halted.remainder
        if padding_mask is None:
            return self.ponder * costs.mean()
        return self.ponder * (costs * padding_mask).sum() / padding_mask.sum().clamp(min=1)
