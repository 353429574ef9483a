"""How Linformer projects many keys to few: the kinds of E and F (arXiv:2006.04768, equation 7 and section 4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.mixers.heads import learn

ProjectionKind = Literal["linear", "mean", "max", "convolution"]


class Size(NamedTuple):
    """length: the most positions that are read; rank: the keys that these are projected to; heads: how many have their
    own weights, 1 if they share them; head_dim: channels of a head."""

    length: int
    rank: int
    heads: int
    head_dim: int

    @property
    def window(self) -> int:
        """Positions that pooling and convolution reduce to one: n / k, rounded up; the same for shorter inputs."""
        return -(-self.length // self.rank)


class Projection(nn.Module, ABC):
    """Maps (b, s, h, c) to (b, h, r, c). Padding must be zero in x, for most kinds mix it with real positions."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "b s h c"], padding_mask: Bool[Tensor, "b s"] | None
    ) -> Float[Tensor, "b h r c"]: ...

    @abstractmethod
    def key_mask(self, padding_mask: Bool[Tensor, "b s"]) -> Bool[Tensor, "b r"] | None:
        """Returns which of the r keys depend on a real position, or None where all do."""

    @abstractmethod
    def length_after(self, length: int) -> int:
        """Returns r, the number of keys that ``length`` positions are projected to."""

    @abstractmethod
    def flops(self, length: int, heads: int) -> int:
        """Forward FLOPs for one sequence and all heads."""


class LinearProjection(Projection):
    """E x without bias; E (r, length) starts normal with variance 1 / r, as in the proofs of the paper's theorems. A
    shorter sequence uses the first columns of E."""

    weight: Float[Tensor, "h r n"]

    def __init__(self, size: Size, frozen: bool) -> None:
        super().__init__()
        self.size = size
        learn(self, "weight", torch.empty(size.heads, size.rank, size.length), frozen)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.size.rank**-0.5)

    def forward(
        self, x: Float[Tensor, "b s h c"], padding_mask: Bool[Tensor, "b s"] | None
    ) -> Float[Tensor, "b h r c"]:
        grouped = x.unflatten(2, (self.weight.size(0), -1)).permute(
            2, 1, 0, 3, 4
        )  # heads that share a matrix become its columns
        y = self.weight[..., : x.size(1)] @ grouped.flatten(2)
        return y.unflatten(-1, grouped.shape[2:]).permute(2, 0, 3, 1, 4).flatten(1, 2)

    def key_mask(self, padding_mask: Bool[Tensor, "b s"]) -> None:
        return None

    def length_after(self, length: int) -> int:
        return self.size.rank

    def flops(self, length: int, heads: int) -> int:
        return 2 * heads * self.size.rank * length * self.size.head_dim


class PoolingProjection(Projection):
    """The mean or the maximum of the real positions of each window."""

    def __init__(self, size: Size, largest: bool) -> None:
        super().__init__()
        self.size, self.largest = size, largest

    def forward(
        self, x: Float[Tensor, "b s h c"], padding_mask: Bool[Tensor, "b s"] | None
    ) -> Float[Tensor, "b h r c"]:
        mask = torch.ones_like(x[:1, :, 0, 0], dtype=torch.bool) if padding_mask is None else padding_mask
        real = windows(mask, self.size.window)[..., None, None]
        x = windows(x, self.size.window)
        if self.largest:
            y = x.masked_fill(~real, float("-inf")).amax(dim=2).masked_fill(~real.any(dim=2), 0.0)
        else:
            y = x.sum(dim=2) / real.sum(dim=2).clamp(min=1)
        return y.transpose(1, 2)

    def key_mask(self, padding_mask: Bool[Tensor, "b s"]) -> Bool[Tensor, "b r"]:
        return windows(padding_mask, self.size.window).any(dim=2)

    def length_after(self, length: int) -> int:
        return -(-length // self.size.window)

    def flops(self, length: int, heads: int) -> int:
        return 0


class ConvolutionProjection(Projection):
    """A convolution over the channels of a head with kernel and stride of one window; padding counts as zeros."""

    weight: Float[Tensor, "h w c c"]

    def __init__(self, size: Size, frozen: bool) -> None:
        super().__init__()
        self.size = size
        learn(self, "weight", torch.empty(size.heads, size.window, size.head_dim, size.head_dim), frozen)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=(self.size.window * self.size.head_dim) ** -0.5)

    def forward(
        self, x: Float[Tensor, "b s h c"], padding_mask: Bool[Tensor, "b s"] | None
    ) -> Float[Tensor, "b h r c"]:
        return torch.einsum("brwhi,hwio->bhro", windows(x, self.size.window), self.weight)

    def key_mask(self, padding_mask: Bool[Tensor, "b s"]) -> Bool[Tensor, "b r"]:
        return windows(padding_mask, self.size.window).any(dim=2)

    def length_after(self, length: int) -> int:
        return -(-length // self.size.window)

    def flops(self, length: int, heads: int) -> int:
        return 2 * heads * self.length_after(length) * self.size.window * self.size.head_dim**2


def windows(x: Float[Tensor, "b s *c"], window: int) -> Float[Tensor, "b r w *c"]:
    """Cuts positions into windows along time; the last one is padded with zeros."""
    missing = -x.size(1) % window
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing)).unflatten(1, (-1, window))


def build_projection(kind: ProjectionKind, size: Size, frozen: bool) -> Projection:
    """Builds the projection of the given kind."""
    match kind:
        case "linear":
            return LinearProjection(size, frozen)
        case "convolution":
            return ConvolutionProjection(size, frozen)
        case "mean" | "max":
            return PoolingProjection(size, largest=kind == "max")
