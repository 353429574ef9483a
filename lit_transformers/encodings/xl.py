"""The relative encoding of Transformer-XL (Dai et al. 2019, arXiv:1901.02860, section 3.3), with XLNet's segments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.attention.relative import Relative, Table, for_queries
from lit_transformers.config import ConfigError, Length, NonNegative, Segments
from lit_transformers.encodings.encoding import EncodingConfig
from lit_transformers.encodings.positions import sinusoids
from lit_transformers.mixer import Shape


class XLConfig(EncodingConfig, kind="xl"):
    """biases: whether layers share u and v or have their own; clamp_length: longer distances are treated as this one.

    content_bias and position_bias switch the terms of u and of v on and off (Shaw et al. have neither).
    segments: number of segments of a row that scores distinguish, 0 for none: a term of the score says whether query
    and key are of the same one (arXiv:1906.08237, section 2.5). Memory counts as the first, as in XLNet's code.
    """

    biases: Literal["shared", "per_layer"] = "shared"
    content_bias: bool = True
    position_bias: bool = True
    clamp_length: Annotated[NonNegative | None, Length] = None
    segments: Annotated[NonNegative, Segments] = 0

    def conflicts(self) -> Iterator[str]:
        if self.biases == "per_layer" and not (self.content_bias or self.position_bias):
            yield "without content_bias and position_bias there is nothing for layers to own; write biases: shared"
        if self.segments == 1:
            yield "a single segment is no distinction; set segments to 0, 2 or more"

    @property
    def tells_segments(self) -> bool:
        return self.segments > 0

    def build(self, shape: Shape, head_dim: int) -> XL:
        return XL(self, shape, head_dim)


class XL(Relative):
    """A_ij = (q_i + u) . k_j + (q_i + v) . W_R R_(i-j), with sinusoidal R: distances are
    signed, so it serves both directions."""

    def __init__(self, config: XLConfig, shape: Shape, head_dim: int) -> None:
        super().__init__()
        if shape.dim % 2:
            raise ConfigError(f"sinusoids come in pairs, so dim must be even, not {shape.dim}", "dim")
        self.dim, self.heads, self.head_dim = shape.dim, shape.heads, head_dim
        self.clamp_length = config.clamp_length
        self.project = nn.Linear(shape.dim, shape.heads * head_dim, bias=False)

        def bias(name: str, present: bool) -> nn.Module | None:
            if not present:
                return None
            return shape.share(name, make) if config.biases == "shared" else make()

        def make() -> HeadBias:
            return HeadBias(shape.heads, head_dim)

        self.content = bias("xl.u", config.content_bias)
        self.position = bias("xl.v", config.position_bias)
        self.segments = RelativeSegments(config.segments, shape.heads, head_dim) if config.segments else None

    def tables(self, distances: Int[Tensor, " w"], causal: bool) -> tuple[Tensor, ...]:
        if self.clamp_length is not None:
            distances = distances.clamp(-self.clamp_length, self.clamp_length)
        waves = sinusoids(distances, self.dim, self.project.weight.dtype)
        return (self.project(waves).unflatten(-1, (self.heads, self.head_dim)).transpose(0, 1),)

    def queries(self, q: Float[Tensor, "b h t k"]) -> tuple[Float[Tensor, "b h t k"], ...]:
        return tuple(q if bias is None else bias(q) for bias in (self.content, self.position))

    def by_segment(
        self, q: Float[Tensor, "b h t k"], segments: Int[Tensor, "b s"]
    ) -> tuple[Float[Tensor, "b h t n"], Float[Tensor, "b h s n"]] | None:
        return None if self.segments is None else self.segments(q, segments)

    def added_scores(
        self,
        queries: tuple[Float[Tensor, "b h t k"], ...],
        k: Float[Tensor, "b h s k"],
        tables: tuple[Table, ...],
        scale: float,
    ) -> Float[Tensor, "b h t s"]:
        return for_queries(queries[1] * scale, tables[0], k.size(-2))

    def segment_flops(self, queries: int) -> int:
        return 0 if self.segments is None else 4 * queries * self.heads * self.head_dim

    def table_flops(self, distances: int) -> int:
        return 2 * distances * self.dim * self.heads * self.head_dim

    def block_flops(self, queries: int, keys: int, distances: int) -> int:
        by_segment = 0 if self.segments is None else 2 * queries * keys * self.segments.count
        return self.heads * (2 * self.head_dim * queries * (keys + distances) + by_segment)

    def listed_flops(self, queries: int, keys: int) -> int:
        return self.block_flops(queries, keys, keys)


class RelativeSegments(nn.Module):
    """(q_i + b) . s_ij, where s_ij is one learned vector of a head if query i and key j are of the same of ``count``
    segments, and another one if they are not."""

    def __init__(self, count: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.count, self.bias = count, HeadBias(heads, head_dim)
        self.weight = nn.Parameter(torch.empty(2, heads, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(
        self, q: Float[Tensor, "b h t k"], segments: Int[Tensor, "b s"]
    ) -> tuple[Float[Tensor, "b h t n"], Float[Tensor, "b h s n"]]:
        """Returns the channels of ``Relative.by_segment``, one for each segment: a key has 1 in the channel of its
        segment, and a query has in each channel its score for a key of that segment."""
        keys = F.one_hot(segments, self.count).to(q.dtype)[:, None]
        own = keys[:, :, -q.size(2) :]
        same, other = (self.bias(q) @ self.weight.to(q.dtype).transpose(0, 1).mT).split(1, dim=-1)
        return other + own * (same - other), keys.expand(-1, q.size(1), -1, -1)


class HeadBias(nn.Module):
    """A learned vector for each head that is added to every query: u or v."""

    vector_parameters: ClassVar[tuple[str, ...]] = ("weight",)

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, 1, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, q: Float[Tensor, "b h t k"]) -> Float[Tensor, "b h t k"]:
        return q + self.weight.to(q.dtype)
