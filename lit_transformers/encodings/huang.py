"""Improved relative position embeddings, method 4 (Huang et al. 2020, arXiv:2009.13658, equation 14)."""

from __future__ import annotations

from typing import Annotated

from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.attention.relative import Relative, Table, for_keys, for_queries
from lit_transformers.config import Length, NonNegative
from lit_transformers.encodings.clipped import distance_vectors
from lit_transformers.encodings.encoding import EncodingConfig
from lit_transformers.mixer import Shape


class HuangConfig(EncodingConfig, kind="huang"):
    """distance: the clipping distance; per_head: whether each head has its own table, which serves queries and keys;
    share_layers: whether all layers use the same one."""

    distance: Annotated[NonNegative, Length] = 16
    per_head: bool = False
    share_layers: bool = False

    def build(self, shape: Shape, head_dim: int) -> Huang:
        return Huang(self, shape, head_dim)


class Huang(Relative):
    """e_ij = (q_i . k_j + q_i . a_(i-j) + k_j . a_(i-j)) / sqrt(k)."""

    def __init__(self, config: HuangConfig, shape: Shape, head_dim: int) -> None:
        super().__init__()
        self.width = shape.heads * head_dim
        self.vectors = distance_vectors(shape, "huang", config.distance, head_dim, config.per_head, config.share_layers)

    def tables(self, distances: Int[Tensor, " w"], causal: bool) -> tuple[Tensor, ...]:
        return (self.vectors(distances),)

    def queries(self, q: Float[Tensor, "b h t k"]) -> tuple[Float[Tensor, "b h t k"], ...]:
        return (q,)

    def added_scores(
        self,
        queries: tuple[Float[Tensor, "b h t k"], ...],
        k: Float[Tensor, "b h s k"],
        tables: tuple[Table, ...],
        scale: float,
    ) -> Float[Tensor, "b h t s"]:
        (q,) = queries
        return for_queries(q * scale, tables[0], k.size(-2)) + for_keys(k * scale, tables[0], q.size(-2))

    def table_flops(self, distances: int) -> int:
        return 0

    def block_flops(self, queries: int, keys: int, distances: int) -> int:
        tiled = -(-keys // queries) * queries
        return 2 * self.width * queries * (keys + distances + 2 * tiled)

    def listed_flops(self, queries: int, keys: int) -> int:
        return 6 * self.width * queries * keys
