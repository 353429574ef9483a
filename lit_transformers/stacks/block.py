"""One layer: a mixer, an optional cross mixer and a feed-forward, each in a residual branch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.config import Config, Dropout, Fraction
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, Mode, Shape
from lit_transformers.mixers import AttentionConfig
from lit_transformers.stacks.feedforward import FeedForwardConfig, TransitionConfig


class BlockConfig(Config):
    """One layer. norm: "post" normalises after each residual sum (arXiv:1706.03762), "pre" before each sublayer
    (arXiv:2002.04745); dropout: applied to each sublayer's output."""

    mixer: MixerConfig = AttentionConfig()
    feedforward: TransitionConfig = FeedForwardConfig()
    norm: Literal["pre", "post"] = "pre"
    dropout: Annotated[Fraction, Dropout] = 0.0

    def build_block(self, shape: Shape, mode: Mode, cross: MixerConfig | None = None) -> Block:
        """Builds the layer. Raises ConfigError where a mixer does not support the mode it is used in."""
        mixer = self.mixer.build(shape)
        self.mixer.require(mode)
        cross_mixer = cross.build(shape) if cross else None
        if cross is not None:
            cross.require("cross")
        return Block(self, shape, mixer, cross_mixer)


class Branch(NamedTuple):
    """A sublayer of a block and its norm. All have the same signature; a cross mixer's state belongs to the source."""

    name: str
    sublayer: nn.Module
    norm: nn.Module


class Block(nn.Module):
    """Computes x + mix(norm(x)), or norm(x + mix(x)), and the same for the cross mixer and the feed-forward.

    The state is a dict from the name of each branch to that branch's state.
    """

    def __init__(self, config: BlockConfig, shape: Shape, mixer: Mixer, cross: Mixer | None) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.mixer, self.mixer_norm = mixer, nn.LayerNorm(shape.dim)
        self.cross, self.cross_norm = cross, nn.LayerNorm(shape.dim) if cross else None
        self.feedforward, self.feedforward_norm = config.feedforward.build(shape), nn.LayerNorm(shape.dim)
        self.dropout = nn.Dropout(config.dropout)

    def branches(self) -> Iterator[Branch]:
        """Yields the branches in the order in which they are computed."""
        yield Branch("mixer", self.mixer, self.mixer_norm)
        if self.cross is not None and self.cross_norm is not None:
            yield Branch("cross", self.cross, self.cross_norm)
        yield Branch("feedforward", self.feedforward, self.feedforward_norm)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        states: dict[str, Any] = {}
        aux: dict[str, Tensor] = {}
        for branch in self.branches():
            output = self.compute(branch, x, ctx, None if state is None else state[branch.name])
            x = x + output.y
            if not self.pre:
                x = branch.norm(x)
            states[branch.name], aux = output.state, add_losses(aux, output.aux)
        return MixerOutput(x, states, aux)

    def compute(self, branch: Branch, x: Float[Tensor, "b t d"], ctx: Context, state: Any) -> MixerOutput:
        """Returns what a branch adds to the residual sum, with its state and its auxiliary losses."""
        if branch.name != "cross":
            ctx = ctx._replace(source=None, source_padding_mask=None)
        x = branch.norm(x) if self.pre else x
        merged, ctx = side_by_side(x, ctx)
        output: MixerOutput = branch.sublayer(merged, ctx, state)
        return output._replace(y=self.dropout(output.y.reshape(x.shape)))

    def flops(self, queries: int, remembered: int, causal: bool = True, source: int = 0) -> int:
        """Forward FLOPs for one sequence; a cross mixer reads ``source`` tokens."""
        cross_flops = 0 if self.cross is None else self.cross.cross_flops(queries, source)
        return self.mixer.flops(queries, remembered, causal) + cross_flops + self.feedforward.flops(queries)


def side_by_side(x: Float[Tensor, "b t d"], ctx: Context) -> tuple[Float[Tensor, "n r d"], Context]:
    """Merges the rows that read the same source (the hypotheses of a search) into one row. A cross mixer treats each
    position independently, so neither the source nor its projections need be copied for each hypothesis."""
    if ctx.source is None or ctx.source.size(0) == x.size(0):
        return x, ctx
    rows = ctx.source.size(0)
    padding_mask = None if ctx.padding_mask is None else ctx.padding_mask.reshape(rows, -1)
    return x.reshape(rows, -1, x.size(-1)), ctx._replace(
        positions=ctx.positions.reshape(rows, -1), padding_mask=padding_mask
    )


def add_losses(first: Any, second: Any) -> dict[str, Tensor]:
    """Returns the sum of two sets of named losses, name by name."""
    totals = dict(first)
    for name, loss in second.items():
        totals[name] = totals[name] + loss if name in totals else loss
    return totals
