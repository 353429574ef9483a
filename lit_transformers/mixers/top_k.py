"""Explicit Sparse Transformer: every query keeps its best keys (Zhao et al. 2019, arXiv:1912.11637, section 3)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.attention.executors import AttentionWeighting, Inputs, attend, attend_flops
from lit_transformers.attention.patterns import Band
from lit_transformers.config import Length
from lit_transformers.mixer import Context, Layered, Promises, Shape, at_layer
from lit_transformers.mixers.qkv import HeadsOutput, QKVConfig, QKVMixer, SegmentInputs
from lit_transformers.space import Interval, Space


@final
class TopKConfig(QKVConfig, kind="top_k"):
    """kept: how many keys a query keeps, one number for all layers or one per layer; with fewer keys it is plain
    attention.

    when: ``before`` the softmax, as in the paper, so that the kept weights sum to one; or ``after`` it, so that they
    equal those of plain attention and sum to less. (Divided by their sum they would equal those of ``before``, and so
    would the gradient: there is no third choice.)

    It may be used for self-attention, cross-attention or both: a model has a mixer for each.
    """

    space: ClassVar[Space] = {"kept": Interval(2, 64, log=True)}

    kept: Annotated[Layered, Length] = 8
    when: Literal["before", "after"] = "before"

    def attention_promises(self) -> Promises:
        return Promises(("causal", "bidirectional", "cross"), streams=True)

    def build(self, shape: Shape) -> TopK:
        return TopK(self, shape)


@final
class TopK(QKVMixer):
    """softmax(M(P, k)) V, with M the scores P of each row, minus infinity where they are below the row's k-th largest.

    Keys that score as much as the k-th are kept too, so ties keep more than k; a row with fewer keys keeps them all.
    Gradients flow through kept scores alone; ``after`` the softmax they reach the others through its sum.
    """

    def __init__(self, config: TopKConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.kept, self.when = at_layer(config.kept, shape, "mixer.kept"), config.when

    def attend(self, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        pattern = Band(None, 0 if ctx.causal and ctx.source is None else None)
        weigh = AttentionWeighting(self.weights)
        return HeadsOutput(
            attend(pattern, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped, weigh=weigh)
        )

    def weights(self, logits: Float[Tensor, "b h t s"], i: Tensor, j: Tensor) -> Float[Tensor, "b h t s"]:
        """Returns the weights of a block with every key that its queries see. Masked keys, padding among them, have
        logits of minus infinity and are never kept before others."""
        if self.kept >= logits.size(-1):
            return logits.softmax(dim=-1)
        with torch.no_grad():
            threshold = logits.topk(self.kept, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
            is_below = logits < threshold
            if self.when == "before":  # a weight of zero has no gradient, so autograd need not record this
                logits.masked_fill_(is_below, float("-inf"))
        weights = logits.softmax(dim=-1)
        return weights if self.when == "before" else weights.masked_fill(is_below, 0.0)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        """All scores are computed; keeping few of them saves no product."""
        keys = queries + min(remembered, self.memory)
        pattern = Band(None, 0 if causal else None)
        attention = attend_flops(
            pattern, queries, keys, self.width, causal=causal, encoding=self.relative, weighed=True
        )
        return self.projection_flops(queries, keys) + attention
