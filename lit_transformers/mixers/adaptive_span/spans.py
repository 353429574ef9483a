"""How far back each head looks: learned, computed from every token, or fixed (arXiv:1905.07799, section 2.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lit_transformers.mixers.heads import learn
from lit_transformers.observable import Observable


class Spans(nn.Module, Observable, ABC):
    """The spans z of section 2.2, in tokens: one for each head, or one for all heads, none above ``longest`` (S)."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest

    @abstractmethod
    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "#b #h #t 1"]:
        """Returns the spans of the tokens x, or spans that are the same for all of them."""

    @abstractmethod
    def reach(self) -> list[float]:
        """Returns an upper bound of each span over all tokens, which is known before any token is read."""

    @abstractmethod
    def flops(self, tokens: int) -> int:
        """FLOPs of ``forward`` for the given number of tokens."""

    def observed(self, inputs: Sequence[Any], output: Float[Tensor, "#b #h #t 1"]) -> Mapping[str, Tensor]:
        return {"Mean span of each head, in tokens": output.mean(dim=(0, 2, 3))}


class Constant(Spans):
    """z = S z', the same for every token; z' is learned or fixed."""

    fraction: Tensor

    def __init__(self, longest: int, count: int, initial: float, fixed: bool) -> None:
        super().__init__(longest)
        learn(self, "fraction", torch.full((count,), initial), fixed)

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "#b #h #t 1"]:
        return self.longest * self.fraction[None, :, None, None]

    def reach(self) -> list[float]:
        spans: list[float] = (self.longest * self.fraction.detach()).tolist()
        return spans

    def flops(self, tokens: int) -> int:
        return 0

    def keep_in_range(self) -> None:
        """Clamps z' to [0, 1], which an update of the weights may have moved it out of."""
        with torch.no_grad():
            self.fraction.clamp_(0, 1)


class Dynamic(Spans):
    """z_t = S sigmoid(v . x_t + b). v starts at zero, so that every token starts with the same span."""

    def __init__(self, longest: int, count: int, initial: float, dim: int) -> None:
        super().__init__(longest)
        self.direction = nn.Parameter(torch.zeros(count, dim))
        self.offset = nn.Parameter(torch.full((count,), initial).logit())

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "#b #h #t 1"]:
        logits = x @ self.direction.mT + self.offset
        return self.longest * logits.sigmoid().mT.unsqueeze(-1)

    def reach(self) -> list[float]:
        return [float(self.longest)] * len(self.offset)

    def flops(self, tokens: int) -> int:
        return 2 * tokens * self.direction.numel()


def mean_span(spans: Float[Tensor, "#b #h #t 1"], padding_mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, ""]:
    """Returns the mean span over heads, and, where tokens have their own spans, over real tokens."""
    if padding_mask is None or spans.size(-2) == 1:
        return spans.mean()
    return (spans.mean(dim=1).squeeze(-1) * padding_mask).sum() / padding_mask.sum().clamp(min=1)
