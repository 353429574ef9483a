"""Attention patterns: which keys a query may see, as pure functions of indices, and the blocks that cover these pairs.

Indices count keys: query i of a block that follows ``offset`` remembered keys has index offset + i. True means "may
attend". ``sees`` takes the row of the batch, the head, the query and the key, as tensors that broadcast; the
same function serves as mask, as oracle and as FlexAttention's mask_mod. ``executors.py`` runs patterns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.host import HOST, sent
from lit_transformers.named_tuples import with_fields

BLOCK = 256
"""Queries in a block. This is within 10 % of the fastest of 64 to 1,024, at lengths 1,024 and 4,096 on one CPU core."""
NARROW = 128
"""Queries in a block of a band that ends on both sides, of which many are run as one: the same for all widths, so that
the cost of a window grows by equal steps with its width."""
TILE = 128
"""Queries, and keys, in a block of FlexAttention."""


class QueryBlock(NamedTuple):
    """Queries first:stop:step against keys start:end:step and those listed in ``further``, none of them twice.

    first and stop count queries, the others keys. ``further`` is (n,), or (b, h, n) where rows or heads differ, with
    -1 for no key. gaps: whether it may hold -1. whole: every query sees all keys.
    times: the number of blocks that are combined in this one, each ``stride`` queries and keys after the one before;
    ``further`` is then (b, h, c, n).
    """

    first: int
    stop: int
    start: int
    end: int
    step: int = 1
    further: Int[Tensor, " n"] | Int[Tensor, "b h *c n"] | None = None
    gaps: bool = True
    whole: bool = False
    times: int = 1
    stride: int = 0

    @property
    def queries(self) -> range:
        return range(self.first, self.stop, self.step)

    @property
    def keys(self) -> range:
        return range(self.start, self.end, self.step)

    def on(self, device: torch.device, rows: int, heads: int) -> QueryBlock:
        """Returns the block with ``further`` on a device, expanded to rows and heads unless it is one list for all."""
        if self.further is None:
            return self
        further = sent(self.further, device)
        is_shared = further.dim() == 1
        return with_fields(self, further=further if is_shared else further.expand(rows, heads, *further.shape[2:]))

    def follows(self, other: QueryBlock, stride: int) -> bool:
        """Whether this block is a copy of ``other`` that is moved on by ``stride``."""
        if (self.further is None) != (other.further is None):
            return False
        is_moved_copy = len(self.queries) == len(other.queries) and len(self.keys) == len(other.keys) > 0
        is_moved_copy = is_moved_copy and self.step == other.step and self.whole == other.whole
        if self.further is not None and other.further is not None:
            is_moved_copy = (
                is_moved_copy and self.whole and self.further.dim() == 3 and self.further.shape == other.further.shape
            )
        return is_moved_copy and self.first - other.first == self.start - other.start == stride

    def holds(self, keys: Int[Tensor, "*n"]) -> Bool[Tensor, "*n"]:
        """Returns a mask of the keys that lie in start:end:step."""
        return (keys >= self.start) & (keys < self.end) & ((keys - self.start) % self.step == 0)


class Tiling(NamedTuple):
    """Queries and keys in blocks of ``TILE``, as FlexAttention reads them.

    offset                         the index of the first query among the keys
    queries, keys                  how many exist
    padded_queries, padded_keys    how many there are with padding after them, multiples of ``TILE``
    """

    offset: int
    queries: int
    keys: int
    padded_queries: int
    padded_keys: int
    device: torch.device

    def query_tiles(self) -> Int[Tensor, "m 1"]:
        """Returns the index, counted in keys, of the first query of each block."""
        return self.offset + torch.arange(0, self.padded_queries, TILE, device=self.device)[:, None]

    def key_tiles(self) -> Int[Tensor, " n"]:
        """Returns the index of the first key of each block."""
        return torch.arange(0, self.padded_keys, TILE, device=self.device)

    def shows_padding(self, pattern: Pattern) -> bool:
        """Whether a query that exists might see a key that does not, in a pattern that extends to it."""
        is_last = pattern.past_only and self.offset + self.queries <= self.keys
        return self.padded_keys > self.keys and not is_last


class Outline(NamedTuple):
    """Blocks of queries and keys, for each row and head or for all: ``seen`` is True where a query may see a key,
    ``whole`` where every query sees every key."""

    seen: Bool[Tensor, "#b #h m n"]
    whole: Bool[Tensor, "#b #h m n"]


class Pattern(ABC):
    """The interface between mixers and executors: which query sees which key, and which properties an executor may rely
    on.

    Each property is False, or None, unless a pattern sets it: an executor then handles the general case.

    complete         every query is in one of the blocks
    static           a function of indices alone, which does not depend on the values of tensors
    shift_invariant  blocks of equal shape, each moved on by the same number of queries and keys, have equal masks
    """

    complete: ClassVar[bool] = False
    static: ClassVar[bool] = False
    shift_invariant: ClassVar[bool] = False

    @abstractmethod
    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Returns whether queries i of rows b and heads h see keys j, as tensors that broadcast."""

    @abstractmethod
    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
        """Yields blocks of about ``size`` queries, with every key that one of them sees. No query is in two blocks."""

    def needed(self, length: int) -> int:
        """Hook: the most keys among the first ``length`` that later queries see, after any of them, at least one of
        these queries each. All by default."""
        return length

    def after_memory(self, remembered: int) -> Pattern:
        """Hook: returns the pattern of these queries with ``remembered`` more keys in front, all of which they see.
        Raises ValueError where a pattern allows no such keys, which is the default."""
        if remembered:
            raise ValueError(f"a pattern of {type(self).__name__} sees no memory")
        return self

    @property
    def full(self) -> bool:
        """Hook: whether every query sees every key."""
        return False

    @property
    def triangular(self) -> bool:
        """Hook: whether every query sees its own key and all before it, and no other."""
        return False

    @property
    def sees_itself(self) -> bool:
        """Hook: whether every query sees its own key, so that none sees nothing."""
        return False

    @property
    def past_only(self) -> bool:
        """Hook: whether no query sees a later key."""
        return False

    @property
    def of_rows(self) -> bool:
        """Hook: whether rows of the batch see different keys."""
        return False

    @property
    def of_heads(self) -> bool:
        """Hook: whether heads see different keys."""
        return False

    @property
    def grain(self) -> int:
        """Hook: the length of runs of positions, from the first key on, that see and are seen alike."""
        return 1

    def extended(self, rows: int, length: int) -> Pattern | None:
        """Hook: returns the pattern with its tensors padded to more rows and keys, so that it may be evaluated
        there; None where it cannot be, which is the default of patterns that are not static. Keys that exist are seen
        by the same queries as before."""
        return self if self.static else None

    def outline(self, tiling: Tiling, static: Callable[[Pattern], Outline]) -> Outline | None:
        """Hook: returns the blocks that may be seen, and whole ones, of an extended pattern that knows them without
        evaluating every pair; None, the default, of others. ``static`` returns those of a static pattern. Blocks of
        padding alone may be among them."""
        return None

    @property
    def narrow(self) -> bool:
        """Hook: whether blocks should be short, because a block's keys are many more than those that a query sees."""
        return False

    def first_hidden(self, block: QueryBlock, offset: int) -> int | None:
        """Hook: returns how many of a block's keys, from the first on, every query of it sees; None where unknown."""
        return None


@final
@dataclass(frozen=True)
class Band(Pattern):
    """Keys from ``before`` steps back to ``after`` steps ahead of the query; None for no limit.

    A step wider than one is a dilation: only keys whose distance it divides are seen (arXiv:2004.05150, section 3.1,
    where a gap of d is written as dilation d and no gap as 1, in the appendix's tables as 0).
    """

    complete = static = shift_invariant = True

    before: int | None
    after: int | None
    step: int = 1

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = torch.ones_like(i - j, dtype=torch.bool)
        if self.before is not None:
            allowed = allowed & (i - j <= self.before * self.step)
        if self.after is not None:
            allowed = allowed & (j - i <= self.after * self.step)
        return allowed & ((i - j) % self.step == 0) if self.step > 1 else allowed

    @property
    def full(self) -> bool:
        return (self.before, self.after, self.step) == (None, None, 1)

    @property
    def triangular(self) -> bool:
        return (self.before, self.after, self.step) == (None, 0, 1)

    @property
    def sees_itself(self) -> bool:
        return (self.before is None or self.before >= 0) and (self.after is None or self.after >= 0)

    @property
    def past_only(self) -> bool:
        return self.after is not None and self.after <= 0

    def outline(self, tiling: Tiling, static: Callable[[Pattern], Outline]) -> Outline | None:
        if self.step > 1:
            return None
        i, j = tiling.query_tiles(), tiling.key_tiles()
        last_query, last_key = tiling.offset + tiling.queries - 1, tiling.keys - 1
        least = i - (j + TILE - 1).clamp(max=last_key)  # of the distances between the queries and keys of a block
        most = (i + TILE - 1).clamp(max=last_query) - j
        seen = whole = torch.ones_like(least, dtype=torch.bool)
        if self.before is not None:
            seen, whole = seen & (least <= self.before), whole & (most <= self.before)
        if self.after is not None:
            seen, whole = seen & (most >= -self.after), whole & (least >= -self.after)
        return Outline(seen[None, None], whole[None, None])

    @property
    def narrow(self) -> bool:
        return self.before is not None and self.after is not None

    def first_hidden(self, block: QueryBlock, offset: int) -> int | None:
        if self.before is not None or self.step != block.step:
            return None
        if self.after is None:
            return len(block.keys)
        first = offset + block.first + (self.after + 1) * self.step
        return min(len(block.keys), max(0, -(-(first - block.start) // block.step)))

    def needed(self, length: int) -> int:
        return length if self.before is None else min(length, self.before * self.step)

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
        """Yields the blocks phase by phase: a dilated band is a plain band among the positions of one phase."""
        step = self.step
        for phase in range(min(step, queries)):
            for first in range(phase, queries, size * step):
                stop = min(first + size * step, queries)
                last = offset + first + (stop - 1 - first) // step * step
                start = (offset + first) % step
                if self.before is not None:
                    start = max(start, offset + first - self.before * step)
                end = keys if self.after is None else min(keys, last + self.after * step + 1)
                yield QueryBlock(first, stop, start, max(start, end), step)


@final
@dataclass(frozen=True)
class Local(Pattern):
    """Keys of the query's own block of ``size`` positions."""

    complete = static = shift_invariant = True

    size: int
    causal: bool

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = i // self.size == j // self.size
        return allowed & (j <= i) if self.causal else allowed

    @property
    def past_only(self) -> bool:
        return self.causal

    def needed(self, length: int) -> int:
        return min(length, self.size - 1)

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
        for first, stop, start in aligned(self.size, queries, offset):
            yield QueryBlock(first, stop, start, min(start + self.size, offset + stop if self.causal else keys))


@final
@dataclass(frozen=True)
class Summaries(Pattern):
    """The last ``width`` positions of every block of ``size``, up to the query, and the query itself
    (A^(2) of the fixed pattern, arXiv:1904.10509, section 4.3); with ``local``, the query's own block too."""

    complete = static = True

    size: int
    width: int
    local: bool = False

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = (j % self.size >= self.size - self.width) | (i == j)
        if self.local:
            allowed = allowed | (i // self.size == j // self.size)
        return allowed & (j <= i)

    @property
    def past_only(self) -> bool:
        return True

    def needed(self, length: int) -> int:
        return max(self._needed_after(count) for count in range(max(0, length - self.size), length + 1))

    def _needed_after(self, count: int) -> int:
        """Returns how many of the first ``count`` keys later queries see."""
        blocks, inside = divmod(count, self.size)
        plain = self.size - self.width
        return blocks * self.width + (inside if self.local else max(0, inside - plain))

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
        starts, places = (torch.arange(n, device=HOST) for n in (keys // self.size, self.width))
        summaries = (starts[:, None] * self.size + self.size - self.width + places).flatten()
        for first, stop, start in aligned(self.size, queries, offset):
            further = summaries[: start // self.size * self.width]
            yield QueryBlock(first, stop, start, offset + stop, further=further)


@final
@dataclass(frozen=True)
class Marked(Pattern):
    """A band, and marked keys that are seen from everywhere, though not by earlier queries where ``causal``.

    marks (b, s); arXiv:2004.05150, section 3.1, "global attention", its columns. ``GlobalQueries`` is the other half.
    columns: the keys that are marked in any row, in ascending order; None: ``blocks`` reads them from ``marks``, for
    which the host waits.
    """

    complete = True

    band: Band
    marks: Bool[Tensor, "b s"]
    causal: bool
    columns: tuple[int, ...] | None = None

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        marked = self.marks[b, j]
        return self.band.sees(b, h, i, j) | (marked & (j <= i) if self.causal else marked)

    @property
    def past_only(self) -> bool:
        return self.causal and self.band.past_only

    @property
    def of_rows(self) -> bool:
        return True

    def extended(self, rows: int, length: int) -> Marked:
        missing_rows, missing_keys = rows - self.marks.size(0), length - self.marks.size(1)
        return Marked(self.band, F.pad(self.marks, (0, missing_keys, 0, missing_rows)), self.causal)

    def outline(self, tiling: Tiling, static: Callable[[Pattern], Outline]) -> Outline:
        band, marked = static(self.band), self.marks[:, : tiling.padded_keys].unflatten(1, (-1, TILE)).any(-1)
        columns = marked[:, None, None]
        if self.causal:
            columns = columns & (tiling.key_tiles() < tiling.query_tiles() + TILE)
        seen = band.seen | columns
        return Outline(seen, band.whole.expand_as(seen))

    @property
    def narrow(self) -> bool:
        return self.band.narrow

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
        listed = marked_columns(self.marks) if self.columns is None else self.columns
        columns = torch.tensor(listed, dtype=torch.long, device=HOST)
        for block in self.band.blocks(queries, keys, offset, size):
            allowed = columns[columns < offset + block.stop] if self.causal else columns
            yield with_fields(block, further=allowed[~block.holds(allowed)])


@final
@dataclass(frozen=True)
class Ordered(Pattern):
    """Keys that precede the query in an order of its row (the factorisation order of arXiv:1906.08237, section 2.2),
    and, with ``itself``, the keys at its own place.

    places (b, t): the place of each token in the order of its row, from 0. Tokens at one place see each other if
    ``itself`` is True. Remembered keys come before all of them.
    """

    complete = True

    places: Int[Tensor, "b t"]
    itself: bool

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if self.itself:
            return self.places[b, j] <= self.places[b, i]
        return self.places[b, j] < self.places[b, i]

    def after_memory(self, remembered: int) -> Ordered:
        return Ordered(F.pad(self.places, (remembered, 0), value=-1), self.itself) if remembered else self

    @property
    def sees_itself(self) -> bool:
        return self.itself

    @property
    def of_rows(self) -> bool:
        return True

    def extended(self, rows: int, length: int) -> Ordered:
        missing_rows, missing_keys = rows - self.places.size(0), length - self.places.size(1)
        last = torch.iinfo(self.places.dtype).max
        return Ordered(F.pad(self.places, (0, missing_keys, 0, missing_rows), value=last), self.itself)

    def outline(self, tiling: Tiling, static: Callable[[Pattern], Outline]) -> Outline:
        queries = self.places[:, tiling.offset : tiling.offset + tiling.padded_queries].unflatten(1, (-1, TILE))
        keys = self.places[:, : tiling.padded_keys].unflatten(1, (-1, TILE))
        precedes = torch.le if self.itself else torch.lt
        least, most = (part[:, None, None] for part in keys.aminmax(dim=-1))
        first, last = (part[:, None, :, None] for part in queries.aminmax(dim=-1))
        return Outline(precedes(least, last), precedes(most, first))

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
        for first in range(0, queries, size):
            yield QueryBlock(first, min(first + size, queries), 0, keys)


@final
@dataclass(frozen=True)
class GlobalQueries(Pattern):
    """Queries listed in ascending order, each of which sees everything, or everything up to itself."""

    static = True

    queries: Sequence[int]
    causal: bool

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i if self.causal else torch.ones_like(i - j, dtype=torch.bool)

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
        """Yields a block for each run of neighbouring listed queries; queries that are not listed are in no block."""
        first = 0
        for place, query in enumerate(self.queries, start=1):
            after = self.queries[place] if place < len(self.queries) else None
            if after != query + 1 or place - first == size:
                start = self.queries[first]
                yield QueryBlock(start, query + 1, 0, offset + query + 1 if self.causal else keys)
                first = place


@final
@dataclass(frozen=True)
class Without(Pattern):
    """The pairs that a pattern sees and none of the others does, so that a union of patterns counts no key twice."""

    complete = static = shift_invariant = True

    pattern: Band
    others: tuple[Band, ...]

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = self.pattern.sees(b, h, i, j)
        for other in self.others:
            allowed = allowed & ~other.sees(b, h, i, j)
        return allowed

    @property
    def past_only(self) -> bool:
        return self.pattern.past_only

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
        return self.pattern.blocks(queries, keys, offset, size)


@final
@dataclass(frozen=True)
class Graph(Pattern):
    """A graph of which blocks of queries see which blocks of keys, one for each row and head, or one for all.

    edges (b, h, n, n), or 1 for b or h: True where a block of queries (row) sees a block of keys (column).
    planned: the blocks of the graph, where they have been computed before.
    """

    complete = True

    edges: Bool[Tensor, "b h n n"]
    size: int
    planned: tuple[QueryBlock, ...] = ()

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        rows, heads = self.edges.shape[:2]
        return self.edges[b if rows > 1 else 0, h if heads > 1 else 0, i // self.size, j // self.size]

    @property
    def of_rows(self) -> bool:
        return self.edges.size(0) > 1

    @property
    def of_heads(self) -> bool:
        return self.edges.size(1) > 1

    @property
    def grain(self) -> int:
        return self.size

    def extended(self, rows: int, length: int) -> Graph:
        missing_rows = rows - self.edges.size(0) if self.of_rows else 0
        missing_blocks = -(-length // self.size) - self.edges.size(-1)
        return Graph(F.pad(self.edges, (0, missing_blocks, 0, missing_blocks, 0, 0, 0, missing_rows)), self.size)

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[QueryBlock]:
        """Yields blocks whose range of keys is the band that all rows and heads share; the other keys are listed."""
        if self.planned:
            yield from self.planned
            return
        near = common_runs(self.edges.all(dim=1).all(dim=0))
        others = self.edges & ~near
        inside = torch.arange(self.size, device=others.device)
        for number, run in zip(
            range(-(-queries // self.size)), runs_read(near, others, keys // self.size), strict=False
        ):
            first, stop = number * self.size, min((number + 1) * self.size, queries)
            block = QueryBlock(first, stop, run.low * self.size, min(run.high * self.size, keys), whole=True)
            if run.most == 0:
                yield block
                continue
            further = others[:, :, number]
            order = further.int().argsort(dim=-1, descending=True, stable=True)[..., : run.most]
            listed = (order[..., None] * self.size + inside).masked_fill(~further.gather(-1, order)[..., None], -1)
            listed = listed.masked_fill(listed >= keys, -1).flatten(2)
            yield with_fields(block, further=listed, gaps=run.gaps)


def marked_columns(marks: Bool[Tensor, "b s"]) -> tuple[int, ...]:
    """Returns the keys that are marked in any row, in ascending order. The host waits once for a device."""
    return tuple(marks.any(dim=0).to(HOST).nonzero().flatten().tolist())


def common_runs(shared: Bool[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """Returns for each block of queries (row) the longest run of shared blocks of keys around its own, True within the
    run; empty where its own is not shared."""
    gaps = (~shared).cumsum(dim=1)
    return shared & shared.diagonal()[:, None] & (gaps == gaps.diagonal()[:, None])


class BlockRun(NamedTuple):
    """The run ``low:high`` of blocks of keys that all rows and heads share, for one block of queries; the most blocks
    that are listed besides; and whether any row or head lists fewer, or a key that does not exist."""

    low: int
    high: int
    most: int
    gaps: bool


def runs_read(near: Bool[Tensor, "n n"], others: Bool[Tensor, "b h n n"], whole: int) -> list[BlockRun]:
    """Returns the run of each block of queries, given the blocks in it and those that are listed; ``whole``: how many
    blocks of keys are whole. The host waits once for a device."""
    low = torch.arange(len(near), device=near.device) - near.tril(-1).sum(dim=1)
    counts = others.sum(dim=-1).flatten(0, 1)
    gaps = (counts.amin(dim=0) < counts.amax(dim=0)) | others[..., whole:].flatten(0, 1).any(dim=-1).any(dim=0)
    columns = torch.stack([low, low + near.sum(dim=1), counts.amax(dim=0), gaps.long()], dim=1)
    return [BlockRun(low, high, most, bool(has_gaps)) for low, high, most, has_gaps in columns.tolist()]


def aligned(size: int, queries: int, offset: int) -> Iterator[tuple[int, int, int]]:
    """Yields runs of queries within one block of ``size`` positions: first, stop, and the block's first key."""
    first = 0
    while first < queries:
        start = (offset + first) // size * size
        stop = min(queries, start + size - offset)
        yield first, stop, start
        first = stop


def stacked(blocks: Iterable[QueryBlock], most: Callable[[QueryBlock], int]) -> Iterator[QueryBlock]:
    """Combines neighbouring blocks that are moved copies of each other, at most ``most`` of the first at a time."""
    run: list[QueryBlock] = []
    for block in blocks:
        stride = block.first - run[-1].first if run else 0
        is_even_stride = len(run) < 2 or stride == run[1].first - run[0].first
        if run and stride > 0 and is_even_stride and len(run) < most(run[0]) and block.follows(run[-1], stride):
            run.append(block)
            continue
        if run:
            yield as_one(run)
        run = [block]
    if run:
        yield as_one(run)


def as_one(run: Sequence[QueryBlock]) -> QueryBlock:
    """Combines blocks that follow each other in equal strides into one."""
    if len(run) == 1:
        return run[0]
    lists = [block.further for block in run if block.further is not None]
    further = torch.stack(lists, dim=2) if lists else None
    gaps = any(block.gaps for block in run)
    return with_fields(run[0], further=further, gaps=gaps, times=len(run), stride=run[1].first - run[0].first)


def visible(
    pattern: Pattern,
    i: Int[Tensor, "*#b t 1"],
    j: Int[Tensor, "*#b s"],
    key_mask: Bool[Tensor, "b s"] | None,
    rows: int,
    heads: int,
    times: int = 1,
) -> Bool[Tensor, "*b t s"]:
    """Returns the mask of queries i and keys j, True where a query attends; ``key_mask`` hides keys where it is False.

    times: blocks of each row. A query that is padding sees itself where its pattern allows it, so that its softmax is
    finite.
    """
    b = torch.arange(rows, device=i.device).repeat_interleave(times)[:, None, None, None]
    h = torch.arange(heads, device=i.device)[None, :, None, None]
    mask = pattern.sees(b, h, i, j)
    return mask if key_mask is None else mask & (key_mask[b, j] | (i == j))
