"""Attention written as the papers write it: one query, one key, one head at a time. Slow, and easy to check by eye."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lit_transformers.encodings.huang import Huang
from lit_transformers.encodings.learned_relative import LearnedRelative
from lit_transformers.encodings.shaw import Shaw
from lit_transformers.encodings.xl import XL, HeadBias
from lit_transformers.mixers.attention import Attention

Sees = Callable[[int, int], bool]


def attention(
    layer: Attention, x: Tensor, memory: Tensor | None, sees: Sees, segments: Sequence[int] | None = None
) -> Tensor:
    """One sequence: x (t, d) after memory (m, d) to y (t, d). ``sees(i, j)`` counts keys, memory included, and so do
    segments."""
    hidden = x if memory is None else torch.cat([memory.detach(), x])
    before = len(hidden) - len(x)
    outputs = []
    for head in range(layer.heads):
        rows = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
        q, k, v = (linear.weight[rows] for linear in (layer.query, layer.key, layer.value))
        head_outputs = []
        for i in range(before, len(hidden)):
            visible_keys = [j for j in range(len(hidden)) if sees(i, j)]
            scores = [
                (
                    score(layer, head, q @ hidden[i], k @ hidden[j], i - j)
                    + (0.0 if segments is None else segment_score(layer, head, q @ hidden[i], segments[i], segments[j]))
                )
                / math.sqrt(layer.head_dim)
                for j in visible_keys
            ]
            weights = torch.stack(scores).softmax(dim=0)
            values = [v @ hidden[j] + added_value(layer, head, i - j) for j in visible_keys]
            head_outputs.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
        outputs.append(torch.stack([torch.as_tensor(y) for y in head_outputs]))
    return torch.cat(outputs, dim=-1) @ layer.merge.weight.T


def score(layer: Attention, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """The score of one query and one key, before the division by sqrt(k)."""
    match layer.relative:
        case XL() as xl:
            return xl_score(xl, head, q, k, distance)
        case Shaw(keys=None):
            return q @ k
        case Shaw() as shaw:
            return q @ (k + row(shaw.keys, head, distance))
        case Huang() as huang:
            vector = row(huang.vectors, head, distance)
            return q @ k + q @ vector + k @ vector
        case LearnedRelative() as learned:
            table = learned.bias.weight
            assert isinstance(table, Tensor)
            return q @ k + table[bucket(learned, distance), head] * math.sqrt(layer.head_dim)
    return q @ k


def xl_score(xl: XL, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """(a) + (b) + (c) + (d) of arXiv:1901.02860, section 3.3, with R evaluated at this very distance."""
    if xl.clamp_length is not None:
        distance = max(-xl.clamp_length, min(xl.clamp_length, distance))
    rows = slice(head * xl.head_dim, (head + 1) * xl.head_dim)
    r = xl.project.weight[rows] @ wave(distance, xl.dim)
    total = q @ k + q @ r
    if isinstance(xl.content, HeadBias):
        total = total + xl.content.weight[head, 0] @ k
    if isinstance(xl.position, HeadBias):
        total = total + xl.position.weight[head, 0] @ r
    return total


def segment_score(layer: Attention, head: int, q: Tensor, of_query: int, of_key: int) -> Tensor:
    """(q_i + b) . s_ij of arXiv:1906.08237, section 2.5."""
    assert isinstance(layer.relative, XL) and layer.relative.segments is not None
    segments = layer.relative.segments
    return (q + segments.bias.weight[head, 0]) @ segments.weight[int(of_query != of_key), head]


def wave(position: int, dim: int) -> Tensor:
    """All sines, then all cosines."""
    angles = [position / 10_000 ** (2 * pair / dim) for pair in range(dim // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def row(vectors: object, head: int, distance: int) -> Tensor:
    """a_distance, clipped, of a table (2k + 1, c), or of one such table for each head."""
    weight = getattr(vectors, "weight", None)
    assert isinstance(weight, Tensor)
    table = weight[head] if weight.dim() == 3 else weight
    limit = len(table) // 2
    return table[limit + max(-limit, min(limit, distance))]


def added_value(layer: Attention, head: int, distance: int) -> Tensor | float:
    shaw = layer.relative
    return row(shaw.added, head, distance) if isinstance(shaw, Shaw) and shaw.added is not None else 0.0


def bucket(learned: LearnedRelative, distance: int) -> int:
    """The causal buckets of arXiv:1910.10683: half single distances, half growing logarithmically."""
    length, exact_buckets = max(distance, 0), learned.buckets // 2
    if length < exact_buckets:
        return length
    log_bucket = (
        math.log(length / exact_buckets)
        / math.log(learned.max_distance / exact_buckets)
        * (learned.buckets - exact_buckets)
    )
    return min(learned.buckets - 1, exact_buckets + int(log_bucket))
