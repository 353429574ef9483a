"""Full attention with shared queries and keys, k_j = q_j / |q_j| (Kitaev et al. 2020, arXiv:2001.04451, section 2)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.attention.executors import AttentionWeighting, Inputs, attend, attend_flops
from lit_transformers.attention.patterns import Band
from lit_transformers.attention.relative import Relative

ITSELF = -1e5
"""Added to a query's score with its own key, which would be the largest: finite, so that a query sees itself where
there is no other key, as at the first token (appendix A)."""


def unit(q: Float[Tensor, "b h t k"]) -> Float[Tensor, "b h t k"]:
    """Returns the keys k_j = q_j / |q_j|."""
    return F.normalize(q, dim=-1)


def others_first(logits: Float[Tensor, "b h t s"], i: Tensor, j: Tensor) -> Float[Tensor, "b h t s"]:
    """Returns the softmax over all keys but the query's own, or over that one if there is no other."""
    return (logits + ITSELF * (i == j)).softmax(dim=-1)


def attend_others(
    inputs: Inputs, *, causal: bool, encoding: Relative | None, scale: float, dropout: float
) -> Float[Tensor, "b h t v"]:
    """Returns full attention with shared queries and keys, in which a query sees itself only without others."""
    pattern, weigh = Band(None, 0 if causal else None), AttentionWeighting(others_first)
    return attend(pattern, inputs, encoding=encoding, scale=scale, dropout=dropout, weigh=weigh)


def attend_others_flops(queries: int, width: int, *, causal: bool, encoding: Relative | None) -> int:
    """Forward FLOPs of ``attend_others`` for one sequence."""
    pattern = Band(None, 0 if causal else None)
    return attend_flops(pattern, queries, queries, width, causal=causal, encoding=encoding, weighed=True)
