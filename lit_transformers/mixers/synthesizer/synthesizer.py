"""Synthesizer: attention without, or not only with, dot products (Tay et al. 2020, arXiv:2005.00743, section 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.attention.executors import Inputs, attend, attend_flops, plan_of
from lit_transformers.attention.patterns import BLOCK, Band
from lit_transformers.attention.relative import Table
from lit_transformers.config import Dropout, Fraction, Length, Positive
from lit_transformers.maps import LinearMap
from lit_transformers.mixer import (
    Context,
    LengthError,
    Mixer,
    MixerOutput,
    OutputProjection,
    Promises,
    Shape,
)
from lit_transformers.mixers.heads import HeadsConfig, channels_of_a_head, join, split
from lit_transformers.mixers.synthesizer.logits import (
    Dense,
    DotProduct,
    FactorisedDense,
    FactorisedRandom,
    Logits,
    Member,
    Products,
    Random,
    Rows,
)
from lit_transformers.named_tuples import with_fields


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

    vector_parameters: ClassVar[tuple[str, ...]] = ("mixture",)

    def __init__(self, config: SynthesizerConfig, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dim, self.length = shape.heads, shape.dim, shape.max_length
        self.head_dim = channels_of_a_head(config.head_dim, shape)
        self.width = self.heads * self.head_dim
        self.dropout = config.dropout
        self.logits = nn.ModuleList(config.build_member(member, shape, self.head_dim) for member in config.members)
        several = len(config.members) > 1
        by_rows = [type(logits) for logits in self.logits if isinstance(logits, Rows)]
        self.synthesised = Synthesised(by_rows, several)
        self.mixture = nn.Parameter(torch.zeros(len(config.members), self.heads)) if several else None
        self.value = LinearMap(shape.dim, self.width, "value", bias=config.bias)
        self.merge = OutputProjection(self.width, shape, bias=config.bias)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        if x.size(1) > self.length:
            raise LengthError(f"synthesizer was built for {self.length} positions and reads no {x.size(1)}")
        pattern = Band(None, 0 if ctx.causal else None)
        dropout, key_mask = self.dropout if self.training else 0.0, ctx.key_mask
        q, k, rows, v = *self.parts(x), split(self.value(x), self.heads)
        inputs = Inputs(q.to(v.dtype), k.to(v.dtype), v, key_mask, others=rows)
        is_shared = all(part.size(0) == 1 for part in (q, *rows)) and key_mask is None and not dropout
        if is_shared and len(x) > 1:  # the weights of all rows of the batch are computed once
            inputs = with_fields(inputs, v=v.permute(1, 2, 0, 3).flatten(2)[None])
            y = attend(pattern, inputs, encoding=self.synthesised, scale=1.0)
            y = y[0].unflatten(-1, (-1, self.head_dim)).permute(2, 0, 1, 3)
        elif rows:
            inputs = with_fields(inputs, q=inputs.q.expand(len(x), -1, -1, -1), k=inputs.k.expand(len(x), -1, -1, -1))
            y = attend(pattern, inputs, encoding=self.synthesised, scale=1.0, dropout=dropout)
        else:
            y = attend(pattern, of_equal_widths(inputs), scale=1.0, dropout=dropout)[..., : self.head_dim]
        return MixerOutput(self.merge(join(y)))

    def parts(self, x: Float[Tensor, "b t d"]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Returns the vectors of queries and keys of all products (b, h, t, n), with b = 1 where they are the same for
        all rows, and the parts of the logits of ``Rows``, each with its share."""
        shares = [None] * len(self.logits) if self.mixture is None else self.mixture.softmax(dim=0)[..., None, None]
        vectors: list[tuple[Tensor, Tensor]] = []
        rows: list[Tensor] = []
        for share, logits in zip(shares, self.logits, strict=True):
            if isinstance(logits, Products):
                q, k = logits.factors(x)
                vectors.append((q if share is None else q * share, k))
            elif isinstance(logits, Rows):
                rows += logits.rows(x)
                rows += [] if share is None else [share.expand(1, -1, x.size(1), -1)]
        nothing = self.value.weight.new_zeros(1, 1, x.size(1), 0)
        q, k = (beside(parts, self.heads) for parts in zip((nothing, nothing), *vectors, strict=True))
        return q, k, tuple(rows)

    def decoding_state(self, length: int) -> int:
        """As in ``Mixer.decoding_state``: values and, where dot products are among the members, keys."""
        compared = any(isinstance(logits, DotProduct) for logits in self.logits)
        return (2 if compared else 1) * self.width * length

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        total = sum(logits.flops(queries) for logits in self.logits if isinstance(logits, Logits))
        total += self.value.flops(queries) + self.merge.flops(queries)
        channels = sum(logits.channels for logits in self.logits if isinstance(logits, Products))
        pattern = Band(None, 0 if causal else None)
        if not self.synthesised.kinds:
            return total + attend_flops(pattern, queries, queries, self.heads * max(channels, self.head_dim))
        pairs = sum(len(block.queries) * len(block.keys) for block in plan_of(pattern, queries, queries, 0, BLOCK))
        return total + 2 * pairs * self.heads * (channels + self.head_dim)


@final
class Synthesised:
    """Scores that are the products of queries and keys plus, for each member of ``kinds``, the logits of its rows.
    shared: whether these are multiplied by the member's share, which is the last of its tensors."""

    def __init__(self, kinds: Sequence[type[Rows]], shared: bool) -> None:
        self.kinds, self.shared = kinds, shared

    def scores(
        self,
        queries: tuple[Float[Tensor, "#b #h t _"], ...],
        k: Float[Tensor, "b h s n"],
        tables: tuple[Table, ...],
        scale: float,
    ) -> Float[Tensor, "b h t s"]:
        """As in ``Relative.scores``."""
        q, *rows = queries
        total = q @ k.mT
        for kind in self.kinds:
            own, rows = rows[: kind.count + self.shared], rows[kind.count + self.shared :]
            logits = kind.of_rows(tuple(own[: kind.count]), k.size(-2))
            total = total + (logits * own[-1] if self.shared else logits)
        return total

    def values(self, weights: Float[Tensor, "b h t s"], tables: tuple[Table, ...]) -> None:
        return None


def beside(parts: Sequence[Float[Tensor, "#b #h t _"]], heads: int) -> Float[Tensor, "#b h t n"]:
    """Joins the channels of parts, for all heads, and for each row separately if any part differs between rows."""
    rows = max(part.size(0) for part in parts)
    return torch.cat([part.expand(rows, heads, -1, -1) for part in parts], dim=-1)


def of_equal_widths(inputs: Inputs) -> Inputs:
    """Returns inputs with as many channels of queries and keys as of values, which fused kernels require, for all rows;
    added channels are zero."""
    rows, width = inputs.v.size(0), max(inputs.q.size(-1), inputs.v.size(-1))
    q, k, v = (F.pad(x, (0, width - x.size(-1))).expand(rows, -1, -1, -1) for x in inputs[:3])
    return with_fields(inputs, q=q, k=k, v=v)
