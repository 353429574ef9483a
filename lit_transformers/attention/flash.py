"""Blocks of attention by the fused kernel of a CPU, forward and backward, without storing any scores.

The kernel returns its output and the log-sum-exp of each row. Its backward pass needs only these two and the inputs,
but computes no gradient of scores that an encoding adds. Where an encoding adds scores, the weights are the
exponentials of the scores less the log-sum-exp, and the gradients follow from them by products of matrices. All blocks
use the same memory for these products, one after another: otherwise the system would have to map new memory for each
block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lit_transformers.attention.kernels import FLASH, note
from lit_transformers.attention.masks import Hidden
from lit_transformers.attention.recompute import (
    Cut,
    PieceGraph,
    Stretch,
    Tensors,
    add_gradients,
    graph_of,
    grouped,
    leaves_of,
    room_for,
    zeros_for,
)
from lit_transformers.attention.workspace import empty, next_block, workspace

KERNEL = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class Blocks(NamedTuple):
    """The blocks of a pass: the slices that each reads, the place of its outputs, the keys that it hides, and the scale
    of products.

    ``added`` returns the scores that an encoding adds to the products of a block, given the tensors that the block
    reads: a new tensor (#b, h, t, s), or None if it adds none. It reads no other tensors that gradients flow through.
    """

    cuts: Sequence[Cut]
    places: Sequence[Stretch]
    hidden: Callable[[int], Hidden | None]
    scale: float
    added: Callable[[Tensors], Float[Tensor, "#b h t s"] | None]


def supports(q: Float[Tensor, "b h t k"], k: Float[Tensor, "b h s k"], v: Float[Tensor, "b h s v"]) -> bool:
    """Whether ``scaled_dot_product_attention`` would run the kernel on these inputs as they are."""
    if q.device.type != "cpu" or torch.is_autocast_enabled("cpu") or not torch.backends.cuda.flash_sdp_enabled():
        return False
    return q.size(-1) == v.size(-1) and all(part.stride(-1) == 1 for part in (q, k, v))


def in_blocks(blocks: Blocks, tensors: Tensors) -> Float[Tensor, "b h t v"]:
    """Returns the outputs of all blocks, each at its place. There are no second derivatives."""
    apply: Callable[..., Tensor] = torch.compiler.disable(FlashBlocks.apply)
    sizes = {name: len(group) for name, group in tensors.items()}
    return apply(blocks, sizes, *(part for group in tensors.values() for part in group))


class FlashBlocks(torch.autograd.Function):
    """Saves the input tensors, which are the groups of ``sizes`` one after another, the outputs and the log-sum-exp of
    each row."""

    @staticmethod
    def forward(ctx: Any, blocks: Blocks, sizes: Mapping[str, int], *flat: Tensor) -> Float[Tensor, "b h t v"]:
        note(FLASH)
        tensors = grouped(flat, sizes)
        merged: tuple[Tensor, ...] = ()
        with workspace():
            for number in reversed(range(len(blocks.cuts))):  # the longest first, for which there is room then
                next_block()
                place, leaves = blocks.places[number], leaves_of(blocks.cuts[number], tensors)
                queries, keys, values = read(leaves)
                mask = masked(blocks.added(leaves), blocks.hidden(number), queries.dtype)
                y, sums = KERNEL(queries, keys, values, attn_mask=mask, scale=blocks.scale)
                outputs = y, sums.unsqueeze(-1)
                merged = merged or tuple(room_for(output, blocks.places, number) for output in outputs)
                for result, output in zip(merged, outputs, strict=True):
                    place.seen_in(result).copy_(place.unfold(output))
        ctx.save_for_backward(*merged, *flat)
        ctx.blocks, ctx.sizes = blocks, sizes
        return merged[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "b h t v"]) -> tuple[Any, ...]:
        blocks: Blocks = ctx.blocks
        (y, sums, *flat), needed = ctx.saved_tensors, ctx.needs_input_grad[2:]
        gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        flat_totals = [zeros_for(tensor) if is_needed else None for tensor, is_needed in zip(flat, needed, strict=True)]
        tensors, needs_gradient, totals = (grouped(part, ctx.sizes) for part in (flat, needed, flat_totals))

        def work(number: int, leaves: Tensors) -> tuple[Tensor, ...]:
            added = blocks.added(leaves)
            return () if added is None else (added,)

        with workspace():
            for number in reversed(range(len(blocks.cuts))):
                next_block()
                cut, place, hidden = blocks.cuts[number], blocks.places[number], blocks.hidden(number)
                graph = graph_of(work, blocks.cuts, number, tensors, needs_gradient)
                inputs = tuple(part.detach() for part in read(graph.leaves))
                outputs = tuple(place.fold(place.seen_in(part)) for part in (gradient, y, sums))
                if graph.outputs:
                    parts, of_scores = block_gradients(graph, inputs, outputs, hidden, blocks.scale)
                    if graph.outputs[0].requires_grad:
                        add_gradients(graph, cut, (of_scores,), totals)
                else:
                    of_outputs, block_y, block_sums = outputs
                    mask = masked(None, hidden, inputs[0].dtype)
                    parts = BACKWARD(
                        of_outputs,
                        *inputs,
                        block_y,
                        block_sums.squeeze(-1),
                        0.0,
                        False,
                        attn_mask=mask,
                        scale=blocks.scale,
                    )
                add(cut, parts, totals)
        cast = (None if total is None else total.to(t.dtype) for total, t in zip(flat_totals, flat, strict=True))
        return None, None, *cast


def block_gradients(
    graph: PieceGraph,
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    hidden: Hidden | None,
    scale: float,
) -> tuple[tuple[Tensor, ...], Float[Tensor, "b h t s"]]:
    """Returns the gradients of queries, keys and values, without their part through the added scores, and the gradients
    of the scores. inputs: queries, keys and values; outputs: gradients of the outputs, outputs, log-sum-exp of rows."""
    rows, heads, t, _ = inputs[0].shape
    s = inputs[1].size(-2)
    q, k, v, gradient, y, sums = (part.flatten(0, 1) for part in (*inputs, *outputs))
    added = graph.outputs[0].detach()
    weights, of_scores = (empty(q, rows * heads, t, s) for _ in range(2))
    torch.baddbmm(added.expand(rows, -1, -1, -1).flatten(0, 1), q, k.mT, alpha=scale, out=weights)
    weights.sub_(sums).exp_()
    if hidden is not None:
        weights.unflatten(0, (rows, heads))[..., hidden.start :].masked_fill_(hidden.hidden, 0.0)
    of_values = weights.mT @ gradient
    torch.bmm(gradient, v.mT, out=of_scores)
    of_scores.sub_((gradient * y).sum(-1, keepdim=True)).mul_(weights)
    of_queries, of_keys = (of_scores @ k).mul_(scale), (of_scores.mT @ q).mul_(scale)
    parts, whole = (of_queries, of_keys, of_values), of_scores.unflatten(0, (rows, heads))
    return tuple(part.unflatten(0, (rows, heads)) for part in parts), whole.sum_to_size(added.shape)


def read(leaves: Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the queries, keys and values of a block, listed keys after those of its range."""
    (queries, *_), (k,), (v,) = leaves["queries"], leaves["keys"], leaves["values"]
    if "further keys" in leaves:
        (far_k,), (far_v,) = leaves["further keys"], leaves["further values"]
        k, v = torch.cat([k, far_k], dim=-2), torch.cat([v, far_v], dim=-2)
    return queries, k, v


def add(cut: Cut, gradients: tuple[Tensor, ...], totals: Mapping[str, tuple[Tensor | None, ...]]) -> None:
    """Adds the gradients of the tensors that ``read`` returns to the gradients of the whole tensors."""
    for name, gradient in zip(("queries", "keys", "values"), gradients, strict=True):
        total, far = totals[name][0], cut.get(f"further {name}")
        if total is None:
            continue
        near_count = gradient.size(-2) - (0 if far is None or far.chosen is None else far.chosen.size(-1))
        cut[name].add(total, gradient[..., :near_count, :])
        if far is not None:
            far.add(total, gradient[..., near_count:, :])


def masked(
    added: Float[Tensor, "#b h t s"] | None, hidden: Hidden | None, dtype: torch.dtype
) -> Float[Tensor, "*b t s"] | None:
    """Returns the added scores, with minus infinity where a key is hidden. It may change ``added``."""
    if hidden is None:
        return added
    is_hidden = hidden.hidden
    if added is None:
        added = torch.zeros(*is_hidden.shape[:-1], hidden.start + is_hidden.size(-1), dtype=dtype)
    leading = torch.broadcast_shapes(added.shape[:-2], is_hidden.shape[:-2])
    if leading != added.shape[:-2]:
        added = added.expand(*leading, -1, -1).clone()
    added[..., hidden.start :].masked_fill_(is_hidden, float("-inf"))
    return added
