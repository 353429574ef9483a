"""Sources of the logits of a Synthesizer (Tay et al. 2020, arXiv:2005.00743, section 3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import isqrt
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.maps import LinearMap, products
from lit_transformers.mixer import Shape
from lit_transformers.mixers.heads import learn, split

Member = Literal["dense", "random", "fixed_random", "factorised_dense", "factorised_random", "dot_product"]


class Logits(nn.Module, ABC):
    """Maps (b, t, d) to logits (b, h, t, t), with b or h = 1 where they are the same for every row or head. Only those
    of ``DotProduct`` are scaled. A mixer asks for the parts that they consist of, and makes as many logits of these at
    a time as it needs."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "#b #h t t"]: ...

    @abstractmethod
    def flops(self, length: int) -> int:
        """Forward FLOPs of the parts for one sequence."""


class Products(Logits, ABC):
    """Logits that are products of a vector of each query and a vector of each key, both with ``channels`` numbers."""

    channels: int

    @abstractmethod
    def factors(self, x: Float[Tensor, "b t d"]) -> tuple[Float[Tensor, "#b #h t n"], Float[Tensor, "#b #h t n"]]:
        """Returns the vectors of queries and of keys."""

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "#b #h t t"]:
        q, k = self.factors(x)
        return q @ k.mT


class Rows(Logits, ABC):
    """Logits that are made of numbers for each query, in ``count`` tensors."""

    count: ClassVar[int]

    @abstractmethod
    def rows(self, x: Float[Tensor, "b t d"]) -> tuple[Float[Tensor, "#b #h t _"], ...]:
        """Returns the numbers of each query."""

    @staticmethod
    @abstractmethod
    def of_rows(rows: tuple[Float[Tensor, "#b #h t _"], ...], keys: int) -> Float[Tensor, "#b #h t s"]:
        """Returns the logits of some queries, given their rows, with the first ``keys`` keys. They may be a view."""

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "#b #h t t"]:
        return self.of_rows(self.rows(x), x.size(1))


def first(x: Float[Tensor, "*n"], dim: int, count: int) -> Float[Tensor, "*m"]:
    """Returns the first ``count`` of a dimension; all of it as it is, for the gradient of a slice is a copy."""
    return x if x.size(dim) == count else x.narrow(dim, 0, count)


class PerHead(nn.Module):
    """x W^T + b with separate weights for each head; a call computes the first ``outputs`` of the outputs."""

    vector_parameters: ClassVar[tuple[str, ...]] = ("bias",)

    weight: Float[Tensor, "h o k"]
    bias: Float[Tensor, "h 1 o"]

    def __init__(self, heads: int, channels: int, outputs: int) -> None:
        super().__init__()
        learn(self, "weight", torch.empty(heads, outputs, channels))
        learn(self, "bias", torch.zeros(heads, 1, outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.size(-1) ** -0.5)

    def forward(self, x: Float[Tensor, "b h t k"], outputs: int) -> Float[Tensor, "b h t o"]:
        return x @ self.weight[:, :outputs].mT + self.bias[..., :outputs]


@final
class Dense(Products):
    """W_2 relu(W_1 x_i + b_1) + b_2, one logit for each position ("Dense Synthesizer").

    The hidden layer has head_dim channels for each head, as queries have: W_1 is one layer for all heads, W_2 is not.
    A row of W_2 and b_2 is the vector of a key, and relu(W_1 x_i + b_1) and a one that of a query.
    """

    def __init__(self, shape: Shape, head_dim: int) -> None:
        super().__init__()
        self.dim, self.heads, self.head_dim = shape.dim, shape.heads, head_dim
        self.hidden = nn.Linear(shape.dim, shape.heads * head_dim)
        self.out = PerHead(shape.heads, head_dim, shape.max_length)
        self.channels = head_dim + 1

    def factors(self, x: Float[Tensor, "b t d"]) -> tuple[Float[Tensor, "b h t k+1"], Float[Tensor, "1 h t k+1"]]:
        weight, bias = self.out.weight[:, : x.size(1)], self.out.bias[..., : x.size(1)]
        q = split(self.hidden(x).relu(), self.heads)
        return F.pad(q, (0, 1), value=1.0), torch.cat([weight, bias.mT], dim=-1)[None]

    def flops(self, length: int) -> int:
        return 2 * length * self.heads * self.head_dim * self.dim


@final
class FactorisedDense(Rows):
    """C = H_a(A) * H_b(B) with A_i of a and B_i of b numbers, a b the training length ("Factorized Dense"),
    both computed from one hidden layer.

    The paper repeats both "by tiling"; every pair of an item of A and one of B has its own position only if one of them
    is repeated item by item and the other as a whole. That is the outer product, which is used here. Where a
    does not divide the length, b is rounded up, and numbers beyond the length are left out.
    """

    count = 2

    def __init__(self, shape: Shape, head_dim: int, factor: int | None) -> None:
        super().__init__()
        self.dim, self.heads, self.head_dim = shape.dim, shape.heads, head_dim
        first = factor or isqrt(shape.max_length - 1) + 1
        self.second = -(-shape.max_length // first)
        self.hidden = nn.Linear(shape.dim, shape.heads * head_dim)
        counts = (self.needed(shape.max_length), self.second)
        self.slow, self.fast = (PerHead(shape.heads, head_dim, outputs) for outputs in counts)

    def rows(self, x: Float[Tensor, "b t d"]) -> tuple[Float[Tensor, "b h t _"], ...]:
        hidden = split(self.hidden(x).relu(), self.heads)
        return self.slow(hidden, self.needed(x.size(1))), self.fast(hidden, self.second)

    @staticmethod
    def of_rows(rows: tuple[Float[Tensor, "b h t _"], ...], keys: int) -> Float[Tensor, "b h t s"]:
        slow, fast = rows
        slow = slow[..., : -(-keys // fast.size(-1))]
        return (slow[..., :, None] * fast[..., None, :]).flatten(-2)[..., :keys]

    def needed(self, length: int) -> int:
        """Returns how many items of A cover ``length`` positions."""
        return -(-length // self.second)

    def flops(self, length: int) -> int:
        return 2 * length * self.heads * self.head_dim * (self.dim + self.needed(length) + self.second)


@final
class Random(Rows):
    """R (l, l), independent of the input, learned or fixed ("Random Synthesizer"). It starts standard normal: a fixed
    one of small numbers would give little more than a mean."""

    count = 1
    weight: Float[Tensor, "h l l"]

    def __init__(self, shape: Shape, heads: int, fixed: bool) -> None:
        super().__init__()
        learn(self, "weight", torch.empty(heads, shape.max_length, shape.max_length), fixed)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def rows(self, x: Float[Tensor, "b t d"]) -> tuple[Float[Tensor, "1 h t l"], ...]:
        return (first(self.weight, -2, x.size(1))[None],)

    @staticmethod
    def of_rows(rows: tuple[Float[Tensor, "1 h t l"], ...], keys: int) -> Float[Tensor, "1 h t s"]:
        return first(rows[0], -1, keys)

    def flops(self, length: int) -> int:
        return 0


@final
class FactorisedRandom(Products):
    """R_1 R_2^T with both (l, rank) ("Factorized Random"); its entries start with the variance of ``Random``."""

    def __init__(self, shape: Shape, heads: int, rank: int) -> None:
        super().__init__()
        size = (heads, shape.max_length, rank)
        self.left, self.right = (nn.Parameter(torch.empty(*size)) for _ in range(2))
        self.channels = rank
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.left, self.right):
            nn.init.normal_(weight, std=weight.size(-1) ** -0.25)

    def factors(self, x: Float[Tensor, "b t d"]) -> tuple[Float[Tensor, "1 h t r"], Float[Tensor, "1 h t r"]]:
        return self.left[None, :, : x.size(1)], self.right[None, :, : x.size(1)]

    def flops(self, length: int) -> int:
        return 0


@final
class DotProduct(Products):
    """q_i . k_j / sqrt(head_dim), for mixtures: the only scaled logits, as in plain attention."""

    def __init__(self, shape: Shape, head_dim: int, bias: bool) -> None:
        super().__init__()
        self.dim, self.heads, self.head_dim = shape.dim, shape.heads, head_dim
        self.query = LinearMap(shape.dim, shape.heads * head_dim, "query", bias=bias)
        self.key = LinearMap(shape.dim, shape.heads * head_dim, "key", bias=bias)
        self.channels = head_dim

    def factors(self, x: Float[Tensor, "b t d"]) -> tuple[Float[Tensor, "b h t k"], Float[Tensor, "b h t k"]]:
        q, k = (split(y, self.heads) for y in products(x, (self.query, self.key)))
        return q * self.head_dim**-0.5, k

    def flops(self, length: int) -> int:
        return self.query.flops(length) + self.key.flops(length)
