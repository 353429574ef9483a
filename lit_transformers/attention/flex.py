"""FlexAttention as an executor of patterns: one compiled kernel that skips blocks that are entirely hidden."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.compiler import config as compiler_config
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from lit_transformers.attention.patterns import Pattern


def flexible(q: Float[Tensor, "b h t k"]) -> bool:
    """Whether the kernel trains on these queries: on CUDA, in float32 or coarser, with heads of 16, 32, 64 or 128
    channels."""
    return q.is_cuda and q.size(-1) in (16, 32, 64, 128) and q.dtype != torch.float64


def flex(
    pattern: Pattern,
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    key_mask: Bool[Tensor, "b s"] | None,
    offset: int,
    scale: float,
) -> Float[Tensor, "b h t v"]:
    """Softmax attention over a pattern, without encoding. On a CPU the forward pass alone works."""
    shape = (*q.shape[:3], k.size(-2))
    is_static = key_mask is None and pattern.static
    build: Callable[..., BlockMask] = cached_block_mask if is_static else block_mask
    return compiled(flex_attention)(
        q, k, v, block_mask=build(pattern, key_mask, offset, shape, str(q.device)), scale=scale
    )


def block_mask(
    pattern: Pattern, key_mask: Tensor | None, offset: int, shape: tuple[int, ...], device: str
) -> BlockMask:
    """Returns the mask of the blocks of queries and keys (b, h, t, s) that hold any visible pair."""

    def mask(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = pattern.sees(b, h, i + offset, j)
        return allowed if key_mask is None else allowed & (key_mask[b, j] | (i + offset == j))

    return compiled(create_block_mask)(mask, *shape, device=device)


cached_block_mask = lru_cache(maxsize=None)(block_mask)
"""Caches masks: patterns of plain numbers need one mask for all passes of a length."""


KERNELS = 1024
"""The most patterns and shapes that a process may compile kernels for."""


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, compiled for every pattern and shape when it is first called on them.

    By default torch compiles a function for eight of them and then runs it uncompiled, which for attention is the
    dense form. Here the limit is ``KERNELS``, and exceeding it is an error.
    """
    compiled_function = torch.compile(function, dynamic=False)

    def call(*arguments: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():  # called while a whole network is compiled
            return compiled_function(*arguments, **keywords)
        limits = {"recompile_limit": KERNELS, "fail_on_recompile_limit_hit": True}
        with compiler_config.patch(limits):  # type: ignore[attr-defined]
            return compiled_function(*arguments, **keywords)

    return call
