"""Computes work in pieces, each of which the backward pass computes again instead of storing its activations.

``torch.utils.checkpoint`` would pad the gradient of every slice of a long tensor to the whole length, which costs
pieces times length. Here the gradient is added in place, to the part of the tensor that the piece read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import accumulate, islice
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.precision import autocast_of

T = TypeVar("T")
Tensors = Mapping[str, tuple[Tensor, ...]]
"""Groups of tensors by name."""
Work = Callable[[int, Tensors], tuple[Tensor, ...]]
"""Computes the outputs of piece ``number`` from the parts that it reads; every piece has equally many outputs."""

CHANNELS = {"cpu": 2**19}
"""How many channels of positions are computed at once, by the type of device: as many as the cache of a CPU holds."""
CHANNELS_ELSEWHERE = 2**25
"""As many as keep another device busy."""


class Stretch(NamedTuple):
    """The indices first:stop:step of the last but one dimension, repeated ``times`` times, each ``stride`` after the
    one before. All repetitions are read at once: (b, h, s, k) gives (b times, h, t, k)."""

    first: int
    stop: int
    step: int = 1
    times: int = 1
    stride: int = 0

    @property
    def length(self) -> int:
        """The number of indices in one repetition."""
        return len(range(self.first, self.stop, self.step))

    @property
    def span(self) -> int:
        """The number of positions from the first index of one repetition to its last, both included."""
        return (self.length - 1) * self.step + 1

    def seen_in(self, tensor: Tensor) -> Tensor:
        """Returns a view (b, h, times, t, k) of a tensor (b, h, s, k); without repetitions (*n, t, k)."""
        if self.times == 1:
            return tensor[..., self.first : self.stop : self.step, :]
        stop = self.first + (self.times - 1) * self.stride + self.span
        return tensor[..., self.first : stop, :].unfold(-2, self.span, self.stride)[..., :: self.step].mT

    def fold(self, stretches: Tensor) -> Tensor:
        """Reshapes (b, h, times, t, k) to (b times, h, t, k)."""
        return stretches if self.times == 1 else stretches.transpose(1, 2).flatten(0, 1)

    def unfold(self, folded: Tensor) -> Tensor:
        """Reshapes (b times, h, t, k) back to (b, h, times, t, k)."""
        return folded if self.times == 1 else folded.unflatten(0, (-1, self.times)).transpose(1, 2)

    def add(self, total: Tensor, gradient: Tensor) -> None:
        """Adds a gradient to ``total`` in place, in as many rounds as repetitions overlap."""
        view, gradients = self.seen_in(total), self.unfold(gradient)
        if self.times == 1:
            view += gradients
            return
        is_disjoint = self.stride >= self.span or self.times * self.stride <= self.step
        rounds = 1 if is_disjoint else -(-self.span // self.stride)
        for start in range(min(rounds, self.times)):
            view[:, :, start::rounds] += gradients[:, :, start::rounds]


def in_order(lengths: Sequence[int]) -> list[Stretch]:
    """Returns stretches of these lengths, one after the other."""
    stops = list(accumulate(lengths))
    return [Stretch(stop - length, stop) for length, stop in zip(lengths, stops, strict=True)]


def pieces_of(length: int, channels: int, device: torch.device, unit: int = 1) -> list[Stretch]:
    """Cuts a row into pieces of whole units of positions. channels: those of one position, in all rows together."""
    size = unit * max(1, CHANNELS.get(device.type, CHANNELS_ELSEWHERE) // (unit * channels))
    return in_order([min(size, length - first) for first in range(0, length, size)])


class TensorSlice(NamedTuple):
    """The part of each tensor in the group ``source`` that a piece reads: all of it, or, of the last but one dimension,

    rows    a stretch, possibly repeated
    chosen  the listed indices: (n,), or, for c blocks of each row of a tensor (b, h, s, k), (b c, h, n)
    listed  indices for a tensor (w, k) or (h, w, k): (t, n) gives (*h, t, n, k), (b, h, t, n) gives (b, h, t, n, k)
    """

    source: str
    rows: Stretch | None = None
    chosen: Int[Tensor, "*n"] | None = None
    listed: Int[Tensor, "*t n"] | None = None

    def read(self, tensor: Tensor) -> Tensor:
        """Returns the part of one tensor."""
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
        """Adds the gradient of the part that was read to this part of ``total``, a tensor from ``zeros_for``."""
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
        """Returns a tensor (b, h, s, k) as rows (n, k), and the indices (b c, h, n) of the chosen rows: fetching whole
        rows is twenty times as fast as fetching their elements with ``gather``."""
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
    """Moves the blocks c of (b, h, c, n) to the batch: (b c, h, n). A tensor without them is returned as it is."""
    return listed if listed.dim() == 3 else listed.transpose(1, 2).flatten(0, 1)


def heads_last(tensor: Tensor) -> bool:
    """Whether (b, h, s, k) lies in memory as (b, s, h, k), as projections make it."""
    return tensor.dim() == 4 and tensor.transpose(1, 2).is_contiguous()


def zeros_for(tensor: Tensor) -> Tensor:
    """Returns zeros for a sum of a tensor's gradients, in float32 or finer, in the layout that ``by_rows`` needs."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    if heads_last(tensor):
        return torch.zeros_like(tensor.transpose(1, 2), dtype=dtype).transpose(1, 2)
    return torch.zeros_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


Cut = Mapping[str, TensorSlice]
"""The slices that a piece reads, by the names that its work expects."""


def leaves_of(cut: Cut, tensors: Tensors) -> Tensors:
    """Returns the tensors that a piece reads."""
    return {name: tuple(part.read(tensor) for tensor in tensors[part.source]) for name, part in cut.items()}


def recomputed(
    work: Work,
    cuts: Sequence[Cut],
    places: Sequence[Stretch],
    tensors: Tensors,
    random: bool,
    stored: Sequence[bool] = (),
) -> tuple[Tensor, ...]:
    """Returns the outputs of all pieces, each at its place in the last but one dimension.

    random: whether the work draws random numbers. stored: the pieces whose autograd graph is kept because it is small;
    none by default. A single piece is computed directly. Several pieces have no second derivatives.
    """
    if len(cuts) == 1 and places[0].times == 1:
        return work(0, leaves_of(cuts[0], tensors))
    apply: Callable[..., tuple[Tensor, ...]] = torch.compiler.disable(Pieces.apply)
    has_gradients = torch.is_grad_enabled()
    keeps_graph = [has_gradients and is_stored for is_stored in stored] or [False] * len(cuts)
    sizes = {name: len(group) for name, group in tensors.items()}
    return apply(
        work, cuts, places, random, keeps_graph, sizes, *(part for group in tensors.values() for part in group)
    )


def grouped(flat: Iterable[T], sizes: Mapping[str, int]) -> dict[str, tuple[T, ...]]:
    """Returns items in groups of the given sizes, by name."""
    remaining = iter(flat)
    return {name: tuple(islice(remaining, size)) for name, size in sizes.items()}


class Pieces(torch.autograd.Function):
    """Saves only the input tensors, and the graphs of the pieces in ``stored``. Every tensor that gradients flow
    through must be among the inputs, which are the groups of ``sizes`` one after another."""

    @staticmethod
    def forward(
        ctx: Any,
        work: Work,
        cuts: Sequence[Cut],
        places: Sequence[Stretch],
        random: bool,
        stored: Sequence[bool],
        sizes: Mapping[str, int],
        *flat: Tensor,
    ) -> tuple[Tensor, ...]:
        device, tensors = flat[0].device, grouped(flat, sizes)
        needs_gradient = grouped([tensor.requires_grad for tensor in flat], sizes)
        merged: tuple[Tensor, ...] = ()
        ctx.graphs, states = {}, []
        # Where later rows see more, the last piece reads the most. If it runs first, the others fit into the memory
        # that it leaves. In the opposite order each piece outgrows the memory of the one before it, and at length 8,192
        # the heap doubles.
        for number in reversed(range(len(cuts))):
            states.append(random_state(device) if random and not stored[number] else None)
            if stored[number]:
                ctx.graphs[number] = graph = graph_of(work, cuts, number, tensors, needs_gradient)
                outputs = tuple(output.detach() for output in graph.outputs)
            else:
                outputs = work(number, leaves_of(cuts[number], tensors))
            merged = merged or tuple(room_for(output, places, number) for output in outputs)
            for result, output in zip(merged, outputs, strict=True):
                places[number].seen_in(result).copy_(places[number].unfold(output))
        ctx.save_for_backward(*flat)
        ctx.work, ctx.cuts, ctx.places, ctx.states, ctx.sizes = work, cuts, places, states[::-1], sizes
        ctx.cast = autocast_of(device)
        return merged

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        flat: tuple[Tensor, ...] = ctx.saved_tensors
        device, needed = flat[0].device, ctx.needs_input_grad[6:]
        sums = [zeros_for(tensor) if is_needed else None for tensor, is_needed in zip(flat, needed, strict=True)]
        tensors, needs_gradient, totals = (grouped(part, ctx.sizes) for part in (flat, needed, sums))
        for number in reversed(range(len(ctx.cuts))):
            cut, stretch = ctx.cuts[number], ctx.places[number]
            graph = ctx.graphs.get(number)
            if graph is None:
                with ctx.cast(), drawn_again(ctx.states[number], device), values_unread():
                    graph = graph_of(ctx.work, ctx.cuts, number, tensors, needs_gradient)
            pieces_of_gradients = [stretch.fold(stretch.seen_in(gradient)) for gradient in gradients]
            add_gradients(graph, cut, pieces_of_gradients, totals, is_read_again=number in ctx.graphs)
        cast = (None if total is None else total.to(t.dtype) for total, t in zip(sums, flat, strict=True))
        return None, None, None, None, None, None, *cast


CarryingWork = Callable[[int, Tensors, Tensor], tuple[Tensor, Tensor]]
"""Computes the output of piece ``number`` and the tensor that it hands on, from the parts that it reads and the tensor
that the piece before it hands on."""


def carried(
    work: CarryingWork, cuts: Sequence[Cut], places: Sequence[Stretch], tensors: Tensors, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the outputs of all pieces, each at its place in the last but one dimension, and the tensor that the last
    one hands on.

    Pieces are computed one after another, the first of them from ``start``. Of each piece, only the tensor that it
    hands on is stored. A single piece is computed directly. Several pieces have no second derivatives.
    """
    if len(cuts) == 1:
        return work(0, leaves_of(cuts[0], tensors), start)
    apply: Callable[..., tuple[Tensor, Tensor]] = torch.compiler.disable(CarriedPieces.apply)
    sizes = {name: len(group) for name, group in tensors.items()}
    return apply(work, cuts, places, sizes, start, *(part for group in tensors.values() for part in group))


class CarriedPieces(torch.autograd.Function):
    """Saves the input tensors and the tensor that each piece hands on. Every tensor that gradients flow through must be
    among the inputs, which are ``start`` and the groups of ``sizes`` one after another."""

    @staticmethod
    def forward(
        ctx: Any,
        work: CarryingWork,
        cuts: Sequence[Cut],
        places: Sequence[Stretch],
        sizes: Mapping[str, int],
        start: Tensor,
        *flat: Tensor,
    ) -> tuple[Tensor, Tensor]:
        tensors, handed_on = grouped(flat, sizes), [start]
        for number, (cut, place) in enumerate(zip(cuts, places, strict=True)):
            output, last = work(number, leaves_of(cut, tensors), handed_on[-1])
            handed_on.append(last.clone())  # a view would keep alive all that it is a part of
            if number == 0:
                merged = room_for(output, places, number)
            place.seen_in(merged).copy_(output)
        ctx.save_for_backward(*handed_on[:-1], *flat)
        ctx.work, ctx.cuts, ctx.places, ctx.sizes = work, cuts, places, sizes
        ctx.cast = autocast_of(start.device)
        return merged, handed_on[-1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, handed_on_gradient: Tensor) -> tuple[Any, ...]:
        pieces = len(ctx.cuts)
        handed_on, flat = ctx.saved_tensors[:pieces], ctx.saved_tensors[pieces:]
        needed = ctx.needs_input_grad[5:]
        sums = [zeros_for(tensor) if is_needed else None for tensor, is_needed in zip(flat, needed, strict=True)]
        tensors, needs_gradient, totals = (grouped(part, ctx.sizes) for part in (flat, needed, sums))
        for number in reversed(range(pieces)):
            start = handed_on[number].detach().requires_grad_()

            def work(number: int, leaves: Tensors, start: Tensor = start) -> tuple[Tensor, ...]:
                outputs: tuple[Tensor, ...] = ctx.work(number, leaves, start)
                return outputs

            with ctx.cast():
                graph = graph_of(work, ctx.cuts, number, tensors, needs_gradient)
            gradients = [ctx.places[number].seen_in(gradient), handed_on_gradient]
            (handed_on_gradient,) = add_gradients(graph, ctx.cuts[number], gradients, totals, (start,))
        cast = (None if total is None else total.to(t.dtype) for total, t in zip(sums, flat, strict=True))
        return None, None, None, None, handed_on_gradient, *cast


class ValuesRead(threading.local):
    """Whether this thread reads the values of the products that end a piece, or their gradients alone."""

    here = True


VALUES_READ = ValuesRead()


@contextmanager
def values_unread() -> Iterator[None]:
    """A context in which ``product`` leaves its values out: a piece is computed again for its gradients alone."""
    before, VALUES_READ.here = VALUES_READ.here, False
    try:
        yield
    finally:
        VALUES_READ.here = before


def product(weights: Float[Tensor, "*b t s"], v: Float[Tensor, "*b s v"]) -> Float[Tensor, "*b t v"]:
    """Returns weights @ v, for a piece that returns this product, or its sum with terms that do not depend on the
    values of the product. Where a piece is computed again, these values are arbitrary, and only the gradients are
    right."""
    if VALUES_READ.here:
        return weights @ v
    unread: Callable[..., Tensor] = Unread.apply
    return unread(weights, v)


class Unread(torch.autograd.Function):
    """A product of matrices without its values."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(weights, v)
        return v.new_zeros(()).expand(*weights.shape[:-1], v.size(-1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, v = ctx.saved_tensors
        of_weights = gradient @ v.mT if ctx.needs_input_grad[0] else None
        return of_weights, (gradient.mT @ weights).mT if ctx.needs_input_grad[1] else None


class PieceGraph(NamedTuple):
    """The leaves and outputs of a piece, as its backward pass needs them."""

    leaves: Tensors
    outputs: tuple[Tensor, ...]


def graph_of(
    work: Work,
    cuts: Sequence[Cut],
    number: int,
    tensors: Tensors,
    needs_gradient: Mapping[str, tuple[bool, ...]],
) -> PieceGraph:
    """Computes the piece with gradients, on separate detached leaves."""
    leaves = {
        name: tuple(
            leaf.detach().requires_grad_(is_needed)
            for leaf, is_needed in zip(group, needs_gradient[cuts[number][name].source], strict=True)
        )
        for name, group in leaves_of(cuts[number], tensors).items()
    }
    with torch.enable_grad():
        return PieceGraph(leaves, work(number, leaves))


def add_gradients(
    graph: PieceGraph,
    cut: Cut,
    gradients: Sequence[Tensor],
    totals: Mapping[str, tuple[Tensor | None, ...]],
    others: tuple[Tensor, ...] = (),
    is_read_again: bool = False,
) -> tuple[Tensor, ...]:
    """Adds the gradients of the tensors that a piece read to ``totals``, which are None where no gradient is needed.
    Returns the gradients of ``others``."""
    learning = [
        (name, place, total)
        for name, part in cut.items()
        for place, total in enumerate(totals[part.source])
        if total is not None
    ]
    leaves = [graph.leaves[name][place] for name, place, _ in learning]
    computed = torch.autograd.grad(
        graph.outputs, [*leaves, *others], gradients, retain_graph=is_read_again, allow_unused=True
    )
    for (name, _, total), gradient in zip(learning, computed, strict=False):
        if gradient is not None:
            cut[name].add(total, gradient)
    return computed[len(learning) :]


def room_for(output: Tensor, places: Sequence[Stretch], number: int) -> Tensor:
    """Allocates one output of all pieces, shaped like that of piece ``number``, with heads last in memory."""
    length = sum(place.length * place.times for place in places)
    if output.dim() != 4:
        return output.new_empty(*output.shape[:-2], length, output.size(-1))
    rows, heads, _, width = output.shape
    return output.new_empty(rows // places[number].times, length, heads, width).transpose(1, 2)


RandomState = tuple[Tensor, Tensor | None]
"""The states of the random generators of the host and of the device."""


def random_state(device: torch.device) -> RandomState:
    """Returns the current states of the random generators."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def go_on_from(state: RandomState, device: torch.device) -> None:
    """Sets the random generators to the given states."""
    host_state, device_state = state
    torch.set_rng_state(host_state)
    if device_state is not None:
        torch.cuda.set_rng_state(device_state, device)


def drawn_again(state: RandomState | None, device: torch.device) -> Any:
    """Returns a context in which random numbers are drawn from ``state`` on; the caller's generators are untouched."""
    return nullcontext() if state is None else Replay(state, device)


class Replay:
    """``fork_rng`` that begins with a given state."""

    def __init__(self, state: RandomState, device: torch.device) -> None:
        self.state, self.device = state, device
        self.fork = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])

    def __enter__(self) -> None:
        self.fork.__enter__()
        go_on_from(self.state, self.device)

    def __exit__(self, *error: Any) -> None:
        self.fork.__exit__(*error)
