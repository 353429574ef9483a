"""Compression of the inputs that leave a memory into fewer vectors (Rae et al. 2019, arXiv:1911.05507, section 3.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

Function = Literal["max", "mean", "convolution", "dilated", "most_used"]
LEARNED = ("convolution", "dilated")


class Past(NamedTuple):
    """Vectors of earlier positions, the oldest first. key_mask: True where they stand for a real token; used: the
    attention that each has received and the number of queries that could have attended to it, if that is recorded."""

    hidden: Float[Tensor, "b n d"]
    key_mask: Bool[Tensor, "b n"]
    used: Float[Tensor, "b n 2"] | None = None

    def split(self, first: int) -> tuple[Past, Past]:
        """Returns the first ``first`` positions, and the rest."""
        cut = [(None, None) if part is None else (part[:, :first], part[:, first:]) for part in self]
        head, tail = zip(*cut, strict=True)
        return Past(*head), Past(*tail)

    def then(self, later: Past) -> Past:
        """Returns this past followed by a later one, without ``used``."""
        return Past(torch.cat([self.hidden, later.hidden], dim=1), torch.cat([self.key_mask, later.key_mask], dim=1))


class Compressor(nn.Module, ABC):
    """Turns each group of ``rate`` inputs into one slot. A slot is visible if any of its inputs is, and masked inputs
    do not contribute to it."""

    learns: ClassVar[bool] = False

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.rate = rate

    @abstractmethod
    def forward(self, old: Past) -> Past: ...

    @abstractmethod
    def flops(self, slots: int) -> int:
        """FLOPs of computing ``slots`` slots."""

    def grouped(self, old: Past) -> tuple[Float[Tensor, "b g c d"], Bool[Tensor, "b g c 1"]]:
        groups = old.key_mask.size(1) // self.rate, self.rate
        return old.hidden.unflatten(1, groups), old.key_mask.unflatten(1, groups)[..., None]


class Pool(Compressor):
    """Max or mean pooling of each channel, over windows whose length equals their stride."""

    def __init__(self, rate: int, largest: bool) -> None:
        super().__init__(rate)
        self.largest = largest

    def forward(self, old: Past) -> Past:
        groups, key_mask = self.grouped(old)
        if self.largest:
            pooled = groups.masked_fill(~key_mask, float("-inf")).amax(dim=2).masked_fill(~key_mask.any(dim=2), 0.0)
        else:
            pooled = (groups * key_mask).sum(dim=2) / key_mask.sum(dim=2).clamp(min=1)
        return Past(pooled, key_mask.any(dim=2)[..., 0])

    def flops(self, slots: int) -> int:
        return 0


class Convolved(Compressor):
    """A convolution whose kernel and stride are the rate, so a linear map of each group. Padding counts as zero."""

    learns = True

    def __init__(self, rate: int, dim: int) -> None:
        super().__init__(rate)
        self.gather = nn.Linear(rate * dim, dim)

    def forward(self, old: Past) -> Past:
        groups, key_mask = self.grouped(old)
        return Past(self.gather((groups * key_mask).flatten(2)), key_mask.any(dim=2)[..., 0])

    def flops(self, slots: int) -> int:
        return 2 * slots * self.gather.in_features * self.gather.out_features


class Dilated(Compressor):
    """Convolutions with two taps and dilations 1, 2, 4, ..., with a ReLU between them, until they span a group. Only
    the last output, at the end of a group, is used, so only the outputs that it depends on are computed: level n joins
    pairs of outputs of level n - 1. The paper names dilated convolutions without details. A group is padded with zeros
    in front.
    """

    learns = True

    def __init__(self, rate: int, dim: int) -> None:
        super().__init__(rate)
        count = max(1, (rate - 1).bit_length())
        self.levels = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(count))
        self.dim, self.span = dim, 2**count

    def forward(self, old: Past) -> Past:
        groups, key_mask = self.grouped(old)
        outputs = F.pad(groups * key_mask, (0, 0, self.span - self.rate, 0))
        for number, join in enumerate(self.levels):
            outputs = join((outputs.relu() if number else outputs).unflatten(2, (-1, 2)).flatten(3))
        return Past(outputs[:, :, 0], key_mask.any(dim=2)[..., 0])

    def flops(self, slots: int) -> int:
        return 4 * slots * (self.span - 1) * self.dim * self.dim


class MostUsed(Compressor):
    """Keeps, unchanged and in order, the inputs that received the most attention on average, as the garbage collection
    of differentiable neural computers does. They are chosen among all inputs that leave together."""

    def forward(self, old: Past) -> Past:
        assert old.used is not None
        usage = old.used[..., 0] / old.used[..., 1].clamp(min=1)  # zero at padding, which no real query sees
        indices = usage.topk(usage.size(1) // self.rate, dim=1).indices.sort(dim=1).values
        hidden = old.hidden.gather(1, indices[..., None].expand(-1, -1, old.hidden.size(-1)))
        return Past(hidden, old.key_mask.gather(1, indices))

    def flops(self, slots: int) -> int:
        return 0


def compressor(function: Function, rate: int, dim: int) -> Compressor:
    """Builds the compressor of the given name."""
    match function:
        case "max" | "mean":
            return Pool(rate, largest=function == "max")
        case "convolution":
            return Convolved(rate, dim)
        case "dilated":
            return Dilated(rate, dim)
        case "most_used":
            return MostUsed(rate)
