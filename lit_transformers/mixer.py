"""The contract of a mixer: whatever lets the positions of a sequence speak to each other.

State is a tree (dicts, tuples, lists, None) of tensors whose first dimension is the batch, and all zeros is the
empty state. So any task may detach it, empty a lane, reorder lanes by beam or save it, and knows nothing of its kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.config import Config, ConfigError, Positive
from lit_transformers.recompute import RandomState, go_on_from, random_state

Mode = Literal["causal", "bidirectional", "cross"]

Layered = Positive | tuple[Positive, ...]
"""The type of a field that holds one value for all layers, or one for each, or for each of equal runs of them."""


class Shape(NamedTuple):
    """What a part learns at build time: run-time values are never config fields.

    ``shared`` holds modules that several layers use as one (``u`` and ``v`` of Transformer-XL, say).
    """

    dim: int
    heads: int
    max_length: int
    layer: int = 0
    depth: int = 1
    shared: dict[str, nn.Module] | None = None

    def share(self, name: str, make: Callable[[], nn.Module]) -> nn.Module:
        """The module of that name, made by the first layer that asks."""
        if self.shared is None:
            return make()
        if name not in self.shared:
            self.shared[name] = make()
        return self.shared[name]


class Tape:
    """Choices that a second computation of the same pass must not make anew: the buckets of a hash, say.

    Random numbers that are drawn after a choice are the same too: the generators go on from where it left them.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, RandomState]] = []
        self.next: int | None = None

    def rewind(self) -> None:
        """From here on what was kept is given back, in order."""
        self.next = 0

    def take(self, choose: Callable[[], Tensor]) -> Tensor:
        if self.next is None:
            choice = choose()
            self.kept.append((choice, random_state(choice.device)))
            return choice
        choice, after = self.kept[self.next]
        self.next += 1
        go_on_from(after, choice.device)
        return choice


class Context(NamedTuple):
    """What every layer of one pass sees.

    positions   (b, t) position of each token of x in its document
    causal      no token sees a later one
    keep        (b, t) True at real tokens of x; None where all are
    source      (b, s, d) what a cross mixer reads, of each row or of as many equal runs of rows; None for self mixing
    source_keep (b, s) True at real tokens of the source; None where all are
    marked      (b, t) True at tokens that the data singles out, for patterns that see them from everywhere
    tape        what keeps choices for a pass that will be computed twice
    offset      (b,) what added positions count from, where two stacks must agree on it; None: each draws its own
    """

    positions: Int[Tensor, "b t"]
    causal: bool
    keep: Bool[Tensor, "b t"] | None = None
    source: Float[Tensor, "b s d"] | None = None
    source_keep: Bool[Tensor, "b s"] | None = None
    marked: Bool[Tensor, "b t"] | None = None
    tape: Tape | None = None
    offset: Int[Tensor, " b"] | None = None


class Mixed(NamedTuple):
    """``aux`` carries named losses; a task adds them to the training loss and never to a reported number."""

    y: Float[Tensor, "b t d"]
    state: Any = None
    aux: Mapping[str, Tensor] = {}


class OutputProjection(nn.Linear):
    """The last map of a sublayer, whose output is added to the residual sum: width to dim.

    A stack of ``depth`` layers adds at least twice as many of them, so each starts smaller the more there are.
    """

    def __init__(self, width: int, shape: Shape, bias: bool = True) -> None:
        super().__init__(width, shape.dim, bias=bias)
        self.sublayers = 2 * shape.depth


class MixerConfig(Config):
    """Base of every mixer's config; the table MIXERS lists the kinds."""

    def build(self, shape: Shape) -> Mixer:
        raise NotImplementedError


class Mixer(nn.Module, ABC):
    """Mixes a sequence along time. The class says which modes it promises, and in ``refusals`` why not the others."""

    causal: ClassVar[bool] = False
    bidirectional: ClassVar[bool] = False
    cross: ClassVar[bool] = False
    streams: ClassVar[bool] = False
    refusals: ClassVar[Mapping[Mode, str]] = {}

    @abstractmethod
    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> Mixed:
        """x (b, t, d) to y (b, t, d). ``state`` is what the previous segment returned, or None at the start."""

    @abstractmethod
    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        """Forward FLOPs of training, 2 for a multiply-add, for one sequence of ``queries`` tokens after ``remembered``
        ones. Evaluation spends less on memory, whose projections it keeps (``lit_transformers.mixers.memory``)."""

    def cross_flops(self, queries: int, source: int) -> int:
        """The same for ``queries`` tokens that read a source of so many. Of mixers that promise ``cross``."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Called after every update of the weights, for what must hold of them."""

    def require(self, mode: Mode) -> None:
        """Raises ConfigError, with the reason, where the mixer does not promise the mode."""
        if not getattr(self, mode):
            why = self.refusals.get(mode, "it makes no such promise")
            raise ConfigError(f"{type(self).__name__} cannot be {mode}: {why}", "mixer")


class LengthError(ValueError):
    """A sequence is longer than the weights of a mixer reach."""


def decide(ctx: Context, choose: Callable[[], Tensor]) -> Tensor:
    """A choice made once, however often the pass is computed."""
    return choose() if ctx.tape is None else ctx.tape.take(choose)


def at_layer(value: Layered, shape: Shape, place: str) -> int:
    """This layer's value of a field that has one for all layers, or one for each of as many equal runs of them: four
    values serve twelve layers three at a time."""
    if isinstance(value, int):
        return value
    if not value or shape.depth % len(value):
        raise ConfigError(f"{len(value)} values do not divide {shape.depth} layers into equal runs", place)
    return value[shape.layer * len(value) // shape.depth]


def full_precision(x: Tensor) -> Tensor:
    """x in float32, or as it is where it is finer: for sums and exponentials that half precision would spoil."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def map_state(change: Callable[[Tensor], Tensor], state: Any) -> Any:
    """The same tree with every tensor changed."""
    match state:
        case None:
            return None
        case Tensor():
            return change(state)
        case Mapping():
            return {name: map_state(change, part) for name, part in state.items()}
        case tuple() | list() if type(state) in (tuple, list):
            return type(state)(map_state(change, part) for part in state)
    raise TypeError(f"a state holds tensors in plain containers, not {type(state).__name__}")


def state_tensors(state: Any) -> Iterator[Tensor]:
    """Every tensor of a state, in order."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_state(keep, state)
    yield from found


def detach(state: Any) -> Any:
    """The state without its history of gradients."""
    return map_state(Tensor.detach, state)


def empty_rows(state: Any, rows: Bool[Tensor, " b"]) -> Any:
    """The state with the lanes of ``rows`` emptied."""
    return map_state(lambda part: part.masked_fill(rows.view(-1, *[1] * (part.dim() - 1)), 0), state)


def take_rows(state: Any, rows: Int[Tensor, " n"]) -> Any:
    """The state of the given lanes, in the given order: what beam search does."""
    return map_state(lambda part: part.index_select(0, rows), state)
