"""Causal attention that tells how much of it each key received (arXiv:1911.05507, section 3.2, "most used")."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.executors import Inputs, Weigh, attend, attend_flops
from lit_transformers.mixer import Context
from lit_transformers.mixers.qkv import Heard, QKVMixer
from lit_transformers.patterns import Band


class Usage:
    """Sums the weights that keys receive from real queries, the mean over heads, before dropout.

    To be read before the backward pass, which computes the same weights again.
    """

    def __init__(self, seen: Bool[Tensor, "b s"], like: Tensor) -> None:
        self.seen = seen
        self.received = torch.zeros(seen.shape, dtype=like.dtype, device=like.device)

    def weigh(self, logits: Float[Tensor, "b h t s"], i: Int[Tensor, "t 1"], j: Int[Tensor, " s"]) -> Tensor:
        weights = logits.softmax(dim=-1)
        received = weights.detach().mean(dim=1) * self.seen[:, i[:, 0], None]
        self.received.index_add_(1, j, received.sum(dim=1).to(self.received.dtype))
        return weights


class Watched(QKVMixer):
    """Plain softmax attention. Its ``aux`` is no loss but ``used`` (b, s, 2): the attention that each key got, and how
    many real queries might have given it some."""

    causal = streams = True

    def attend(self, inputs: Inputs, ctx: Context, heard: Heard) -> tuple[Float[Tensor, "b h t k"], dict[str, Tensor]]:
        queries, keys = inputs.q.size(-2), inputs.k.size(-2)
        seen = inputs.seen
        if seen is None:
            seen = torch.ones(inputs.k.size(0), keys, dtype=torch.bool, device=inputs.k.device)
        usage = Usage(seen, inputs.q)
        y = attend(
            Band(None, 0),
            inputs,
            encoding=self.relative,
            scale=self.scale,
            dropout=self.dropped,
            weigh=Weigh(usage.weigh),
        )
        later = seen[:, keys - queries :].to(y.dtype).flip(1).cumsum(dim=1).flip(1)  # queries from each key on
        chances = torch.cat([later[:, :1].expand(-1, keys - queries), later], dim=1)
        return y, {"used": torch.stack([usage.received, chances], dim=-1)}

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        keys = queries + min(remembered, self.memory)
        attention = attend_flops(Band(None, 0), queries, keys, self.width, encoding=self.relative)
        return self.projection_flops(queries, keys) + attention
