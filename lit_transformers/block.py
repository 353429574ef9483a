"""One layer: a mixer, an optional cross mixer and a feed-forward, each in a residual branch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.config import Config, Fraction
from lit_transformers.feedforward import FeedForwardConfig, TransitionConfig
from lit_transformers.mixer import Context, Mixed, Mixer, MixerConfig, Mode, Shape
from lit_transformers.mixers import AttentionConfig


class BlockConfig(Config):
    """norm: "post" normalises after each residual sum (arXiv:1706.03762), "pre" before each sublayer
    (arXiv:2002.04745); dropout: of each sublayer's output."""

    mixer: MixerConfig = AttentionConfig()
    feedforward: TransitionConfig = FeedForwardConfig()
    norm: Literal["pre", "post"] = "pre"
    dropout: Fraction = 0.0

    def build_block(self, shape: Shape, mode: Mode, cross: MixerConfig | None = None) -> Block:
        """Raises ConfigError where a mixer does not promise the mode it is asked for."""
        mixer = self.mixer.build(shape)
        mixer.require(mode)
        crossed = cross.build(shape) if cross else None
        if crossed is not None:
            crossed.require("cross")
        return Block(self, shape, mixer, crossed)


class Branch(NamedTuple):
    """A sublayer of a block and its norm. All are called alike; the state of a cross mixer is of the source."""

    name: str
    sublayer: nn.Module
    norm: nn.Module


class Block(nn.Module):
    """x + mix(norm(x)), or norm(x + mix(x)); the same for the cross mixer and the feed-forward.

    State is {name of the branch: its state}.
    """

    def __init__(self, config: BlockConfig, shape: Shape, mixer: Mixer, cross: Mixer | None) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.mixer, self.mixer_norm = mixer, nn.LayerNorm(shape.dim)
        self.cross, self.cross_norm = cross, nn.LayerNorm(shape.dim) if cross else None
        self.feedforward, self.feedforward_norm = config.feedforward.build(shape), nn.LayerNorm(shape.dim)
        self.dropout = nn.Dropout(config.dropout)

    def branches(self) -> Iterator[Branch]:
        """In the order in which they are computed."""
        yield Branch("mixer", self.mixer, self.mixer_norm)
        if self.cross is not None and self.cross_norm is not None:
            yield Branch("cross", self.cross, self.cross_norm)
        yield Branch("feedforward", self.feedforward, self.feedforward_norm)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        states: dict[str, Any] = {}
        aux: dict[str, Tensor] = {}
        for branch in self.branches():
            added = self.compute(branch, x, ctx, None if state is None else state[branch.name])
            x = x + added.y
            if not self.pre:
                x = branch.norm(x)
            states[branch.name], aux = added.state, add_losses(aux, added.aux)
        return Mixed(x, states, aux)

    def compute(self, branch: Branch, x: Float[Tensor, "b t d"], ctx: Context, state: Any) -> Mixed:
        """What a branch adds to its residual sum."""
        if branch.name != "cross":
            ctx = ctx._replace(source=None, source_keep=None)
        x = branch.norm(x) if self.pre else x
        together, ctx = side_by_side(x, ctx)
        mixed: Mixed = branch.sublayer(together, ctx, state)
        return mixed._replace(y=self.dropout(mixed.y.reshape(x.shape)))

    def flops(self, queries: int, remembered: int, causal: bool = True, source: int = 0) -> int:
        """Forward FLOPs for one sequence; of a cross mixer, for one that reads a source of so many tokens."""
        crossed = 0 if self.cross is None else self.cross.cross_flops(queries, source)
        return self.mixer.flops(queries, remembered, causal) + crossed + self.feedforward.flops(queries)


def side_by_side(x: Float[Tensor, "b t d"], ctx: Context) -> tuple[Float[Tensor, "n r d"], Context]:
    """Rows that read one source (hypotheses of a search) as one row, for a cross mixer reads for each position alone:
    so no source, nor what was made of it, is copied for each of them."""
    if ctx.source is None or ctx.source.size(0) == x.size(0):
        return x, ctx
    rows = ctx.source.size(0)
    keep = None if ctx.keep is None else ctx.keep.reshape(rows, -1)
    return x.reshape(rows, -1, x.size(-1)), ctx._replace(positions=ctx.positions.reshape(rows, -1), keep=keep)


def add_losses(first: Any, second: Any) -> dict[str, Tensor]:
    """Named losses, summed by name."""
    total = dict(first)
    for name, loss in second.items():
        total[name] = total[name] + loss if name in total else loss
    return total
