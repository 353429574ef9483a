"""Synthesizer: attention without, or not only with, dot products (Tay et al. 2020, arXiv:2005.00743, section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Annotated, Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.attention.patterns import Band, visible
from lit_transformers.config import Dropout, Fraction, Length, Positive
from lit_transformers.mixer import (
    Context,
    LengthError,
    Mixer,
    MixerOutput,
    OutputProjection,
    Promises,
    Shape,
    full_precision,
)
from lit_transformers.mixers.heads import HeadsConfig, channels_of_a_head, join, split
from lit_transformers.mixers.synthesizer.logits import (
    Dense,
    DotProduct,
    FactorisedDense,
    FactorisedRandom,
    Logits,
    Member,
    Random,
)


@final
class SynthesizerConfig(HeadsConfig, kind="synthesizer"):
    """members: the sources of logits; several are mixed with learned weights that sum to one.

    factor: a of factorised_dense (None for the square root of the training length, rounded up); rank: of
    factorised_random (None for 8); per_head: whether heads have their own random matrices; dropout: of the attention
    weights. bias is of the projections of values, outputs and dot products: the others always have one.
    """

    members: tuple[Member, ...] = ("dense",)
    factor: Annotated[Positive | None, Length] = None
    rank: Annotated[Positive | None, Length] = None
    per_head: bool = True
    dropout: Annotated[Fraction, Dropout] = 0.0

    def conflicts(self) -> Iterator[str]:
        if not self.members or self.members == ("dot_product",):
            yield "logits must be synthesised from something; dot products alone are kind: attention"
        if len(set(self.members)) < len(self.members):
            yield "members names one twice: a mixture of two alike is one"
        if self.factor is not None and "factorised_dense" not in self.members:
            yield "factor is of factorised_dense, which is no member; drop it"
        if self.rank is not None and "factorised_random" not in self.members:
            yield "rank is of factorised_random, which is no member; drop it"
        if not self.per_head and not any("random" in member for member in self.members):
            yield "per_head is of random matrices, and no member has one; drop it"

    def promises(self) -> Promises:
        reason = "a synthesised logit is of a place in its own sequence; cross-attention stays one of dot products"
        return Promises(
            ("causal", "bidirectional"),
            refusals={
                "cross": reason,
            },
        )

    def build(self, shape: Shape) -> Synthesizer:
        return Synthesizer(self, shape)

    def build_member(self, member: Member, shape: Shape, head_dim: int) -> Logits:
        """Builds the source of logits of the given name."""
        heads = shape.heads if self.per_head else 1
        match member:
            case "dense":
                return Dense(shape, head_dim)
            case "factorised_dense":
                return FactorisedDense(shape, head_dim, self.factor)
            case "random" | "fixed_random":
                return Random(shape, heads, fixed=member == "fixed_random")
            case "factorised_random":
                return FactorisedRandom(shape, heads, self.rank or 8)
            case "dot_product":
                return DotProduct(shape, head_dim, self.bias)


@final
class Synthesizer(Mixer):
    """softmax(alpha_1 S_1 + ... + alpha_n S_n) V, the alphas of each head a softmax ("Mixture").

    Logits belong to positions in a sequence of the training length; a shorter one uses the first rows and columns.
    """

    def __init__(self, config: SynthesizerConfig, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dim, self.length = shape.heads, shape.dim, shape.max_length
        self.head_dim = channels_of_a_head(config.head_dim, shape)
        self.width = self.heads * self.head_dim
        self.dropout = config.dropout
        self.logits = nn.ModuleList(config.build_member(member, shape, self.head_dim) for member in config.members)
        several = len(config.members) > 1
        self.mixture = nn.Parameter(torch.zeros(len(config.members), self.heads)) if several else None
        self.value = nn.Linear(shape.dim, self.width, bias=config.bias)
        self.merge = OutputProjection(self.width, shape, bias=config.bias)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        if x.size(1) > self.length:
            raise LengthError(f"synthesizer was built for {self.length} positions and reads no {x.size(1)}")
        positions = torch.arange(x.size(1), device=x.device)
        pattern = Band(None, 0 if ctx.causal else None)
        mask = visible(pattern, positions[:, None], positions, ctx.padding_mask, x.size(0), self.heads)
        v = split(self.value(x), self.heads)
        weights = full_precision(self.mix(x)).masked_fill(~mask, float("-inf")).softmax(dim=-1).to(v.dtype)
        if self.training and self.dropout:
            weights = F.dropout(weights.expand(v.size(0), self.heads, -1, -1), self.dropout)
        return MixerOutput(self.merge(join(weighted(weights, v))))

    def mix(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "#b #h t t"]:
        """Returns the weighted sum of all members' logits."""
        if self.mixture is None:
            only_logits: Tensor = self.logits[0](x)
            return only_logits
        shares = self.mixture.softmax(dim=0)[..., None, None]
        return reduce(torch.add, (share * logits(x) for share, logits in zip(shares, self.logits, strict=True)))

    def decoding_state(self, length: int) -> int:
        """As in ``Mixer.decoding_state``: values and, where dot products are among the members, keys."""
        compared = any(isinstance(logits, DotProduct) for logits in self.logits)
        return (2 if compared else 1) * self.width * length

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        synthesised = sum(logits.flops(queries) for logits in self.logits if isinstance(logits, Logits))
        return synthesised + 4 * queries * self.dim * self.width + 2 * queries**2 * self.width


def weighted(weights: Float[Tensor, "#b #h t t"], v: Float[Tensor, "b h t k"]) -> Float[Tensor, "b h t k"]:
    """Returns the product of weights and values; weights shared by all rows are not copied for each of them."""
    if weights.size(0) == v.size(0):
        return weights @ v
    columns = v.permute(1, 2, 0, 3)
    return (weights[0] @ columns.flatten(2)).view_as(columns).permute(2, 0, 1, 3)
