"""Adaptively sparse attention: alpha-entmax in place of the softmax (Correia et al. 2019, arXiv:1909.00015)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from entmax import entmax15, sparsemax
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from lit_transformers.config import Positive
from lit_transformers.executors import Inputs, Weigh, attend, attend_flops
from lit_transformers.mixer import Context, Mixed, Shape
from lit_transformers.mixers.qkv import Heard, QKVConfig, QKVMixer
from lit_transformers.observable import Observable
from lit_transformers.patterns import Band

EXACT = (1.0, 1.5, 2.0)
"""The alphas whose weights need no bisection."""
LEAST = 0.01
"""What a learned alpha stays above 1: nearer, the gradient of alpha is lost in rounding."""
CANDIDATES = 64
"""How many of a row's largest scores are tried first: where the last of them weighs nothing, so do all others."""


class EntmaxConfig(QKVConfig, kind="entmax"):
    """alpha: 1 is the softmax, 2 sparsemax; ``learned`` gives each head its own, which starts at 1.5.

    iterations: halvings in the bisection that finds the threshold where no formula does; None for as many as the
    precision has bits.
    """

    alpha: Annotated[float, Field(ge=1, le=2)] | Literal["learned"] = "learned"
    iterations: Positive | None = None

    def conflicts(self) -> Iterator[str]:
        if self.iterations is not None and self.alpha in EXACT:
            yield f"iterations are of a bisection, and alpha {self.alpha} needs none; drop them"

    def build(self, shape: Shape) -> Entmax:
        return Entmax(self, shape)


class Entmax(QKVMixer, Observable):
    """p = [(alpha - 1) s - tau]_+ ^ (1 / (alpha - 1)), with tau such that p sums to one; alpha = 1 + sigmoid(a) of each
    head where it is learned. The authors' code draws a from a normal distribution; here it starts at zero."""

    causal = bidirectional = cross = streams = True

    def __init__(self, config: EntmaxConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.fixed, self.iterations = config.alpha, config.iterations
        self.free = nn.Parameter(torch.zeros(self.heads)) if config.alpha == "learned" else None

    @property
    def alpha(self) -> Float[Tensor, "h 1 1"] | float:
        """Of each head where it is learned, else of all."""
        return float(self.fixed) if self.free is None else 1 + self.free.sigmoid()[:, None, None]

    def after_step(self) -> None:
        if self.free is not None:
            with torch.no_grad():
                self.free.clamp_(min=torch.tensor(LEAST).logit().item())

    def attend(self, inputs: Inputs, ctx: Context, heard: Heard) -> tuple[Float[Tensor, "b h t k"], dict[str, Tensor]]:
        pattern = Band(None, 0 if ctx.causal and ctx.source is None else None)
        weigh = self.weigh()
        return attend(pattern, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped, weigh=weigh), {}

    def observed(self, given: Sequence[Any], made: Mixed) -> Mapping[str, Tensor]:
        return {"Alpha of each head": self.alpha.flatten()} if isinstance(self.alpha, Tensor) else {}

    def weigh(self) -> Weigh | None:
        """In place of the softmax; None where it is the softmax."""
        match self.fixed:
            case 1.0:
                return None
            case 1.5:
                return Weigh(lambda logits, i, j: entmax15(logits, dim=-1, k=CANDIDATES))
            case 2.0:
                return Weigh(lambda logits, i, j: sparsemax(logits, dim=-1, k=CANDIDATES))
        alpha = self.alpha
        if isinstance(alpha, Tensor):
            return Weigh(self.bisected, (alpha,))
        return Weigh(partial(self.bisected, alpha=alpha))

    def bisected(
        self, logits: Float[Tensor, "b h t s"], i: Tensor, j: Tensor, alpha: Float[Tensor, "h 1 1"] | float
    ) -> Float[Tensor, "b h t s"]:
        """Weights by bisection among the largest scores, and more of them until the least has none. Hidden keys stay
        minus infinity and weigh nothing for every alpha: finite ones would get some as alpha nears 1."""
        iterations = self.iterations or round(1 - torch.tensor(torch.finfo(logits.dtype).eps).log2().item())
        alpha = torch.as_tensor(alpha, dtype=logits.dtype, device=logits.device)
        keys = logits.isfinite().sum(dim=-1, keepdim=True)
        bisect: Callable[..., Tensor] = Bisection.apply
        count = CANDIDATES
        while count < logits.size(-1):
            largest, places = logits.topk(count, dim=-1)
            weights = bisect(largest, alpha, keys, iterations)
            if not weights[..., -1].any():
                return torch.zeros_like(logits).scatter(-1, places, weights)
            count *= 4
        return bisect(logits, alpha, keys, iterations)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        """Of the products; what the threshold costs is elementwise."""
        keys = queries + min(remembered, self.memory)
        pattern = Band(None, 0 if causal else None)
        attention = attend_flops(
            pattern, queries, keys, self.width, causal=causal, encoding=self.relative, weighed=self.fixed != 1
        )
        return self.projection_flops(queries, keys) + attention


class Bisection(torch.autograd.Function):
    """The weights of rows of scores by halving an interval that holds tau, with the gradients of exact weights
    (arXiv:1905.05702; of alpha, arXiv:1909.00015, proposition 1). The first interval is as wide as the number of
    ``keys`` (b, h, t, 1) that a row sees asks for: in the authors' code it counts hidden keys too, so that after a few
    halvings weights depend on what is padded to a row."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, alpha: Tensor, keys: Tensor, iterations: int) -> Tensor:
        power = alpha - 1
        scores = scores * power
        tau, width = scores.amax(dim=-1, keepdim=True) - 1, 1 - keys.to(scores.dtype) ** -power
        for _ in range(iterations):
            width = width / 2
            weights = (scores - tau - width).clamp(min=0) ** (1 / power)
            tau = torch.where(weights.sum(dim=-1, keepdim=True) >= 1, tau + width, tau)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        ctx.save_for_backward(weights, alpha)
        return weights

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, alpha = ctx.saved_tensors
        slopes = torch.where(weights > 0, weights ** (2 - alpha), 0)
        shares = slopes / slopes.sum(dim=-1, keepdim=True)
        of_scores = slopes * (gradient - (shares * gradient).sum(dim=-1, keepdim=True))
        if not ctx.needs_input_grad[1]:
            return of_scores, None, None, None
        power, surprise = alpha - 1, torch.special.xlogy(weights, weights)
        change = (weights - shares) / power**2 - (surprise - shares * surprise.sum(dim=-1, keepdim=True)) / power
        return of_scores, (gradient * change).sum_to_size(alpha.shape), None, None
