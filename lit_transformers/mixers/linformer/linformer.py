"""Linformer: attention to a few projections of all keys (Wang et al. 2020, arXiv:2006.04768, section 4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, cast, final

from jaxtyping import Float
from torch import Tensor

from lit_transformers.attention.executors import Inputs, attend, attend_flops
from lit_transformers.attention.patterns import Band
from lit_transformers.config import Dropout, Fraction, Length
from lit_transformers.maps import LinearMap, products
from lit_transformers.mixer import (
    Context,
    Layered,
    LengthError,
    Mixer,
    MixerOutput,
    OutputProjection,
    Promises,
    Shape,
    at_layer,
)
from lit_transformers.mixers.heads import HeadsConfig, channels_of_a_head, join, split
from lit_transformers.mixers.linformer.projections import Projection, ProjectionKind, Size, build_projection
from lit_transformers.mixers.memory import some_key
from lit_transformers.space import Interval, Space

EVERYTHING = Band(None, None)


@final
class LinformerConfig(HeadsConfig, kind="linformer"):
    """rank: k, the keys that a sequence of the training length is projected to, for all layers or for each; projection:
    its kind; dropout: of the attention weights; frozen: whether the projections keep their random initial values.

    sharing of E (of keys) and F (of values): with "none" each head has its own; with "heads" all heads share them; with
    "key_value" E is F too; with "layers" all layers use the same one too.
    """

    space: ClassVar[Space] = {"rank": Interval(16, 256, log=True)}

    rank: Annotated[Layered, Length] = 128
    projection: ProjectionKind = "linear"
    sharing: Literal["none", "heads", "key_value", "layers"] = "none"
    frozen: bool = False
    dropout: Annotated[Fraction, Dropout] = 0.0

    def conflicts(self) -> Iterator[str]:
        if self.projection in ("mean", "max"):
            if self.sharing != "none":
                yield f"pooling by {self.projection} has no weights to share; write sharing: none"
            if self.frozen:
                yield f"pooling by {self.projection} has no weights to freeze; write frozen: false"
        if self.sharing == "layers" and isinstance(self.rank, tuple) and len(set(self.rank)) > 1:
            yield "layers that share one projection have one rank; give one number, or write sharing: key_value"

    def promises(self) -> Promises:
        reason = "every projected key is made of all positions, later ones too, and no mask takes them out again"
        return Promises(
            ("bidirectional",),
            refusals={
                "causal": reason,
                "cross": "its projections are as long as its own sequence, and a source has another length",
            },
        )

    def build(self, shape: Shape) -> Linformer:
        return Linformer(self, shape)


@final
class Linformer(Mixer):
    """softmax(Q (E K)^T / sqrt(k)) (F V), equation 7, with E and F on projected keys and values.

    Padding is set to zero before it is projected. Sequences may be as long as those of training; under pooling and
    convolution a shorter one fills fewer windows, and empty windows are masked, so that padding changes nothing.
    """

    def __init__(self, config: LinformerConfig, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dim, self.length = shape.heads, shape.dim, shape.max_length
        self.head_dim = channels_of_a_head(config.head_dim, shape)
        self.width = self.heads * self.head_dim
        self.dropout = config.dropout
        self.query = LinearMap(shape.dim, self.width, "query", bias=config.bias)
        self.key = LinearMap(shape.dim, self.width, "key", bias=config.bias)
        self.value = LinearMap(shape.dim, self.width, "value", bias=config.bias)
        self.merge = OutputProjection(self.width, shape, bias=config.bias)
        rank = at_layer(config.rank, shape, "mixer.rank")
        size = Size(self.length, rank, self.heads if config.sharing == "none" else 1, self.head_dim)

        def make_projection() -> Projection:
            return build_projection(config.projection, size, config.frozen)

        shared = config.sharing == "layers"
        self.keys = cast("Projection", shape.share("linformer", make_projection)) if shared else make_projection()
        self.values = make_projection() if config.sharing in ("none", "heads") else self.keys

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        if x.size(1) > self.length:
            raise LengthError(f"linformer was built for {self.length} positions and reads no {x.size(1)}")
        q, k, v = products(x, (self.query, self.key, self.value))
        key_mask = None
        if ctx.padding_mask is not None:
            k, v = (part * ctx.padding_mask[..., None] for part in (k, v))
            key_mask = some_key(self.keys.key_mask(ctx.padding_mask))
        heads = (self.heads, self.head_dim)
        k, v = (
            self.keys(k.unflatten(-1, heads), ctx.padding_mask),
            self.values(v.unflatten(-1, heads), ctx.padding_mask),
        )
        inputs = Inputs(split(q, self.heads), k, v, key_mask, crossed=True)
        dropout = self.dropout if self.training else 0.0
        return MixerOutput(self.merge(join(attend(EVERYTHING, inputs, scale=self.head_dim**-0.5, dropout=dropout))))

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        projection = self.keys.flops(queries, self.heads) + self.values.flops(queries, self.heads)
        attention = attend_flops(EVERYTHING, queries, self.keys.length_after(queries), self.width, causal=False)
        maps = (self.query, self.key, self.value, self.merge)
        return sum(linear.flops(queries) for linear in maps) + projection + attention
