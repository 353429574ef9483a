"""Adaptively sparse attention: alpha-entmax in place of the softmax (Correia et al. 2019, arXiv:1909.00015)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, final

import torch
from entmax import entmax15, sparsemax
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from lit_transformers.attention.executors import AttentionWeighting, Inputs, attend, attend_flops
from lit_transformers.attention.patterns import Band
from lit_transformers.config import Positive, Rounds
from lit_transformers.mixer import Context, MixerOutput, Promises, Shape
from lit_transformers.mixers.qkv import HeadsOutput, QKVConfig, QKVMixer, SegmentInputs
from lit_transformers.observable import Observable

EXACT = (1.0, 1.5, 2.0)
"""The alphas whose weights need no bisection."""
LEAST = 0.01
"""How far a learned alpha stays above 1: closer to 1, the gradient of alpha is lost in rounding."""
CANDIDATES = 64
"""How many of a row's largest scores are tried first: if the last of them has weight zero, so do all others."""


@final
class EntmaxConfig(QKVConfig, kind="entmax"):
    """alpha: 1 is the softmax, 2 sparsemax; ``learned`` gives each head its own, which starts at 1.5.

    iterations: halvings in the bisection for the threshold where there is no formula; None for the precision's bits.
    """

    alpha: Annotated[float, Field(ge=1, le=2)] | Literal["learned"] = "learned"
    iterations: Annotated[Positive | None, Rounds] = None

    def conflicts(self) -> Iterator[str]:
        if self.iterations is not None and self.alpha in EXACT:
            yield f"iterations are of a bisection, and alpha {self.alpha} needs none; drop them"

    def attention_promises(self) -> Promises:
        return Promises(("causal", "bidirectional", "cross"), streams=True)

    def build(self, shape: Shape) -> Entmax:
        return Entmax(self, shape)


@final
class Entmax(QKVMixer, Observable):
    """p = [(alpha - 1) s - tau]_+ ^ (1 / (alpha - 1)), with tau such that p sums to one; alpha = 1 + sigmoid(a) of each
    head where it is learned. The authors' code draws a from a normal distribution; here it starts at zero."""

    def __init__(self, config: EntmaxConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.fixed, self.iterations = config.alpha, config.iterations
        self.free = nn.Parameter(torch.zeros(self.heads)) if config.alpha == "learned" else None

    @property
    def alpha(self) -> Float[Tensor, "h 1 1"] | float:
        """Alpha of each head where it is learned, else one number for all heads."""
        return float(self.fixed) if self.free is None else 1 + self.free.sigmoid()[:, None, None]

    def after_step(self) -> None:
        if self.free is not None:
            with torch.no_grad():
                self.free.clamp_(min=torch.tensor(LEAST).logit().item())

    def attend(self, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        pattern = Band(None, 0 if ctx.causal and ctx.source is None else None)
        weigh = self.weigh()
        return HeadsOutput(
            attend(pattern, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped, weigh=weigh)
        )

    def observed(self, inputs: Sequence[Any], output: MixerOutput) -> Mapping[str, Tensor]:
        return {"Alpha of each head": self.alpha.flatten()} if isinstance(self.alpha, Tensor) else {}

    def weigh(self) -> AttentionWeighting | None:
        """Returns the weighting that replaces the softmax, or None where alpha is 1, which is the softmax."""
        match self.fixed:
            case 1.0:
                return None
            case 1.5:
                return AttentionWeighting(lambda logits, i, j: entmax15(logits, dim=-1, k=CANDIDATES))
            case 2.0:
                return AttentionWeighting(lambda logits, i, j: sparsemax(logits, dim=-1, k=CANDIDATES))
        alpha = self.alpha
        if isinstance(alpha, Tensor):
            return AttentionWeighting(self.bisected, (alpha,))
        return AttentionWeighting(partial(self.bisected, alpha=alpha))

    def bisected(
        self, logits: Float[Tensor, "b h t s"], i: Tensor, j: Tensor, alpha: Float[Tensor, "h 1 1"] | float
    ) -> Float[Tensor, "b h t s"]:
        """Returns weights by bisection among the largest scores, and among more until the smallest has weight zero.
        Masked keys stay minus infinity: with finite scores they would get some weight as alpha nears 1."""
        iterations = self.iterations or round(1 - torch.tensor(torch.finfo(logits.dtype).eps).log2().item())
        alpha = torch.as_tensor(alpha, dtype=logits.dtype, device=logits.device)
        keys = logits.isfinite().sum(dim=-1, keepdim=True)
        bisect: Callable[..., Tensor] = Bisection.apply
        count = CANDIDATES
        while count < logits.size(-1):
            largest, indices = logits.topk(count, dim=-1)
            weights = bisect(largest, alpha, keys, iterations)
            if not weights[..., -1].any():
                return torch.zeros_like(logits).scatter(-1, indices, weights)
            count *= 4
        return bisect(logits, alpha, keys, iterations)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        """FLOPs of the products; the cost of the threshold is elementwise and not counted."""
        keys = queries + min(remembered, self.memory)
        pattern = Band(None, 0 if causal else None)
        attention = attend_flops(
            pattern, queries, keys, self.width, causal=causal, encoding=self.relative, weighed=self.fixed != 1
        )
        return self.projection_flops(queries, keys) + attention


class Bisection(torch.autograd.Function):
    """Weights of rows of scores, by halving an interval that contains tau, with the gradients of exact weights
    (arXiv:1905.05702; of alpha, arXiv:1909.00015, proposition 1). The first interval is as wide as the number of
    visible ``keys`` (b, h, t, 1) requires; the authors' code counts masked keys too, so padding changes its weights."""

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
        score_gradient = slopes * (gradient - (shares * gradient).sum(dim=-1, keepdim=True))
        if not ctx.needs_input_grad[1]:
            return score_gradient, None, None, None
        power, entropy = alpha - 1, torch.special.xlogy(weights, weights)
        alpha_slopes = (weights - shares) / power**2 - (entropy - shares * entropy.sum(dim=-1, keepdim=True)) / power
        return score_gradient, (gradient * alpha_slopes).sum_to_size(alpha.shape), None, None
