"""The interface of a mixer: any module that exchanges information between the positions of a sequence.

State is a tree (dicts, tuples, lists, None) of tensors whose first dimension is the batch, and all zeros is the
empty state. So a task can detach it, empty a lane, reorder lanes by beam or save it without knowing its structure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.attention.patterns import Pattern
from lit_transformers.attention.recompute import RandomState, go_on_from, random_state
from lit_transformers.config import Config, ConfigError, Positive
from lit_transformers.maps import LinearMap, MapRole
from lit_transformers.named_tuples import with_fields
from lit_transformers.row_groups import RowGroup

Mode = Literal["causal", "bidirectional", "permuted", "cross"]

Layered = Positive | tuple[Positive, ...]
"""The type of a field that holds one value for all layers, or one for each of equal runs of consecutive layers."""


class Shape(NamedTuple):
    """The sizes that a module is built with; values that are only known at run time are never config fields.

    ``shared`` holds modules that several layers share (``u`` and ``v`` of Transformer-XL, for example).
    """

    dim: int
    heads: int
    max_length: int
    layer: int = 0
    depth: int = 1
    shared: dict[str, nn.Module] | None = None

    def share(self, name: str, make: Callable[[], nn.Module]) -> nn.Module:
        """Returns the shared module of that name, which the first layer to request it creates with ``make``."""
        if self.shared is None:
            return make()
        if name not in self.shared:
            self.shared[name] = make()
        return self.shared[name]


class Tape:
    """Records choices (hash buckets, for example) that a second computation of the same pass must repeat.

    Random numbers drawn after a choice are repeated too: the generators are set to their state after it.
    """

    def __init__(self) -> None:
        self.choices: list[tuple[Tensor, RandomState]] = []
        self.next: int | None = None

    def rewind(self) -> None:
        """From here on ``take`` returns the recorded choices, in order."""
        self.next = 0

    def take(self, choose: Callable[[], Tensor]) -> Tensor:
        if self.next is None:
            choice = choose()
            self.choices.append((choice, random_state(choice.device)))
            return choice
        choice, generator_state = self.choices[self.next]
        self.next += 1
        go_on_from(generator_state, choice.device)
        return choice


class Context(NamedTuple):
    """The inputs that every layer of one pass receives in addition to x.

    positions            (b, t) position of each token of x in its document
    causal               no token sees a later one
    padding_mask         (b, t) True at real tokens of x, False at padding; None where all are real
    padding_last         padding stands at the end of every row
    unbroken             the number of latest tokens in the state that are known to be real, and of the sequence that x
                         continues, in every row. A plain number, so that the host does not wait for a device; the state
                         says which of the others are
    source               (b, s, d) the sequence that a cross mixer reads, one for each row or for each of equal runs of
                         rows; None for self mixing
    source_padding_mask  (b, s) True at real tokens of the source, False at padding; None where all are real
    marked               (b, t) True at tokens that the data singles out, for patterns that see them from everywhere
    tape                 records choices of a pass that will be computed twice
    offset               (b,) the first position, where two stacks must agree on it; None: each stack draws its own
    pattern              which token sees which, where the data say so; for layers that were built as "permuted"
    segments             (b, t) the number of each token's segment, from 0, for encodings that tell segments apart; None
                         where a row is one segment
    reused               how many of the tokens of x, from the first on, memory takes; None: all
    backward             x holds the tokens in reverse, so that distances have the other sign; for "permuted" layers
    start                the first position, where it is that of all rows and the positions after it follow one by one;
                         None where the host does not know it without waiting for a device
    last                 without a start, a position that no token is behind; None where the host does not know one
    groups               where rows are read without padding: x (1, n, d) holds the tokens of these groups of rows
    """

    positions: Int[Tensor, "b t"]
    causal: bool
    padding_mask: Bool[Tensor, "b t"] | None = None
    source: Float[Tensor, "b s d"] | None = None
    source_padding_mask: Bool[Tensor, "b s"] | None = None
    marked: Bool[Tensor, "b t"] | None = None
    tape: Tape | None = None
    offset: Int[Tensor, " b"] | None = None
    pattern: Pattern | None = None
    segments: Int[Tensor, "b t"] | None = None
    reused: int | None = None
    backward: bool = False
    start: int | None = None
    last: int | None = None
    padding_last: bool = False
    unbroken: int = 0
    groups: tuple[RowGroup, ...] = ()

    def of_group(self, group: RowGroup) -> Context:
        """Returns the context of the rows of one group."""
        marked, segments = (None if part is None else group.of(part) for part in (self.marked, self.segments))
        positions = group.of(self.positions)
        return with_fields(self, positions=positions, marked=marked, segments=segments, groups=())

    def of_first(self) -> Context:
        """Returns the context of the first token of each padded row."""
        masks = (self.padding_mask, self.marked, self.segments)
        padding_mask, marked, segments = (None if part is None else part[:, :1] for part in masks)
        positions = self.positions[:, :1]
        return with_fields(self, positions=positions, padding_mask=padding_mask, marked=marked, segments=segments)

    @property
    def last_position(self) -> int | None:
        """A position that no token of x is behind; None where the host does not know one without waiting for a
        device."""
        if self.start is None:
            return self.last
        longest = max(group.length for group in self.groups) if self.groups else self.positions.size(1)
        return self.start + longest - 1

    @property
    def key_mask(self) -> Bool[Tensor, "b t"] | None:
        """The mask of the tokens of x as keys of attention over x; None where no real token sees padding."""
        return None if self.causal and self.padding_last else self.padding_mask


class QueryStream(NamedTuple):
    """Queries of a second stream, which read the content of the first (arXiv:1906.08237, section 2.3).

    vectors   (b, m, d)
    at        (b, m) where each stands among the tokens of x, no two of a row at one; None: m = t, one at each
    pattern   which token a query at each position sees
    """

    vectors: Float[Tensor, "b m d"]
    at: Int[Tensor, "b m"] | None
    pattern: Pattern

    def spread(self, q: Float[Tensor, "b h m k"], length: int) -> Float[Tensor, "b h t k"]:
        """Returns vectors of heads at their positions among ``length`` tokens, with zeros elsewhere."""
        if self.at is None:
            return q
        empty = q.new_zeros(*q.shape[:2], length, q.size(-1))
        return empty.scatter(2, self.at[:, None, :, None].expand_as(q), q)

    def gathered(self, y: Float[Tensor, "b h t k"]) -> Float[Tensor, "b h m k"]:
        """Returns the values at the positions of the queries."""
        if self.at is None:
            return y
        return y.gather(2, self.at[:, None, :, None].expand(-1, y.size(1), -1, y.size(-1)))

    def context(self, ctx: Context) -> Context:
        """Returns the context of the queries by themselves, for sublayers that treat each position alone."""

        def chosen(part: Tensor | None) -> Tensor | None:
            return part if part is None or self.at is None else part.gather(1, self.at)

        positions, padding_mask, marked = (chosen(part) for part in (ctx.positions, ctx.padding_mask, ctx.marked))
        assert positions is not None
        return with_fields(
            ctx,
            positions=positions,
            padding_mask=padding_mask,
            marked=marked,
            segments=chosen(ctx.segments),
            start=None,
        )


class MixerOutput(NamedTuple):
    """``aux`` holds named losses, scalars; a task adds them to the training loss and never to a reported metric.
    ``observed`` holds the mixer's measurements of this pass, by name and without gradient, for the module that contains
    it. Nothing adds them to a loss."""

    y: Float[Tensor, "b t d"]
    state: Any = None
    aux: Mapping[str, Tensor] = {}
    observed: Mapping[str, Tensor] = {}


class OutputProjection(LinearMap):
    """The last map of a sublayer, whose output is added to the residual sum: width to dim.

    A stack of ``depth`` layers has at least twice as many of them; the more there are, the smaller each is initialised.
    """

    def __init__(self, width: int, shape: Shape, role: MapRole = "output", bias: bool = True) -> None:
        super().__init__(width, shape.dim, role, bias=bias)
        self.sublayers = 2 * shape.depth


class Promises(NamedTuple):
    """The uses that a mixer supports.

    modes            "causal": no position sees a later one; "bidirectional": each may see all others; "permuted": each
                     sees the positions that the pattern of the context allows, or all others without a pattern, and
                     queries of a second stream may read the same inputs; "cross": each reads another sequence
    streams          segments of a sequence, each read with the state that the one before it returned, give the outputs
                     of one pass while memory holds all earlier tokens
    constant_reach   every query sees the same number of earlier tokens, which is set by the memory: a longer memory
                     makes another mixer
    of_pass          the outputs of a row depend on the pass: on its random numbers, also outside of training, or on the
                     length of its padded rows
    refusals         for a mode that is not supported, the reason
    excluding        for a mode that one field excludes, the path of the field; its change restores the mode
    """

    modes: tuple[Mode, ...]
    streams: bool = False
    constant_reach: bool = False
    of_pass: bool = False
    refusals: Mapping[Mode, str] = {}
    excluding: Mapping[Mode, str] = {}

    def without(self, mode: Mode, reason: str, path: str) -> Promises:
        """Returns the promises without a mode, which the field at ``path`` excludes."""
        if mode not in self.modes:
            return self
        return with_fields(
            self,
            modes=tuple(other for other in self.modes if other != mode),
            refusals={**self.refusals, mode: reason},
            excluding={**self.excluding, mode: path},
        )


class MixerConfig(Config, ABC):
    """Base of every mixer's config; the table MIXERS lists the kinds."""

    @abstractmethod
    def build(self, shape: Shape) -> Mixer:
        """Builds the mixer of one layer."""

    @abstractmethod
    def promises(self) -> Promises:
        """Returns the uses that the mixer supports with the fields as they are."""

    @property
    def remembered(self) -> int:
        """Hook: how many tokens before a segment the keys of attention come from, at most. None by default."""
        return 0

    @property
    def mixer_name(self) -> str:
        """The name of the mixer in messages."""
        return type(self).__name__.removesuffix("Config")

    def require(self, mode: Mode) -> None:
        """Raises ConfigError, with the reason, where the mixer does not support the mode."""
        promises = self.promises()
        if mode not in promises.modes:
            reason = promises.refusals.get(mode, "it makes no such promise")
            raise ConfigError(f"{self.mixer_name} cannot be {mode}: {reason}", promises.excluding.get(mode, "mixer"))


class Mixer(nn.Module, ABC):
    """Mixes a sequence along time. Its config states the uses that it supports: ``MixerConfig.promises``."""

    @property
    def reads_groups(self) -> bool:
        """Hook: whether it reads groups of rows without padding (``Context.groups``) in one call. By default it is
        called for each group."""
        return False

    @property
    def crosses_itself(self) -> bool:
        """Hook: whether it computes the same for some tokens of rows that it reads in both directions if they are given
        alone, with the whole rows as their source. By default it does not."""
        return False

    @abstractmethod
    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        """x (b, t, d) to y (b, t, d). ``state`` comes from the previous segment; None at the start."""

    @abstractmethod
    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        """Forward FLOPs of training, 2 for a multiply-add, for one sequence of ``queries`` tokens after ``remembered``
        ones. Evaluation spends less on memory, whose projections it keeps (``lit_transformers.mixers.memory``)."""

    def decoding_state(self, length: int) -> int | None:
        """Hook: returns the most numbers that a causal mixer, which reads a sequence token by token, has to store of
        its first ``length`` tokens for later tokens. None, the default, where the mixer does not say."""
        return None

    def forward_with_queries(
        self, x: Float[Tensor, "b t d"], queries: QueryStream, ctx: Context, state: Any = None
    ) -> tuple[MixerOutput, Float[Tensor, "b m d"]]:
        """Hook: returns the output for x, and the output for a second stream of queries, which read the same keys and
        values through the same weights. Only mixers that support ``permuted`` have it."""
        raise NotImplementedError(f"{type(self).__name__} reads no second stream of queries")

    def query_flops(self, queries: int, length: int, remembered: int = 0) -> int:
        """Hook: returns the forward FLOPs that a second stream of n queries in a row of ``length`` tokens adds to
        ``flops``. Only mixers that support ``permuted`` have it."""
        raise NotImplementedError(f"{type(self).__name__} reads no second stream of queries")

    def cross_flops(self, queries: int, source: int) -> int:
        """Hook: forward FLOPs for ``queries`` tokens that read ``source`` tokens, of mixers that support ``cross``."""
        raise NotImplementedError

    def after_step(self) -> None:
        """Hook: called after every update of the weights, to enforce constraints on them."""


class LengthError(ValueError):
    """A sequence is longer than the weights of a mixer reach."""


def decide(ctx: Context, choose: Callable[[], Tensor]) -> Tensor:
    """Returns a choice that is made once, however often the pass is computed."""
    return choose() if ctx.tape is None else ctx.tape.take(choose)


def at_layer(value: Layered, shape: Shape, place: str) -> int:
    """Returns this layer's value of a field that has one for all layers, or one for each of equal runs of consecutive
    layers: each of four values applies to three of twelve layers. Raises ConfigError where runs cannot be equal."""
    if isinstance(value, int):
        return value
    if not value or shape.depth % len(value):
        raise ConfigError(f"{len(value)} values do not divide {shape.depth} layers into equal runs", place)
    return value[shape.layer * len(value) // shape.depth]


def in_cycle(every: int | None, shape: Shape) -> bool:
    """Whether this layer is the first of a run of ``every`` layers; False where ``every`` is None."""
    return every is not None and shape.layer % every == 0


def map_state(change: Callable[[Tensor], Tensor], state: Any) -> Any:
    """Returns the same tree with ``change`` applied to every tensor. Raises TypeError for other leaves."""
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
    """Yields every tensor of a state, in order."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    map_state(collect, state)
    yield from tensors


def detach(state: Any) -> Any:
    """Returns the state detached from the autograd graph."""
    return map_state(Tensor.detach, state)


def empty_rows(state: Any, rows: Bool[Tensor, " b"]) -> Any:
    """Returns the state with the lanes at which ``rows`` is True emptied."""
    return map_state(lambda part: part.masked_fill(rows.view(-1, *[1] * (part.dim() - 1)), 0), state)


def tokens_held(state: Any) -> int:
    """Returns how many tokens, at most, a state holds with a flag for each."""
    return max((part.size(1) for part in state_tensors(state) if part.dtype == torch.bool), default=0)


def take_rows(state: Any, rows: Int[Tensor, " n"]) -> Any:
    """Returns the state of the given lanes, in the given order, as beam search needs it."""
    return map_state(lambda part: part.index_select(0, rows), state)


def join_rows(states: Sequence[Any]) -> Any:
    """Returns the state of all lanes, of which ``states`` have a share each: lane n is in the share n mod their
    number."""
    shares = zip(*map(state_tensors, states), strict=True)
    return map_state(lambda _: torch.stack(next(shares), dim=1).flatten(0, 1), states[0])
