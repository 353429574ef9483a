"""Blocks of attention by the fused kernel of a CPU, forward and backward, without computing any scores twice.

The kernel returns the log-sum-exp of each row beside its output, and its backward pass needs no more than these two
and the inputs. ``recomputed`` has to compute the outputs again, for it treats the work of a piece as unknown; here only
the keys, the values and the mask of a block are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.attention.masks import Hidden
from lit_transformers.attention.recompute import Cut, Stretch, Tensors, leaves_of, room_for, zeros_for

KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
HiddenOf = Callable[[int], Hidden | None]
"""Returns what a block hides, by its number."""


def supports(q: Float[Tensor, "b h t k"], k: Float[Tensor, "b h s k"], v: Float[Tensor, "b h s v"]) -> bool:
    """Whether ``scaled_dot_product_attention`` would run the kernel on these inputs as they are."""
    if q.device.type != "cpu" or torch.is_autocast_enabled("cpu") or not torch.backends.cuda.flash_sdp_enabled():
        return False
    return q.size(-1) == v.size(-1) and all(part.stride(-1) == 1 for part in (q, k, v))


def in_blocks(
    cuts: Sequence[Cut], places: Sequence[Stretch], hidden: HiddenOf, scale: float, tensors: Tensors
) -> Float[Tensor, "b h t v"]:
    """Returns the outputs of all blocks, each at its place. The cuts are those of ``parts_of``, without encodings.
    There are no second derivatives."""
    apply: Callable[..., Tensor] = torch.compiler.disable(FlashBlocks.apply)
    (q, *_), (k,), (v,) = tensors["queries"], tensors["keys"], tensors["values"]
    return apply(cuts, places, hidden, scale, q, k, v)


def with_scores(
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s k"],
    added: Float[Tensor, "#b h t s"],
    scale: float,
) -> Float[Tensor, "b h t k"]:
    """Returns attention whose scores are the scaled products and what is added to each. There are no gradients."""
    y: Tensor = KERNEL(q, k, v, attn_mask=added, scale=scale)[0]
    return y


class FlashBlocks(torch.autograd.Function):
    """Saves queries, keys, values, outputs and the log-sum-exp of each row."""

    @staticmethod
    def forward(
        ctx: Any,
        cuts: Sequence[Cut],
        places: Sequence[Stretch],
        hidden: HiddenOf,
        scale: float,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
    ) -> Float[Tensor, "b h t v"]:
        tensors = {"queries": (q,), "keys": (k,), "values": (v,)}
        merged: tuple[Tensor, ...] = ()
        for number, (cut, place) in enumerate(zip(cuts, places, strict=True)):
            queries, keys, values = read(cut, tensors)
            y, sums = KERNEL(queries, keys, values, attn_mask=additive(hidden(number), q.dtype), scale=scale)
            outputs = y, sums.unsqueeze(-1)
            merged = merged or tuple(room_for(output, places, number) for output in outputs)
            for result, output in zip(merged, outputs, strict=True):
                place.seen_in(result).copy_(place.unfold(output))
        ctx.save_for_backward(q, k, v, *merged)
        ctx.cuts, ctx.places, ctx.hidden, ctx.scale = cuts, places, hidden, scale
        return merged[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "b h t v"]) -> tuple[Any, ...]:
        q, k, v, *merged = ctx.saved_tensors
        tensors = {"queries": (q,), "keys": (k,), "values": (v,)}
        gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        totals = {name: zeros_for(tensor) for name, (tensor,) in tensors.items()}
        for number, (cut, place) in enumerate(zip(ctx.cuts, ctx.places, strict=True)):
            of_block, y, sums = (place.fold(place.seen_in(part)) for part in (gradient, *merged))
            mask = additive(ctx.hidden(number), q.dtype)
            parts = BACKWARD(
                of_block, *read(cut, tensors), y, sums.squeeze(-1), 0.0, False, attn_mask=mask, scale=ctx.scale
            )
            add(cut, parts, totals)
        return None, None, None, None, *(totals[name].to(q.dtype) for name in tensors)


def read(cut: Cut, tensors: Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the queries, keys and values of a block, listed keys after those of its range."""
    leaves = leaves_of({name: part for name, part in cut.items() if part.source in tensors}, tensors)
    (queries,), (k,), (v,) = leaves["queries"], leaves["keys"], leaves["values"]
    if "further keys" in leaves:
        (far_k,), (far_v,) = leaves["further keys"], leaves["further values"]
        k, v = torch.cat([k, far_k], dim=-2), torch.cat([v, far_v], dim=-2)
    return queries, k, v


def add(cut: Cut, gradients: tuple[Tensor, Tensor, Tensor], totals: dict[str, Tensor]) -> None:
    """Adds the gradients of what ``read`` returns to those of whole tensors."""
    for name, gradient in zip(("queries", "keys", "values"), gradients, strict=True):
        far = cut.get(f"further {name}")
        near_count = gradient.size(-2) - (0 if far is None or far.chosen is None else far.chosen.size(-1))
        cut[name].add(totals[name], gradient[..., :near_count, :])
        if far is not None:
            far.add(totals[name], gradient[..., near_count:, :])


def additive(hidden: Hidden | None, dtype: torch.dtype) -> Float[Tensor, "*b t s"] | None:
    """Returns what is added to the scores: minus infinity where a key is hidden, and zero elsewhere."""
    if hidden is None:
        return None
    is_hidden = hidden.hidden
    mask = torch.zeros(*is_hidden.shape[:-1], hidden.start + is_hidden.size(-1), dtype=dtype)
    mask[..., hidden.start :].masked_fill_(is_hidden, float("-inf"))
    return mask
