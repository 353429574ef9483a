"""How inputs that leave a memory become fewer vectors (Rae et al. 2019, arXiv:1911.05507, section 3.2)."""

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
    """Vectors of earlier positions, the oldest first. seen: True where they stand for a real token; used: the attention
    that each has received and how often it might have, where that is watched."""

    hidden: Float[Tensor, "b n d"]
    seen: Bool[Tensor, "b n"]
    used: Float[Tensor, "b n 2"] | None = None

    def split(self, first: int) -> tuple[Past, Past]:
        """The first so many, and the rest."""
        cut = [(None, None) if part is None else (part[:, :first], part[:, first:]) for part in self]
        one, other = zip(*cut, strict=True)
        return Past(*one), Past(*other)

    def then(self, later: Past) -> Past:
        """This and what came after, of which no use is known."""
        return Past(torch.cat([self.hidden, later.hidden], dim=1), torch.cat([self.seen, later.seen], dim=1))


class Compressor(nn.Module, ABC):
    """Turns inputs, in groups of ``rate``, into one slot a group. A slot is seen if any of the inputs that it was made
    of was, and those that were not do not enter it."""

    learns: ClassVar[bool] = False

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.rate = rate

    @abstractmethod
    def forward(self, old: Past) -> Past: ...

    @abstractmethod
    def flops(self, slots: int) -> int:
        """FLOPs that make so many slots."""

    def grouped(self, old: Past) -> tuple[Float[Tensor, "b g c d"], Bool[Tensor, "b g c 1"]]:
        groups = old.seen.size(1) // self.rate, self.rate
        return old.hidden.unflatten(1, groups), old.seen.unflatten(1, groups)[..., None]


class Pool(Compressor):
    """The largest or the mean value of each channel, over windows that are as long as they are far apart."""

    def __init__(self, rate: int, largest: bool) -> None:
        super().__init__(rate)
        self.largest = largest

    def forward(self, old: Past) -> Past:
        groups, seen = self.grouped(old)
        if self.largest:
            pooled = groups.masked_fill(~seen, float("-inf")).amax(dim=2).masked_fill(~seen.any(dim=2), 0.0)
        else:
            pooled = (groups * seen).sum(dim=2) / seen.sum(dim=2).clamp(min=1)
        return Past(pooled, seen.any(dim=2)[..., 0])

    def flops(self, slots: int) -> int:
        return 0


class Convolved(Compressor):
    """A convolution whose kernel and stride are the rate: a linear map of each group. Padding is zero to it."""

    learns = True

    def __init__(self, rate: int, dim: int) -> None:
        super().__init__(rate)
        self.gather = nn.Linear(rate * dim, dim)

    def forward(self, old: Past) -> Past:
        groups, seen = self.grouped(old)
        return Past(self.gather((groups * seen).flatten(2)), seen.any(dim=2)[..., 0])

    def flops(self, slots: int) -> int:
        return 2 * slots * self.gather.in_features * self.gather.out_features


class Dilated(Compressor):
    """Convolutions of two taps 1, 2, 4, ... apart, with a ReLU between, until they span a group; of the last only what
    stands at the group's end is used, and of the others what that one reads. So level n joins pairs of what level n - 1
    made. The paper names dilated convolutions and says no more of them. A group is filled up with zeros in front.
    """

    learns = True

    def __init__(self, rate: int, dim: int) -> None:
        super().__init__(rate)
        count = max(1, (rate - 1).bit_length())
        self.levels = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(count))
        self.dim, self.span = dim, 2**count

    def forward(self, old: Past) -> Past:
        groups, seen = self.grouped(old)
        made = F.pad(groups * seen, (0, 0, self.span - self.rate, 0))
        for number, join in enumerate(self.levels):
            made = join((made.relu() if number else made).unflatten(2, (-1, 2)).flatten(3))
        return Past(made[:, :, 0], seen.any(dim=2)[..., 0])

    def flops(self, slots: int) -> int:
        return 4 * slots * (self.span - 1) * self.dim * self.dim


class MostUsed(Compressor):
    """Keeps as they are, and in their order, those of the inputs that received the most attention on average, as the
    garbage collection of differentiable neural computers does. They are chosen among all that leave together."""

    def forward(self, old: Past) -> Past:
        assert old.used is not None
        usage = old.used[..., 0] / old.used[..., 1].clamp(min=1)  # nothing at padding, which no real query sees
        chosen = usage.topk(usage.size(1) // self.rate, dim=1).indices.sort(dim=1).values
        hidden = old.hidden.gather(1, chosen[..., None].expand(-1, -1, old.hidden.size(-1)))
        return Past(hidden, old.seen.gather(1, chosen))

    def flops(self, slots: int) -> int:
        return 0


def compressor(function: Function, rate: int, dim: int) -> Compressor:
    """The compressor of that name."""
    match function:
        case "max" | "mean":
            return Pool(rate, largest=function == "max")
        case "convolution":
            return Convolved(rate, dim)
        case "dilated":
            return Dilated(rate, dim)
        case "most_used":
            return MostUsed(rate)
