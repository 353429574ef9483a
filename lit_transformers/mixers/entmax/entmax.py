"""Adaptively sparse attention: alpha-entmax in place of the softmax (Correia et al. 2019, arXiv:1909.00015)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from lit_transformers.attention.executors import AttentionWeighting, Inputs, attend, attend_flops
from lit_transformers.attention.patterns import Band
from lit_transformers.config import Positive, Rounds
from lit_transformers.host import HOST
from lit_transformers.mixer import Context, MixerOutput, Promises, Shape
from lit_transformers.mixers.entmax.weights import EntmaxWeights
from lit_transformers.mixers.qkv import HeadsOutput, QKVConfig, QKVMixer, SegmentInputs
from lit_transformers.observable import Observable

EXACT = (1.0, 1.5, 2.0)
"""The alphas whose weights have a formula."""
LEAST = 0.01
"""How far a learned alpha stays above 1: closer to 1, the gradient of alpha is lost in rounding."""


@final
class EntmaxConfig(QKVConfig, kind="entmax"):
    """alpha: 1 is the softmax, 2 sparsemax; ``learned`` gives each head its own, which starts at 1.5.

    iterations: halvings in a bisection for the threshold, where there is no formula; None for exact weights.
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
                self.free.clamp_(min=math.log(LEAST / (1 - LEAST)))

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
        if self.fixed == 1:
            return None
        alpha = self.alpha
        return AttentionWeighting(self.weights, (alpha,) if isinstance(alpha, Tensor) else ())

    def weights(
        self, logits: Float[Tensor, "b h t s"], i: Tensor, j: Tensor, *alpha: Float[Tensor, "h 1 1"]
    ) -> Float[Tensor, "b h t s"]:
        """Returns the weights of a block. Masked keys are minus infinity: with finite scores they would get some weight
        as alpha nears 1."""
        (each,) = alpha or (torch.tensor(self.alpha, dtype=torch.float64, device=HOST).expand(1, 1, 1),)
        apply: Callable[..., Tensor] = torch.compiler.disable(EntmaxWeights.apply)
        return apply(logits, each, self.iterations)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        """FLOPs of the products; the cost of the threshold is elementwise and not counted."""
        keys = queries + min(remembered, self.memory)
        pattern = Band(None, 0 if causal else None)
        attention = attend_flops(
            pattern, queries, keys, self.width, causal=causal, encoding=self.relative, weighed=self.fixed != 1
        )
        return self.projection_flops(queries, keys) + attention
