"""Linear attention (Katharopoulos et al. 2020, arXiv:2006.16236, sections 3.2 and 3.3)."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.attention.recompute import Tensors, TensorSlice, carried, pieces_of
from lit_transformers.config import Length, Positive, PositiveFloat
from lit_transformers.maps import LinearMap, products
from lit_transformers.mixer import Context, Mixer, MixerOutput, OutputProjection, Promises, Shape
from lit_transformers.mixers.feature_maps import FEATURE_MAPS, FeatureMap, Features
from lit_transformers.mixers.heads import HeadsConfig, channels_of_a_head, join, split
from lit_transformers.mixers.memory import refuse_gradients
from lit_transformers.precision import full_precision, no_autocast


@final
class LinearConfig(HeadsConfig, kind="linear"):
    """features: the feature map phi, where elu means elu(x) + 1; eps: added to the denominator; chunk_length: positions
    that a causal pass reads at once, which affects only speed and memory."""

    features: Features = "elu"
    eps: PositiveFloat = 1e-6
    chunk_length: Annotated[Positive, Length] = 64

    def promises(self) -> Promises:
        return Promises(("causal", "bidirectional", "cross"), streams=True)

    def build(self, shape: Shape) -> Linear:
        return Linear(self, shape)


class Sums(TypedDict):
    """The state of linear attention, whose size does not depend on the length of the past (equations 10 and 11). Zeros
    are an empty past."""

    products: Float[Tensor, "b h f k"]
    features: Float[Tensor, "b h f"]


@final
class Linear(Mixer):
    """y_i = phi(q_i)^T S_i / (phi(q_i) . Z_i), S_i = sum of phi(k_j) v_j^T and Z_i = sum of phi(k_j), over j <= i where
    causal (equations 8 to 12), over all j of the sequence or of the source where not (equation 5).

    There is no division by sqrt(k). The sums, and all that is computed from phi, are in single precision or finer,
    under autocast too: in half precision they would stop growing. eps is not in the paper; its authors' code has 1e-6.
    """

    def __init__(self, config: LinearConfig, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dim = shape.heads, shape.dim
        self.head_dim = channels_of_a_head(config.head_dim, shape)
        self.width = self.heads * self.head_dim
        self.phi = FEATURE_MAPS[config.features]
        self.eps, self.chunk_length = config.eps, config.chunk_length
        self.query = LinearMap(shape.dim, self.width, "query", bias=config.bias)
        self.key = LinearMap(shape.dim, self.width, "key", bias=config.bias)
        self.value = LinearMap(shape.dim, self.width, "value", bias=config.bias)
        self.merge = OutputProjection(self.width, shape, bias=config.bias)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        q = split(self.query(x), self.heads)
        if ctx.causal and ctx.source is None:
            k, v = self._keys(x)
            past = state if state is not None else self.nothing(x)
            with no_autocast(x.device):
                length = min(self.chunk_length, x.size(1))
                y, sums = causal(self.phi, q, k, v, key_mask(ctx.padding_mask), past, length, self.eps)
            return MixerOutput(self.merge(join(y).to(x.dtype)), sums)
        if state is not None:
            refuse_gradients()
        source, padding_mask = (x, ctx.padding_mask) if ctx.source is None else (ctx.source, ctx.source_padding_mask)
        keys = self._keys(source) if state is None else ()
        with no_autocast(x.device):
            sums = whole(self.phi, *keys, key_mask(padding_mask)) if keys else state
            queries = features(self.phi, q)
            y = (queries @ sums["products"]) / (queries @ sums["features"][..., None] + self.eps)
        keeps = ctx.source is not None and not torch.is_grad_enabled()
        return MixerOutput(self.merge(join(y).to(x.dtype)), sums if keeps else None)

    def _keys(self, x: Float[Tensor, "b s d"]) -> tuple[Float[Tensor, "b h s k"], Float[Tensor, "b h s k"]]:
        k, v = products(x, (self.key, self.value))
        return split(k, self.heads), split(v, self.heads)

    def nothing(self, x: Float[Tensor, "b t d"]) -> Sums:
        """Returns the sums before the first position, which are zero."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        shape = x.size(0), self.heads, self.phi.channels(self.head_dim)
        return Sums(
            products=x.new_zeros(*shape, self.head_dim, dtype=dtype),
            features=x.new_zeros(shape, dtype=dtype),
        )

    def decoding_state(self, length: int) -> int:
        return self.heads * self.phi.channels(self.head_dim) * (self.head_dim + 1)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        if not causal:
            return self.cross_flops(queries, queries)
        features = self.phi.channels(self.head_dim)
        sums = 2 * features * (self.head_dim + 1)  # for one key, and as much for one query to read them
        chunk = min(self.chunk_length, queries)
        padded = -(-queries // chunk) * chunk
        within = 2 * chunk * (features + self.head_dim + 1)
        return self._projection_flops(queries, queries) + padded * self.heads * (within + 2 * sums)

    def cross_flops(self, queries: int, source: int) -> int:
        features = self.phi.channels(self.head_dim)
        products = 2 * self.heads * features * (source * self.head_dim + queries * (self.head_dim + 1))
        return self._projection_flops(queries, source) + products

    def _projection_flops(self, queries: int, keys: int) -> int:
        of_queries = self.query.flops(queries) + self.merge.flops(queries)
        return of_queries + self.key.flops(keys) + self.value.flops(keys)


def features(
    phi: FeatureMap, x: Float[Tensor, "b h s k"], mask: Bool[Tensor, "b 1 s 1"] | None = None
) -> Float[Tensor, "b h s f"]:
    """Returns the features of queries or of keys, with zeros at padding, so that it adds nothing to a sum."""
    mapped = phi.apply(full_precision(x))
    return mapped if mask is None else mapped * mask


def key_mask(padding_mask: Bool[Tensor, "b s"] | None) -> Bool[Tensor, "b 1 s 1"] | None:
    """Returns the mask of keys for all heads and channels."""
    return None if padding_mask is None else padding_mask[:, None, :, None]


def whole(
    phi: FeatureMap, k: Float[Tensor, "b h s k"], v: Float[Tensor, "b h s k"], mask: Bool[Tensor, "b 1 s 1"] | None
) -> Sums:
    """Returns the sums over all keys, which every query reads."""
    mapped = features(phi, k, mask)
    return Sums(products=mapped.mT @ full_precision(v), features=mapped.sum(dim=2))


def causal(
    phi: FeatureMap,
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h t k"],
    v: Float[Tensor, "b h t v"],
    mask: Bool[Tensor, "b 1 t 1"] | None,
    past: Sums,
    length: int,
    eps: float,
) -> tuple[Float[Tensor, "b h t v"], Sums]:
    """Returns the outputs of queries that read the keys up to their own and the past, and the sums after the last key.

    Products within a chunk of ``length`` are matrices, and later chunks read one sum per chunk, so that memory grows
    with t (length + f k / length) and not with the t f k of a sum for every position. Chunks are computed in pieces,
    and again by the backward pass, so that features, products and sums of a long row are never held at once.
    """
    start = torch.cat([past["products"], past["features"][..., None]], dim=-1)
    rows, heads, t, channels = q.shape
    if t == 1:
        return of_one_token(features(phi, q), features(phi, k, mask), with_ones(full_precision(v)), start, eps)
    places = pieces_of(t, rows * heads * channels, q.device, unit=length)
    tensors = {"q": (q,), "k": (k,), "v": (v,), "mask": () if mask is None else (mask,)}
    cuts = [{name: TensorSlice(name, rows=place) for name in tensors} for place in places]

    def read(number: int, leaves: Tensors, start: Tensor) -> tuple[Tensor, Tensor]:
        (q,), (k,), (v,), t = leaves["q"], leaves["k"], leaves["v"], places[number].length
        parts = features(phi, q), features(phi, k, *leaves["mask"]), with_ones(full_precision(v))
        q, k, v = (in_chunks(part, -(-t // length), length) for part in parts)
        sums = torch.cat([start[:, :, None], k.mT @ v], dim=2).cumsum(dim=2)
        y = (q @ k.mT).tril() @ v + q @ sums[:, :, :-1]
        return (y[..., :-1] / (y[..., -1:] + eps)).flatten(2, 3)[:, :, :t], sums[:, :, -1]

    y, last = carried(read, cuts, places, tensors, start)
    last = last.clone()  # a view would keep the sums of all chunks alive
    return y, Sums(products=last[..., :-1], features=last[..., -1])


def of_one_token(
    q: Float[Tensor, "b h 1 f"],
    k: Float[Tensor, "b h 1 f"],
    v: Float[Tensor, "b h 1 v+1"],
    start: Float[Tensor, "b h f v+1"],
    eps: float,
) -> tuple[Float[Tensor, "b h 1 v"], Sums]:
    """Returns the outputs of ``causal`` for a single token, to the bit, without its chunks and pieces."""
    y = (q @ k.mT) @ v + q @ start
    sums = start + k.mT @ v
    return y[..., :-1] / (y[..., -1:] + eps), Sums(products=sums[..., :-1], features=sums[..., -1])


def with_ones(v: Float[Tensor, "b h s k"]) -> Float[Tensor, "b h s k+1"]:
    """Appends to values a column of ones, whose weighted sum is the denominator."""
    return torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)


def in_chunks(part: Float[Tensor, "b h t f"], chunks: int, length: int) -> Float[Tensor, "b h c l f"]:
    """Cuts a tensor into chunks along time; the last one is padded with zeros, which add nothing to a sum."""
    return F.pad(part, (0, 0, 0, chunks * length - part.size(2))).unflatten(2, (chunks, length))
