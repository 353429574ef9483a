"""Linformer: attention to a few projections of all keys (Wang et al. 2020, arXiv:2006.04768, section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, cast

from jaxtyping import Float
from torch import Tensor, nn

from lit_transformers.config import Fraction
from lit_transformers.executors import Inputs, attend, attend_flops
from lit_transformers.mixer import Context, Layered, LengthError, Mixed, Mixer, Mode, OutputProjection, Shape, at_layer
from lit_transformers.mixers.heads import HeadsConfig, channels_of_a_head, join, split
from lit_transformers.mixers.memory import some_key
from lit_transformers.mixers.projections import Projection, ProjectionKind, Size, build_projection
from lit_transformers.patterns import Band
from lit_transformers.space import Interval, Space

EVERYTHING = Band(None, None)


class LinformerConfig(HeadsConfig, kind="linformer"):
    """rank: k, keys that are made of a sequence of the training length, for all layers or for each; projection: how;
    dropout: of the attention weights; frozen: the projections stay as they were drawn.

    sharing of E (of keys) and F (of values): "none", each head has its own; "heads" share them; "key_value", and E is
    F; "layers", and all layers have one.
    """

    space: ClassVar[Space] = {"rank": Interval(16, 256, log=True)}

    rank: Layered = 128
    projection: ProjectionKind = "linear"
    sharing: Literal["none", "heads", "key_value", "layers"] = "none"
    frozen: bool = False
    dropout: Fraction = 0.0

    def conflicts(self) -> Iterator[str]:
        if self.projection in ("mean", "max"):
            if self.sharing != "none":
                yield f"pooling by {self.projection} has no weights to share; write sharing: none"
            if self.frozen:
                yield f"pooling by {self.projection} has no weights to freeze; write frozen: false"
        if self.sharing == "layers" and isinstance(self.rank, tuple) and len(set(self.rank)) > 1:
            yield "layers that share one projection have one rank; give one number, or write sharing: key_value"

    def build(self, shape: Shape) -> Linformer:
        return Linformer(self, shape)


class Linformer(Mixer):
    """softmax(Q (E K)^T / sqrt(k)) (F V), equation 7, with E and F on projected keys and values.

    Padding is zero before it is projected. It takes sequences up to the training length; of pooling and convolution a
    shorter one fills fewer windows, and an empty window is not attended to, so that padding changes nothing.
    """

    bidirectional = True
    refusals: ClassVar[Mapping[Mode, str]] = {
        "causal": "every projected key is made of all positions, later ones too, and no mask takes them out again",
        "cross": "its projections are as long as its own sequence, and a source has another length",
    }

    def __init__(self, config: LinformerConfig, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dim, self.length = shape.heads, shape.dim, shape.max_length
        self.head_dim = channels_of_a_head(config.head_dim, shape)
        self.width = self.heads * self.head_dim
        self.dropout = config.dropout
        self.query, self.key, self.value = (nn.Linear(shape.dim, self.width, bias=config.bias) for _ in range(3))
        self.merge = OutputProjection(self.width, shape, bias=config.bias)
        rank = at_layer(config.rank, shape, "mixer.rank")
        size = Size(self.length, rank, self.heads if config.sharing == "none" else 1, self.head_dim)

        def make() -> Projection:
            return build_projection(config.projection, size, config.frozen)

        shared = config.sharing == "layers"
        self.keys = cast("Projection", shape.share("linformer", make)) if shared else make()
        self.values = make() if config.sharing in ("none", "heads") else self.keys

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        if x.size(1) > self.length:
            raise LengthError(f"linformer was built for {self.length} positions and reads no {x.size(1)}")
        k, v = self.key(x), self.value(x)
        seen = None
        if ctx.keep is not None:
            k, v = (part * ctx.keep[..., None] for part in (k, v))
            seen = some_key(self.keys.seen(ctx.keep))
        heads = (self.heads, self.head_dim)
        k, v = self.keys(k.unflatten(-1, heads), ctx.keep), self.values(v.unflatten(-1, heads), ctx.keep)
        inputs = Inputs(split(self.query(x), self.heads), k, v, seen, crossed=True)
        dropout = self.dropout if self.training else 0.0
        return Mixed(self.merge(join(attend(EVERYTHING, inputs, scale=self.head_dim**-0.5, dropout=dropout))))

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        projection = self.keys.flops(queries, self.heads) + self.values.flops(queries, self.heads)
        attention = attend_flops(EVERYTHING, queries, self.keys.made(queries), self.width, causal=False)
        return 8 * queries * self.dim * self.width + projection + attention
