"""Relative position representations (Shaw et al. 2018, arXiv:1803.02155, equations 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.attention.relative import Relative, Table, for_queries, of_weights
from lit_transformers.config import Length, NonNegative
from lit_transformers.encodings.clipped import distance_vectors
from lit_transformers.encodings.encoding import EncodingConfig
from lit_transformers.mixer import Shape


class ShawConfig(EncodingConfig, kind="shaw"):
    """distance: the clipping distance k; keys, values: whether there are a^K and a^V; per_head: whether each head has
    its own tables; share_layers: whether all layers use the same ones."""

    distance: Annotated[NonNegative, Length] = 16
    keys: bool = True
    values: bool = True
    per_head: bool = False
    share_layers: bool = False

    def conflicts(self) -> Iterator[str]:
        if not (self.keys or self.values):
            yield "with neither keys nor values there is no encoding; write encoding: null"

    def build(self, shape: Shape, head_dim: int) -> Shaw:
        return Shaw(self, shape, head_dim)


class Shaw(Relative):
    """e_ij = q_i . (k_j + a^K_(i-j)) / sqrt(k), z_i = sum_j alpha_ij (v_j + a^V_(i-j))."""

    def __init__(self, config: ShawConfig, shape: Shape, head_dim: int) -> None:
        super().__init__()
        self.width = shape.heads * head_dim
        sharing = (config.distance, head_dim, config.per_head, config.share_layers)
        self.keys = distance_vectors(shape, "shaw.keys", *sharing) if config.keys else None
        self.added = distance_vectors(shape, "shaw.values", *sharing) if config.values else None

    def tables(self, distances: Int[Tensor, " w"], causal: bool) -> tuple[Tensor, ...]:
        return tuple(vectors(distances) for vectors in (self.keys, self.added) if vectors is not None)

    def queries(self, q: Float[Tensor, "b h t k"]) -> tuple[Float[Tensor, "b h t k"], ...]:
        return (q,)

    def added_scores(
        self,
        queries: tuple[Float[Tensor, "b h t k"], ...],
        k: Float[Tensor, "b h s k"],
        tables: tuple[Table, ...],
        scale: float,
    ) -> Float[Tensor, "b h t s"] | None:
        return None if self.keys is None else for_queries(queries[0] * scale, tables[0], k.size(-2))

    @property
    def adds_values(self) -> bool:
        return self.added is not None

    def values(self, weights: Float[Tensor, "b h t s"], tables: tuple[Table, ...]) -> Float[Tensor, "b h t k"] | None:
        return None if self.added is None else of_weights(weights, tables[-1])

    def table_flops(self, distances: int) -> int:
        return 0

    def block_flops(self, queries: int, keys: int, distances: int) -> int:
        tables = (self.keys is not None) + (self.added is not None)
        return 2 * self.width * queries * (keys + tables * distances)

    def listed_flops(self, queries: int, keys: int) -> int:
        return self.block_flops(queries, keys, keys)
