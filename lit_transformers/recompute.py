"""Work done in pieces, of which the backward pass computes each again instead of keeping what it made.

``torch.utils.checkpoint`` would do, but for what is cut out of a long tensor: the gradient of every piece would be
filled up to the whole length, which costs pieces times length. Here it is added where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

Work = Callable[[int, list[Tensor]], tuple[Tensor, ...]]
"""What piece ``number`` makes of the parts that it reads: the same number of tensors for every piece."""


class Part(NamedTuple):
    """What a piece reads of the tensor ``source``: the whole, or of its last but one dimension

    rows    first:stop:step
    chosen  what is listed: (n,), or (b, h, n) of a tensor (b, h, s, k)
    listed  for a tensor (w, k) or (h, w, k): (t, n) gives (*h, t, n, k), and (b, h, t, n) gives (b, h, t, n, k)
    """

    source: int
    rows: tuple[int, int, int] | None = None
    chosen: Int[Tensor, "*n"] | None = None
    listed: Int[Tensor, "*t n"] | None = None

    def read(self, tensors: Sequence[Tensor]) -> Tensor:
        tensor = tensors[self.source]
        if self.rows is not None:
            return tensor[..., slice(*self.rows), :]
        if self.chosen is not None:
            if self.chosen.dim() == 1:
                return tensor.index_select(-2, self.chosen)
            return tensor.gather(-2, self.wide(self.chosen, tensor))
        if self.listed is not None:
            return tensor[self.place(self.listed, tensor)]
        return tensor

    def add(self, total: Tensor, gradient: Tensor) -> None:
        """Adds the gradient of what was read where it was read."""
        if self.rows is not None:
            total[..., slice(*self.rows), :] += gradient
        elif self.chosen is not None and self.chosen.dim() == 1:
            total.index_add_(-2, self.chosen, gradient.to(total.dtype))
        elif self.chosen is not None:
            total.scatter_add_(-2, self.wide(self.chosen, total), gradient.to(total.dtype))
        elif self.listed is not None:
            total.index_put_(self.place(self.listed, total), gradient.to(total.dtype), accumulate=True)
        else:
            total += gradient

    @staticmethod
    def wide(chosen: Tensor, tensor: Tensor) -> Tensor:
        """The index as ``gather`` wants it."""
        return chosen[..., None].expand(*tensor.shape[:2], -1, tensor.size(-1))

    @staticmethod
    def place(listed: Tensor, tensor: Tensor) -> tuple[Tensor, ...]:
        if tensor.dim() == 2:
            return (listed,)
        return torch.arange(tensor.size(0), device=listed.device)[:, None, None], listed


Cut = list[Part]


def recomputed(work: Work, cuts: Sequence[Cut], tensors: Sequence[Tensor], random: bool) -> tuple[Tensor, ...]:
    """The pieces' outputs, each joined along the last but one dimension. ``random``: whether the work draws numbers.

    A piece alone is simply computed. Second derivatives of several are not to be had.
    """
    if len(cuts) == 1:
        return work(0, [part.read(tensors) for part in cuts[0]])
    apply: Callable[..., tuple[Tensor, ...]] = torch.compiler.disable(Pieces.apply)
    return apply(work, cuts, random, *tensors)


class Pieces(torch.autograd.Function):
    """Keeps the tensors alone. Every tensor that ``work`` learns through must be among them."""

    @staticmethod
    def forward(ctx: Any, work: Work, cuts: Sequence[Cut], random: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        device = tensors[0].device
        # The last piece reads the most where later rows see more. Done first, it leaves room that the others fit in;
        # the other way round each outgrows what the one before it left, and at length 8,192 the heap doubles.
        found, states = [], []
        for number in reversed(range(len(cuts))):
            states.append(random_state(device) if random else None)
            found.append(work(number, [part.read(tensors) for part in cuts[number]]))
        ctx.save_for_backward(*tensors)
        ctx.work, ctx.cuts, ctx.states = work, cuts, states[::-1]
        ctx.lengths = [outputs[0].size(-2) for outputs in reversed(found)]
        ctx.cast = autocast_of(device)
        return tuple(torch.cat(outputs[::-1], dim=-2) for outputs in zip(*found, strict=True))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        tensors: tuple[Tensor, ...] = ctx.saved_tensors
        wanted = ctx.needs_input_grad[3:]
        device = tensors[0].device
        totals = [
            torch.zeros_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32)) if want else None
            for tensor, want in zip(tensors, wanted, strict=True)
        ]
        pieces_of = [gradient.split(ctx.lengths, dim=-2) for gradient in gradients]
        for number in reversed(range(len(ctx.cuts))):
            cut: Cut = ctx.cuts[number]
            leaves = [part.read(tensors).detach().requires_grad_(wanted[part.source]) for part in cut]
            with (
                torch.enable_grad(),
                ctx.cast(),
                drawn_again(ctx.states[number], device),
            ):
                outputs = ctx.work(number, leaves)
            learning = [place for place, part in enumerate(cut) if wanted[part.source]]
            found = torch.autograd.grad(
                outputs,
                [leaves[place] for place in learning],
                [piece[number] for piece in pieces_of],
                allow_unused=True,
            )
            for place, gradient in zip(learning, found, strict=True):
                total = totals[cut[place].source]
                if gradient is not None and total is not None:
                    cut[place].add(total, gradient)
        cast = (None if total is None else total.to(t.dtype) for total, t in zip(totals, tensors, strict=True))
        return None, None, None, *cast


RandomState = tuple[Tensor, Tensor | None]
"""Where the generators of the host and of the device stand."""


def random_state(device: torch.device) -> RandomState:
    """Where they stand now."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def go_on_from(state: RandomState, device: torch.device) -> None:
    """Sets the generators where they stood."""
    host, own = state
    torch.set_rng_state(host)
    if own is not None:
        torch.cuda.set_rng_state(own, device)


def drawn_again(state: RandomState | None, device: torch.device) -> Any:
    """Within it the same numbers are drawn as from ``state`` on; the caller's are untouched."""
    return nullcontext() if state is None else Replay(state, device)


class Replay:
    """``fork_rng`` from a given state."""

    def __init__(self, state: RandomState, device: torch.device) -> None:
        self.state, self.device = state, device
        self.fork = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])

    def __enter__(self) -> None:
        self.fork.__enter__()
        go_on_from(self.state, self.device)

    def __exit__(self, *error: Any) -> None:
        self.fork.__exit__(*error)


def autocast_of(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """What makes the mixed precision that is in force now."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext
    enabled, dtype = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
    return partial(torch.autocast, device.type, dtype, enabled)


def no_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Products in the precision of their factors; the meta device knows no other."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()
