"""One layer: a mixer, an optional cross mixer and a feed-forward, each in a residual branch."""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.config import Config, Fraction
from lit_transformers.feedforward import FeedForwardConfig
from lit_transformers.mixer import Context, Mixed, Mixer, MixerConfig, Mode, Shape
from lit_transformers.mixers import AttentionConfig


class BlockConfig(Config):
    """norm: "post" normalises after each residual sum (arXiv:1706.03762), "pre" before each sublayer
    (arXiv:2002.04745); dropout: of each sublayer's output."""

    mixer: MixerConfig = AttentionConfig()
    feedforward: FeedForwardConfig = FeedForwardConfig()
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


class Block(nn.Module):
    """x + mix(norm(x)), or norm(x + mix(x)); the same for the cross mixer and the feed-forward."""

    def __init__(self, config: BlockConfig, shape: Shape, mixer: Mixer, cross: Mixer | None) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.mixer, self.mixer_norm = mixer, nn.LayerNorm(shape.dim)
        self.cross, self.cross_norm = cross, nn.LayerNorm(shape.dim) if cross else None
        self.feedforward, self.feedforward_norm = config.feedforward.build(shape), nn.LayerNorm(shape.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        own = ctx._replace(source=None, source_keep=None)
        mixed: Mixed = self.mixer(self.mixer_norm(x) if self.pre else x, own, state)
        x = self._add(x, mixed.y, self.mixer_norm)
        aux = dict(mixed.aux)
        if self.cross is not None and self.cross_norm is not None:
            crossed: Mixed = self.cross(self.cross_norm(x) if self.pre else x, ctx)
            x = self._add(x, crossed.y, self.cross_norm)
            aux = add_losses(aux, crossed.aux)
        y = self.feedforward(self.feedforward_norm(x) if self.pre else x)
        return Mixed(self._add(x, y, self.feedforward_norm), mixed.state, aux)

    def _add(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        x = x + self.dropout(y)
        if not self.pre:
            x = norm(x)
        return x

    def flops(self, queries: int, remembered: int) -> int:
        """Forward FLOPs for one sequence, without the cross mixer (its source's length is another's)."""
        return self.mixer.flops(queries, remembered) + self.feedforward.flops(queries)


def add_losses(first: Any, second: Any) -> dict[str, Tensor]:
    """Named losses, summed by name."""
    total = dict(first)
    for name, loss in second.items():
        total[name] = total[name] + loss if name in total else loss
    return total
