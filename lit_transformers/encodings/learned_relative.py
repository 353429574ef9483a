"""A learned bias for each head and each bucket of distances (Raffel et al. 2020, arXiv:1910.10683, section 2.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_transformers.attention.relative import Relative, Table, for_queries
from lit_transformers.config import Length, Positive
from lit_transformers.encodings.encoding import EncodingConfig
from lit_transformers.mixer import Shape


class LearnedRelativeConfig(EncodingConfig, kind="learned_relative"):
    """buckets: the number of buckets; in each direction half of them hold a single distance, and the rest grow
    logarithmically up to max_distance; share_layers: whether all layers use one table, as in T5."""

    buckets: Annotated[Positive, Length] = 32
    max_distance: Annotated[Positive, Length] = 128
    share_layers: bool = True

    def conflicts(self) -> Iterator[str]:
        if self.buckets < 4 or self.buckets % 4:
            yield f"buckets are halved by direction and by kind, so they come in fours, not {self.buckets}"
        if self.max_distance <= self.buckets // 2:
            yield f"max_distance must exceed the {self.buckets // 2} distances that have a bucket each"

    def build(self, shape: Shape, head_dim: int) -> LearnedRelative:
        return LearnedRelative(self, shape, head_dim)


@final
class BucketBiases(nn.Embedding):
    """A number for each bucket and head."""

    vector_parameters: ClassVar[tuple[str, ...]] = ("weight",)


class LearnedRelative(Relative):
    """e_ij = q_i . k_j / sqrt(k) + b_bucket(i-j). T5 has no scale; here the mixer's ``scale`` decides."""

    def __init__(self, config: LearnedRelativeConfig, shape: Shape, head_dim: int) -> None:
        super().__init__()
        self.buckets, self.max_distance = config.buckets, config.max_distance
        self.heads, self.width = shape.heads, shape.heads * head_dim

        def make_bias() -> nn.Module:
            return BucketBiases(config.buckets, shape.heads)

        self.bias = shape.share("learned_relative", make_bias) if config.share_layers else make_bias()

    def tables(self, distances: Int[Tensor, " w"], causal: bool) -> tuple[Tensor, ...]:
        return (self.bias(self.bucket(distances, causal)).T.unsqueeze(-1),)

    def bucket(self, distances: Int[Tensor, " w"], causal: bool) -> Int[Tensor, " w"]:
        """Maps distances i - j to buckets: later keys use the upper half of the buckets, unless attention is causal."""
        buckets = self.buckets if causal else self.buckets // 2
        first_bucket = torch.zeros_like(distances) if causal else (distances < 0) * buckets
        magnitude = distances.clamp(min=0) if causal else distances.abs()
        exact = buckets // 2
        ratio = torch.log(magnitude.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        logarithmic = exact + (ratio * (buckets - exact)).long()
        return first_bucket + torch.where(magnitude < exact, magnitude, logarithmic.clamp(max=buckets - 1))

    def queries(self, q: Float[Tensor, "b h t k"]) -> tuple[Float[Tensor, "b h t k"], ...]:
        return (q,)

    def added_scores(
        self,
        queries: tuple[Float[Tensor, "b h t k"], ...],
        k: Float[Tensor, "b h s k"],
        tables: tuple[Table, ...],
        scale: float,
    ) -> Float[Tensor, "1 h t s"]:
        (q,) = queries
        return for_queries(q.new_ones(1, 1, q.size(-2), 1), tables[0], k.size(-2))

    def table_flops(self, distances: int) -> int:
        return 0

    def block_flops(self, queries: int, keys: int, distances: int) -> int:
        return 2 * queries * (self.width * keys + self.heads * distances)

    def listed_flops(self, queries: int, keys: int) -> int:
        return self.block_flops(queries, keys, keys)
