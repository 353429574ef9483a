"""FlexAttention as an executor of patterns: one compiled kernel that skips blocks that are hidden whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from lit_transformers.patterns import Graph, Marked, Pattern


def flexible(q: Float[Tensor, "b h t k"]) -> bool:
    """Whether the kernel trains on these queries: on CUDA, in float32 or coarser, with heads of 16, 32, 64 or 128
    channels."""
    return q.is_cuda and q.size(-1) in (16, 32, 64, 128) and q.dtype != torch.float64


def flex(
    pattern: Pattern,
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    seen: Bool[Tensor, "b s"] | None,
    offset: int,
    scale: float,
) -> Float[Tensor, "b h t v"]:
    """Softmax attention over a pattern, without encoding. On a CPU the forward pass alone works."""
    shape = (*q.shape[:3], k.size(-2))
    made_anew = seen is not None or isinstance(pattern, Marked | Graph)
    make: Callable[..., BlockMask] = block_mask if made_anew else kept_mask
    return compiled(flex_attention)(q, k, v, block_mask=make(pattern, seen, offset, shape, str(q.device)), scale=scale)


def block_mask(pattern: Pattern, seen: Tensor | None, offset: int, shape: tuple[int, ...], device: str) -> BlockMask:
    """Which blocks of queries and keys (b, h, t, s) hold anything that is seen."""

    def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        found = pattern(b, h, i + offset, j)
        return found if seen is None else found & (seen[b, j] | (i + offset == j))

    return compiled(create_block_mask)(mask, *shape, device=device)


kept_mask = lru_cache(maxsize=None, typed=True)(block_mask)
"""Patterns of plain numbers need one mask for all passes of a length. By their types too, for patterns are tuples, and
those of two kinds that hold the same numbers are equal."""


KERNELS = 1024
"""Patterns and shapes that a process may compile kernels for."""


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled for every pattern and shape when it is first called on them.

    torch compiles a function for eight of them and then runs it as it is, which for attention is the dense form.
    Here the limit is ``KERNELS``, and beyond it there is an error.
    """
    compiled_function = torch.compile(function, dynamic=False)

    def call(*arguments: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():  # part of what a network is compiled to
            return compiled_function(*arguments, **named)
        with torch._dynamo.config.patch(recompile_limit=KERNELS, fail_on_recompile_limit_hit=True):
            return compiled_function(*arguments, **named)

    return call
