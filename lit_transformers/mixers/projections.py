"""How Linformer makes few keys of many: what stands for E and F (arXiv:2006.04768, equation 7 and section 4)."""

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
    """length: most positions that are read; rank: what becomes of so many; heads: that have weights of their own, 1
    where they share them; head_dim: channels of a head."""

    length: int
    rank: int
    heads: int
    head_dim: int

    @property
    def window(self) -> int:
        """Positions that pooling and convolution make one of: n / k, rounded up. It is as wide for shorter input."""
        return -(-self.length // self.rank)


class Projection(nn.Module, ABC):
    """(b, s, h, c) to (b, h, r, c). Padding must be zero when it comes in: most would mix it with what is real."""

    @abstractmethod
    def forward(self, x: Float[Tensor, "b s h c"], keep: Bool[Tensor, "b s"] | None) -> Float[Tensor, "b h r c"]: ...

    @abstractmethod
    def seen(self, keep: Bool[Tensor, "b s"]) -> Bool[Tensor, "b r"] | None:
        """Which of the r are made of anything real; None where all are."""

    @abstractmethod
    def made(self, length: int) -> int:
        """r, of ``length`` positions."""

    @abstractmethod
    def flops(self, length: int, heads: int) -> int:
        """Forward FLOPs for one sequence and all heads."""


class LinearProjection(Projection):
    """E x with E (r, length), normal with variance 1 / r as in the proofs of the paper's theorems, and no bias.

    A shorter sequence takes E's first columns.
    """

    weight: Float[Tensor, "h r n"]

    def __init__(self, size: Size, frozen: bool) -> None:
        super().__init__()
        self.size = size
        learn(self, "weight", torch.randn(size.heads, size.rank, size.length) * size.rank**-0.5, frozen)

    def forward(self, x: Float[Tensor, "b s h c"], keep: Bool[Tensor, "b s"] | None) -> Float[Tensor, "b h r c"]:
        grouped = x.unflatten(2, (self.weight.size(0), -1)).permute(2, 1, 0, 3, 4)  # those of one matrix side by side
        y = self.weight[..., : x.size(1)] @ grouped.flatten(2)
        return y.unflatten(-1, grouped.shape[2:]).permute(2, 0, 3, 1, 4).flatten(1, 2)

    def seen(self, keep: Bool[Tensor, "b s"]) -> None:
        return None

    def made(self, length: int) -> int:
        return self.size.rank

    def flops(self, length: int, heads: int) -> int:
        return 2 * heads * self.size.rank * length * self.size.head_dim


class Pooling(Projection):
    """The mean or the largest of the real positions of each window."""

    def __init__(self, size: Size, largest: bool) -> None:
        super().__init__()
        self.size, self.largest = size, largest

    def forward(self, x: Float[Tensor, "b s h c"], keep: Bool[Tensor, "b s"] | None) -> Float[Tensor, "b h r c"]:
        kept = torch.ones_like(x[:1, :, 0, 0], dtype=torch.bool) if keep is None else keep
        real = windows(kept, self.size.window)[..., None, None]
        x = windows(x, self.size.window)
        if self.largest:
            y = x.masked_fill(~real, float("-inf")).amax(dim=2).masked_fill(~real.any(dim=2), 0.0)
        else:
            y = x.sum(dim=2) / real.sum(dim=2).clamp(min=1)
        return y.transpose(1, 2)

    def seen(self, keep: Bool[Tensor, "b s"]) -> Bool[Tensor, "b r"]:
        return windows(keep, self.size.window).any(dim=2)

    def made(self, length: int) -> int:
        return -(-length // self.size.window)

    def flops(self, length: int, heads: int) -> int:
        return 0


class Convolution(Projection):
    """A convolution over the channels of a head with kernel and stride of one window; padding counts as zeros."""

    weight: Float[Tensor, "h w c c"]

    def __init__(self, size: Size, frozen: bool) -> None:
        super().__init__()
        self.size = size
        weight = torch.randn(size.heads, size.window, size.head_dim, size.head_dim)
        learn(self, "weight", weight * (size.window * size.head_dim) ** -0.5, frozen)

    def forward(self, x: Float[Tensor, "b s h c"], keep: Bool[Tensor, "b s"] | None) -> Float[Tensor, "b h r c"]:
        return torch.einsum("brwhi,hwio->bhro", windows(x, self.size.window), self.weight)

    def seen(self, keep: Bool[Tensor, "b s"]) -> Bool[Tensor, "b r"]:
        return windows(keep, self.size.window).any(dim=2)

    def made(self, length: int) -> int:
        return -(-length // self.size.window)

    def flops(self, length: int, heads: int) -> int:
        return 2 * heads * self.made(length) * self.size.window * self.size.head_dim**2


def windows(x: Float[Tensor, "b s *c"], window: int) -> Float[Tensor, "b r w *c"]:
    """Cut along time, the last filled up with zeros."""
    missing = -x.size(1) % window
    return F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing)).unflatten(1, (-1, window))


def build_projection(kind: ProjectionKind, size: Size, frozen: bool) -> Projection:
    """The projection of that kind."""
    match kind:
        case "linear":
            return LinearProjection(size, frozen)
        case "convolution":
            return Convolution(size, frozen)
        case "mean" | "max":
            return Pooling(size, largest=kind == "max")
