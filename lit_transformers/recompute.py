"""Work done in pieces, of which the backward pass computes each again instead of keeping what it made.

``torch.utils.checkpoint`` would do, but for what is cut out of a long tensor: the gradient of every piece would be
filled up to the whole length, which costs pieces times length. Here it is added where it belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

Work = Callable[[int, list[Tensor]], tuple[Tensor, ...]]
"""What piece ``number`` makes of the parts that it reads: the same number of tensors for every piece."""


class Stretch(NamedTuple):
    """first:stop:step of the last but one dimension, ``times`` times, each ``stride`` on from the one before. All of
    them are read at once: (b, h, s, k) gives (b times, h, t, k)."""

    first: int
    stop: int
    step: int = 1
    times: int = 1
    stride: int = 0

    @property
    def length(self) -> int:
        """Of one."""
        return len(range(self.first, self.stop, self.step))

    @property
    def span(self) -> int:
        """From the first of one to its last."""
        return (self.length - 1) * self.step + 1

    def seen_in(self, tensor: Tensor) -> Tensor:
        """The stretches of (b, h, s, k) as a view (b, h, times, t, k); of one alone (*n, t, k)."""
        if self.times == 1:
            return tensor[..., self.first : self.stop : self.step, :]
        last = self.first + (self.times - 1) * self.stride + self.span
        return tensor[..., self.first : last, :].unfold(-2, self.span, self.stride)[..., :: self.step].mT

    def fold(self, seen: Tensor) -> Tensor:
        """From (b, h, times, t, k) to (b times, h, t, k)."""
        return seen if self.times == 1 else seen.transpose(1, 2).flatten(0, 1)

    def unfold(self, folded: Tensor) -> Tensor:
        """And back."""
        return folded if self.times == 1 else folded.unflatten(0, (-1, self.times)).transpose(1, 2)

    def add(self, total: Tensor, gradient: Tensor) -> None:
        """Adds up, in as many turns as stretches overlap."""
        seen, gradients = self.seen_in(total), self.unfold(gradient)
        if self.times == 1:
            seen += gradients
            return
        apart = self.stride >= self.span or self.times * self.stride <= self.step
        turns = 1 if apart else -(-self.span // self.stride)
        for turn in range(min(turns, self.times)):
            seen[:, :, turn::turns] += gradients[:, :, turn::turns]


def in_order(lengths: Sequence[int]) -> list[Stretch]:
    """One after the other."""
    stops = list(accumulate(lengths))
    return [Stretch(stop - length, stop) for length, stop in zip(lengths, stops, strict=True)]


class Part(NamedTuple):
    """What a piece reads of the tensor ``source``: the whole, or of its last but one dimension

    rows    a stretch, or several
    chosen  what is listed: (n,), or of a tensor (b, h, s, k) for c blocks of each row: (b c, h, n)
    listed  for a tensor (w, k) or (h, w, k): (t, n) gives (*h, t, n, k), and (b, h, t, n) gives (b, h, t, n, k)
    """

    source: int
    rows: Stretch | None = None
    chosen: Int[Tensor, "*n"] | None = None
    listed: Int[Tensor, "*t n"] | None = None

    def read(self, tensors: Sequence[Tensor]) -> Tensor:
        tensor = tensors[self.source]
        if self.rows is not None:
            return self.rows.fold(self.rows.seen_in(tensor))
        if self.chosen is not None:
            if self.chosen.dim() == 1:
                return tensor.index_select(-2, self.chosen)
            rows, places = self.by_rows(tensor, self.chosen)
            return rows.index_select(0, places.flatten()).view(*places.shape, -1)
        if self.listed is not None:
            return tensor[self.place(self.listed, tensor)]
        return tensor

    def add(self, total: Tensor, gradient: Tensor) -> None:
        """Adds the gradient of what was read where it was read; ``total`` as ``zeros_for`` makes it."""
        if self.rows is not None:
            self.rows.add(total, gradient)
        elif self.chosen is not None and self.chosen.dim() == 1:
            total.index_add_(-2, self.chosen, gradient.to(total.dtype))
        elif self.chosen is not None:
            rows, places = self.by_rows(total, self.chosen)
            rows.index_add_(0, places.flatten(), gradient.to(total.dtype).reshape(-1, rows.size(-1)))
        elif self.listed is not None:
            total.index_put_(self.place(self.listed, total), gradient.to(total.dtype), accumulate=True)
        else:
            total += gradient

    @staticmethod
    def by_rows(tensor: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """A tensor (b, h, s, k) as rows (n, k), and which of them are chosen (b c, h, n): whole rows are fetched twenty
        times as fast as ``gather`` fetches their elements."""
        rows, heads, keys, width = tensor.shape
        b = torch.arange(rows, device=chosen.device).repeat_interleave(chosen.size(0) // rows)[:, None, None]
        h = torch.arange(heads, device=chosen.device)[:, None]
        if heads_last(tensor):
            return tensor.transpose(1, 2).reshape(-1, width), (b * keys + chosen) * heads + h
        return tensor.reshape(-1, width), (b * heads + h) * keys + chosen

    @staticmethod
    def place(listed: Tensor, tensor: Tensor) -> tuple[Tensor, ...]:
        if tensor.dim() == 2:
            return (listed,)
        return torch.arange(tensor.size(0), device=listed.device)[:, None, None], listed


def folded(listed: Int[Tensor, "b h *c n"]) -> Int[Tensor, "b h n"]:
    """Of several blocks, a row of the batch for each."""
    return listed if listed.dim() == 3 else listed.transpose(1, 2).flatten(0, 1)


def heads_last(tensor: Tensor) -> bool:
    """Whether (b, h, s, k) lies in memory as (b, s, h, k), as projections make it."""
    return tensor.dim() == 4 and tensor.transpose(1, 2).is_contiguous()


def zeros_for(tensor: Tensor) -> Tensor:
    """For sums of gradients, in memory as ``by_rows`` wants them."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    if heads_last(tensor):
        return torch.zeros_like(tensor.transpose(1, 2), dtype=dtype).transpose(1, 2)
    return torch.zeros_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


Cut = list[Part]


def recomputed(
    work: Work,
    cuts: Sequence[Cut],
    places: Sequence[Stretch],
    tensors: Sequence[Tensor],
    random: bool,
    keep: Sequence[bool] = (),
) -> tuple[Tensor, ...]:
    """The pieces' outputs, each at its place of the last but one dimension. ``random``: whether the work draws numbers.
    ``keep``: of which pieces all is kept that the backward pass needs, for it is little; none where nothing is said.

    A piece alone is simply computed. Second derivatives of several are not to be had.
    """
    if len(cuts) == 1 and places[0].times == 1:
        return work(0, [part.read(tensors) for part in cuts[0]])
    apply: Callable[..., tuple[Tensor, ...]] = torch.compiler.disable(Pieces.apply)
    learning = torch.is_grad_enabled()
    kept = [learning and here for here in keep] or [False] * len(cuts)
    return apply(work, cuts, places, random, kept, *tensors)


class Pieces(torch.autograd.Function):
    """Keeps the tensors alone, but of pieces that are kept their graph. Every tensor that ``work`` learns through must
    be among them."""

    @staticmethod
    def forward(
        ctx: Any,
        work: Work,
        cuts: Sequence[Cut],
        places: Sequence[Stretch],
        random: bool,
        keep: Sequence[bool],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        device, wanted = tensors[0].device, [tensor.requires_grad for tensor in tensors]
        joined: tuple[Tensor, ...] = ()
        ctx.graphs, states = {}, []
        # The last piece reads the most where later rows see more. Done first, it leaves room that the others fit in;
        # the other way round each outgrows what the one before it left, and at length 8,192 the heap doubles.
        for number in reversed(range(len(cuts))):
            states.append(random_state(device) if random and not keep[number] else None)
            if keep[number]:
                ctx.graphs[number] = graph = graph_of(work, cuts, number, tensors, wanted)
                outputs = tuple(output.detach() for output in graph.outputs)
            else:
                outputs = work(number, [part.read(tensors) for part in cuts[number]])
            joined = joined or tuple(room_for(output, places, number) for output in outputs)
            for whole, output in zip(joined, outputs, strict=True):
                places[number].seen_in(whole).copy_(places[number].unfold(output))
        ctx.save_for_backward(*tensors)
        ctx.work, ctx.cuts, ctx.places, ctx.states = work, cuts, places, states[::-1]
        ctx.cast = autocast_of(device)
        return joined

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        tensors: tuple[Tensor, ...] = ctx.saved_tensors
        wanted = ctx.needs_input_grad[5:]
        device = tensors[0].device
        totals = [zeros_for(tensor) if want else None for tensor, want in zip(tensors, wanted, strict=True)]
        for number in reversed(range(len(ctx.cuts))):
            cut, place = ctx.cuts[number], ctx.places[number]
            graph = ctx.graphs.get(number)
            if graph is None:
                with ctx.cast(), drawn_again(ctx.states[number], device):
                    graph = graph_of(ctx.work, ctx.cuts, number, tensors, wanted)
            learning = [at for at, part in enumerate(cut) if wanted[part.source]]
            found = torch.autograd.grad(
                graph.outputs,
                [graph.leaves[at] for at in learning],
                [place.fold(place.seen_in(gradient)) for gradient in gradients],
                retain_graph=number in ctx.graphs,
                allow_unused=True,
            )
            for at, gradient in zip(learning, found, strict=True):
                total = totals[cut[at].source]
                if gradient is not None and total is not None:
                    cut[at].add(total, gradient)
        cast = (None if total is None else total.to(t.dtype) for total, t in zip(totals, tensors, strict=True))
        return None, None, None, None, None, *cast


class PieceGraph(NamedTuple):
    """A piece with what its backward pass needs."""

    leaves: list[Tensor]
    outputs: tuple[Tensor, ...]


def graph_of(
    work: Work, cuts: Sequence[Cut], number: int, tensors: Sequence[Tensor], wanted: Sequence[bool]
) -> PieceGraph:
    """The piece computed on leaves of its own."""
    leaves = [part.read(tensors).detach().requires_grad_(wanted[part.source]) for part in cuts[number]]
    with torch.enable_grad():
        return PieceGraph(leaves, work(number, leaves))


def room_for(output: Tensor, places: Sequence[Stretch], number: int) -> Tensor:
    """For the outputs of all pieces like that of one; heads last in memory, as they are merged."""
    length = sum(place.length * place.times for place in places)
    if output.dim() != 4:
        return output.new_empty(*output.shape[:-2], length, output.size(-1))
    rows, heads, _, width = output.shape
    return output.new_empty(rows // places[number].times, length, heads, width).transpose(1, 2)


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
