"""Linear attention (Katharopoulos et al. 2020, arXiv:2006.16236, sections 3.2 and 3.3)."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.attention.recompute import no_autocast
from lit_transformers.config import Length, Positive, PositiveFloat
from lit_transformers.mixer import Context, Mixer, MixerOutput, OutputProjection, Promises, Shape, full_precision
from lit_transformers.mixers.feature_maps import FEATURE_MAPS, Features
from lit_transformers.mixers.heads import HeadsConfig, channels_of_a_head, join, split
from lit_transformers.mixers.memory import refuse_gradients


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
        self.query, self.key, self.value = (nn.Linear(shape.dim, self.width, bias=config.bias) for _ in range(3))
        self.merge = OutputProjection(self.width, shape, bias=config.bias)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        q = self._features(self.query(x))
        if ctx.causal and ctx.source is None:
            k, v = self._keys(x, ctx.padding_mask)
            past = state if state is not None else self.nothing(q)
            with no_autocast(x.device):
                y, sums = causal(q, k, v, past, min(self.chunk_length, x.size(1)), self.eps)
            return MixerOutput(self.merge(join(y).to(x.dtype)), sums)
        if state is not None:
            refuse_gradients()
        source, padding_mask = (x, ctx.padding_mask) if ctx.source is None else (ctx.source, ctx.source_padding_mask)
        keys = self._keys(source, padding_mask) if state is None else ()
        with no_autocast(x.device):
            sums = whole(*keys) if keys else state
            y = (q @ sums["products"]) / (q @ sums["features"][..., None] + self.eps)
        keeps = ctx.source is not None and not torch.is_grad_enabled()
        return MixerOutput(self.merge(join(y).to(x.dtype)), sums if keeps else None)

    def _features(self, x: Float[Tensor, "b t c"]) -> Float[Tensor, "b h t f"]:
        with no_autocast(x.device):
            return self.phi.apply(split(full_precision(x), self.heads))

    def _keys(
        self, x: Float[Tensor, "b s d"], padding_mask: Bool[Tensor, "b s"] | None
    ) -> tuple[Float[Tensor, "b h s f"], Float[Tensor, "b h s k"]]:
        """Returns features of keys, with zeros at padding, so that it adds nothing to the sums; and values."""
        k, v = self._features(self.key(x)), split(full_precision(self.value(x)), self.heads)
        return k if padding_mask is None else k * padding_mask[:, None, :, None], v

    def nothing(self, q: Float[Tensor, "b h t f"]) -> Sums:
        """Returns the sums before the first position, which are zero."""
        rows, heads, _, features = q.shape
        products = q.new_zeros(rows, heads, features, self.head_dim)
        return Sums(products=products, features=q.new_zeros(rows, heads, features))

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
        return queries * 8 * self.dim * self.width + padded * self.heads * (within + 2 * sums)

    def cross_flops(self, queries: int, source: int) -> int:
        features = self.phi.channels(self.head_dim)
        products = 2 * self.heads * features * (source * self.head_dim + queries * (self.head_dim + 1))
        return 4 * self.dim * self.width * (queries + source) + products


def whole(k: Float[Tensor, "b h s f"], v: Float[Tensor, "b h s k"]) -> Sums:
    """Returns the sums over all keys, which every query reads."""
    return Sums(products=k.mT @ v, features=k.sum(dim=2))


def causal(
    q: Float[Tensor, "b h t f"],
    k: Float[Tensor, "b h t f"],
    v: Float[Tensor, "b h t k"],
    past: Sums,
    length: int,
    eps: float,
) -> tuple[Float[Tensor, "b h t k"], Sums]:
    """Returns the outputs of queries that read the keys up to their own and the past, and the sums after the last key.

    Products within a chunk of ``length`` are matrices, and later chunks read one sum per chunk, so that memory grows
    with t (length + f k / length) and not with the t f k of a sum for every position.
    """
    t = q.size(2)
    chunks = -(-t // length)
    q, k, v = (in_chunks(part, chunks, length) for part in (q, k, with_ones(v)))
    start = torch.cat([past["products"], past["features"][..., None]], dim=-1)
    sums = torch.cat([start[:, :, None], k.mT @ v], dim=2).cumsum(dim=2)
    y = (q @ k.mT).tril() @ v + q @ sums[:, :, :-1]
    y = (y[..., :-1] / (y[..., -1:] + eps)).flatten(2, 3)[:, :, :t]
    last = sums[:, :, -1].clone()  # a view would keep the sums of all chunks alive
    return y, Sums(products=last[..., :-1], features=last[..., -1])


def with_ones(v: Float[Tensor, "b h s k"]) -> Float[Tensor, "b h s k+1"]:
    """Appends to values a column of ones, whose weighted sum is the denominator."""
    return torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)


def in_chunks(part: Float[Tensor, "b h t f"], chunks: int, length: int) -> Float[Tensor, "b h c l f"]:
    """Cuts a tensor into chunks along time; the last one is padded with zeros, which add nothing to a sum."""
    return F.pad(part, (0, 0, 0, chunks * length - part.size(2))).unflatten(2, (chunks, length))
