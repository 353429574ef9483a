"""Causal attention that records how much of it each key received (arXiv:1911.05507, section 3.2, "most used")."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.attention.executors import AttentionWeighting, Inputs, attend, attend_flops
from lit_transformers.attention.patterns import Band
from lit_transformers.mixer import Context
from lit_transformers.mixers.qkv import HeadsOutput, QKVMixer, SegmentInputs


class Usage:
    """Sums the weights that keys receive from real queries, the mean over heads, before dropout.

    ``received`` must be read before the backward pass, which computes the same weights again.
    """

    def __init__(self, key_mask: Bool[Tensor, "b s"], like: Tensor) -> None:
        self.key_mask = key_mask
        self.received = torch.zeros(key_mask.shape, dtype=like.dtype, device=like.device)

    def weigh(self, logits: Float[Tensor, "b h t s"], i: Int[Tensor, "t 1"], j: Int[Tensor, " s"]) -> Tensor:
        weights = logits.softmax(dim=-1)
        by_query = weights.detach().mean(dim=1) * self.key_mask[:, i[:, 0], None]
        self.received.index_add_(1, j, by_query.sum(dim=1).to(self.received.dtype))
        return weights


@final
class UsageAttention(QKVMixer):
    """Plain softmax attention. It observes ``used`` (b, s, 2): the attention that each key received, and the number of
    real queries that could have attended to it."""

    def attend(self, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        queries, keys = inputs.q.size(-2), inputs.k.size(-2)
        key_mask = inputs.key_mask
        if key_mask is None:  # every query sees itself and the keys before it; padding queries do not count
            real = inputs.k.new_ones(inputs.k.size(0), queries, dtype=torch.bool)
            key_mask = F.pad(real if ctx.padding_mask is None else ctx.padding_mask, (keys - queries, 0), value=True)
        usage = Usage(key_mask, inputs.q)
        y = attend(
            Band(None, 0),
            inputs,
            encoding=self.relative,
            scale=self.scale,
            dropout=self.dropped,
            weigh=AttentionWeighting(usage.weigh),
        )
        later = key_mask[:, keys - queries :].to(y.dtype).flip(1).cumsum(dim=1).flip(1)  # queries from each key on
        chances = torch.cat([later[:, :1].expand(-1, keys - queries), later], dim=1)
        return HeadsOutput(y, observed={"used": torch.stack([usage.received, chances], dim=-1)})

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        keys = queries + min(remembered, self.memory)
        attention = attend_flops(Band(None, 0), queries, keys, self.width, encoding=self.relative)
        return self.projection_flops(queries, keys) + attention
