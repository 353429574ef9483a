"""FlexAttention as an executor of patterns: compiled kernels, few for all shapes, that skip blocks of hidden pairs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.compiler import config as compiler_config
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

from lit_transformers.attention.block_masks import block_mask
from lit_transformers.attention.patterns import TILE, Pattern, Tiling
from lit_transformers.attention.recompute import heads_last

TRAINS_ON = "cuda"
"""The type of device on which kernels have a backward pass."""
FEWEST_QUERIES = 512
"""Fewer queries than this run in blocks: they have few scores, and need no separate kernel."""
KERNELS = 32
"""The most kernels that a process compiles, each of which takes half a minute."""


class Kernel(NamedTuple):
    """The shapes and types that a kernel is compiled for: another one is compiled where any of it differs.

    pattern: its class, and its fields with shapes in place of tensors; shape: rows, heads, queries, keys, channels of
    keys and of values; layouts and learning: strides of queries, keys and values, and whether they have gradients;
    mask: whether it reads an offset, the number of keys, a key mask; modes: whether gradients, inference and autocast
    are on.
    """

    pattern: tuple[Hashable, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    layouts: tuple[tuple[int, ...], ...]
    learning: tuple[bool, ...]
    scale: float
    mask: tuple[bool, bool, bool]
    modes: tuple[bool, bool, bool]


ADMITTED: dict[Kernel, None] = {}
"""The kernels of this process, in the order of their first use."""


def kernels() -> tuple[Kernel, ...]:
    """Returns the kernels of this process, in the order of their first use; at most ``KERNELS``."""
    return tuple(ADMITTED)


def admitted(kernel: Kernel) -> bool:
    """Whether a kernel may run: it has run before, or there is room for one more."""
    if kernel not in ADMITTED and len(ADMITTED) < KERNELS:
        ADMITTED[kernel] = None
    return kernel in ADMITTED


def flexible(q: Float[Tensor, "b h t k"]) -> bool:
    """Whether a kernel trains on these queries, and is worth compiling: on CUDA, in float32 or coarser, with heads of
    16, 32, 64 or 128 channels, and at least ``FEWEST_QUERIES`` of them."""
    has_kernel = q.device.type == TRAINS_ON and q.size(-1) in (16, 32, 64, 128) and q.dtype != torch.float64
    return has_kernel and q.size(-2) >= FEWEST_QUERIES


def flex(
    pattern: Pattern,
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    key_mask: Bool[Tensor, "b s"] | None,
    offset: int,
    scale: float,
) -> Float[Tensor, "b h t v"] | None:
    """Softmax attention over a pattern, without encoding; None where it needs a kernel for which there is no room, or
    where the pattern cannot be extended to padding. On a CPU the forward pass alone works.

    Rows, queries and keys are padded to the lengths of ``rounded``, so that few kernels serve all shapes. Within a
    network that is compiled as a whole the kernels are of its graphs, which torch counts.
    """
    (rows, heads, queries, _), keys = q.shape, k.size(-2)
    padded_rows, padded_queries, padded_keys = rounded(rows), rounded(queries, TILE), rounded(keys, TILE)
    if offset == keys:  # the keys are of another sequence, and no padded one may be a query's own
        offset = padded_keys
    tiling = Tiling(offset, queries, keys, padded_queries, padded_keys, q.device)
    extended = pattern.extended(padded_rows, padded_queries + padded_keys)
    if extended is None:
        return None
    if not torch.compiler.is_compiling():
        shape = (padded_rows, heads, padded_queries, padded_keys, q.size(-1), v.size(-1))
        lengths = zip((q, k, v), (padded_queries, padded_keys, padded_keys), strict=True)
        kernel = Kernel(
            described(extended),
            shape,
            q.dtype,
            tuple(strides(part, padded_rows, length) for part, length in lengths),
            tuple(part.requires_grad for part in (q, k, v)),
            scale,
            (offset > 0, key_mask is None and tiling.shows_padding(pattern), key_mask is not None),
            (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled(q.device.type)),
        )
        if not admitted(kernel):
            return None
    mask = block_mask(extended, tiling, key_mask, rows, padded_rows, heads)
    q = padded(q, padded_rows, padded_queries)
    k, v = padded(k, padded_rows, padded_keys), padded(v, padded_rows, padded_keys)
    y: Tensor = compiled(flex_attention)(q, k, v, block_mask=mask, scale=scale)
    return y[:rows, :, :queries]


def rounded(length: int, unit: int = 1) -> int:
    """Returns the smallest length that is not shorter and of which there are few: 1 to 8 units, then four for each
    doubling. At most a quarter is added to more than four units."""
    units = -(-length // unit)
    step = 1
    while 8 * step < units:
        step *= 2
    return -(-units // step) * step * unit


def padded(x: Float[Tensor, "b h s k"], rows: int, length: int) -> Float[Tensor, "_ h _ k"]:
    """Returns x with rows and positions of zeros after its own, in the layout of x."""
    if (x.size(0), x.size(-2)) == (rows, length):
        return x
    added_rows, added = rows - x.size(0), length - x.size(-2)
    if heads_last(x):
        return F.pad(x.transpose(1, 2), (0, 0, 0, 0, 0, added, 0, added_rows)).transpose(1, 2)
    return F.pad(x, (0, 0, 0, added, 0, 0, 0, added_rows))


def strides(x: Float[Tensor, "b h s k"], rows: int, length: int) -> tuple[int, ...]:
    """Returns the strides of the tensor that ``padded`` returns."""
    _, heads, _, width = x.shape
    if (x.size(0), x.size(-2)) == (rows, length):
        return x.stride()
    if heads_last(x):
        return length * heads * width, width, heads * width, 1
    return heads * length * width, length * width, width, 1


def described(pattern: Pattern) -> tuple[Hashable, ...]:
    """Returns the class of a pattern and its fields, with their shapes in place of tensors."""
    values = vars(pattern).values()
    return type(pattern).__name__, *(tuple(part.shape) if isinstance(part, Tensor) else part for part in values)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, compiled for every shape that it is called on.

    By default torch compiles a function for eight of them and then runs it uncompiled, which for attention is the
    dense form. Here the limit is twice ``KERNELS``, and exceeding it is an error.
    """
    compiled_function = torch.compile(function, dynamic=False)

    def call(*arguments: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():  # called while a whole network is compiled
            return compiled_function(*arguments, **keywords)
        limits = {"recompile_limit": 2 * KERNELS, "fail_on_recompile_limit_hit": True}
        with compiler_config.patch(limits):  # type: ignore[attr-defined]
            return compiled_function(*arguments, **keywords)

    return call
