"""Which key a query may see, as pure functions of indices, and which blocks of queries and keys hold all that is seen.

Indices count keys: query i of a block that follows ``offset`` remembered keys has index offset + i. True means "may
attend". A pattern is called with the row of the batch, the head, the query and the key, as tensors that broadcast; the
same function serves as mask, as oracle and as FlexAttention's mask_mod. ``lit_transformers.executors`` runs patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

BLOCK = 256
"""Queries in a block. Within 10 % of the fastest of 64 to 1,024, at lengths 1,024 and 4,096 on one CPU core."""
NARROW = 128
"""Queries in a block of a band that ends on both sides, of which many are run as one: the same for all widths, so that
the cost of a window grows by equal steps with its width."""


class Block(NamedTuple):
    """Queries first:stop:step against keys start:end:step and those listed in ``further``, none of them twice.

    first and stop count queries, the others keys. ``further`` is (n,), or (b, h, n) where rows or heads differ; there
    -1 stands for none. whole: every query sees all of them.
    times: so many blocks in one, each ``stride`` queries and keys on from the one before; ``further`` is (b, h, c, n).
    """

    first: int
    stop: int
    start: int
    end: int
    step: int = 1
    further: Int[Tensor, " n"] | Int[Tensor, "b h *c n"] | None = None
    whole: bool = False
    times: int = 1
    stride: int = 0

    @property
    def queries(self) -> range:
        return range(self.first, self.stop, self.step)

    @property
    def keys(self) -> range:
        return range(self.start, self.end, self.step)

    def on(self, device: torch.device, rows: int, heads: int) -> Block:
        """The same, with what is listed on a device, for every row and head where it is not one list for all."""
        if self.further is None:
            return self
        further = self.further.to(device)
        alone = further.dim() == 1
        return self._replace(further=further if alone else further.expand(rows, heads, *further.shape[2:]))

    def follows(self, other: Block, stride: int) -> bool:
        """Whether it is another as it stands, moved on by ``stride``."""
        if (self.further is None) != (other.further is None):
            return False
        alike = len(self.queries) == len(other.queries) and len(self.keys) == len(other.keys) > 0
        alike = alike and self.step == other.step and self.whole == other.whole
        if self.further is not None and other.further is not None:
            alike = alike and self.whole and self.further.dim() == 3 and self.further.shape == other.further.shape
        return alike and self.first - other.first == self.start - other.start == stride

    def holds(self, keys: Int[Tensor, "*n"]) -> Bool[Tensor, "*n"]:
        """Which of the keys lie in start:end:step."""
        return (keys >= self.start) & (keys < self.end) & ((keys - self.start) % self.step == 0)


class Pattern(Protocol):
    """What a mixer says of who sees whom; executors ask nothing else."""

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor: ...

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[Block]:
        """Blocks of about ``size`` queries, with every key that one of them sees. Each query stands in one block."""
        ...


class Band(NamedTuple):
    """Keys from ``before`` steps back to ``after`` steps ahead of the query; None for no limit.

    A step wider than one is a dilation: only keys whose distance it divides are seen (arXiv:2004.05150, section 3.1,
    where a gap of d is written as dilation d and no gap as 1, in the appendix's tables as 0).
    """

    before: int | None
    after: int | None
    step: int = 1

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = torch.ones_like(i - j, dtype=torch.bool)
        if self.before is not None:
            seen = seen & (i - j <= self.before * self.step)
        if self.after is not None:
            seen = seen & (j - i <= self.after * self.step)
        return seen & ((i - j) % self.step == 0) if self.step > 1 else seen

    @property
    def sees_itself(self) -> bool:
        return (self.before is None or self.before >= 0) and (self.after is None or self.after >= 0)

    @property
    def ends(self) -> bool:
        """Whether a query sees no further than so many steps, back and ahead."""
        return self.before is not None and self.after is not None

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[Block]:
        """A dilated band is a plain one among the positions of each phase."""
        step = self.step
        for phase in range(min(step, queries)):
            for first in range(phase, queries, size * step):
                stop = min(first + size * step, queries)
                last = offset + first + (stop - 1 - first) // step * step
                start = (offset + first) % step
                if self.before is not None:
                    start = max(start, offset + first - self.before * step)
                end = keys if self.after is None else min(keys, last + self.after * step + 1)
                yield Block(first, stop, start, max(start, end), step)


class Local(NamedTuple):
    """Keys of the query's own block of ``size`` positions."""

    size: int
    causal: bool

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = i // self.size == j // self.size
        return seen & (j <= i) if self.causal else seen

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[Block]:
        for first, stop, start in aligned(self.size, queries, offset):
            yield Block(first, stop, start, min(start + self.size, offset + stop if self.causal else keys))


class Summaries(NamedTuple):
    """The last ``width`` positions of every block of ``size``, up to the query, and the query itself
    (A^(2) of the fixed pattern, arXiv:1904.10509, section 4.3); with ``local``, the query's own block too."""

    size: int
    width: int
    local: bool = False

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = (j % self.size >= self.size - self.width) | (i == j)
        if self.local:
            seen = seen | (i // self.size == j // self.size)
        return seen & (j <= i)

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[Block]:
        every = torch.arange(keys)
        summaries = every[every % self.size >= self.size - self.width]
        for first, stop, start in aligned(self.size, queries, offset):
            yield Block(first, stop, start, offset + stop, further=summaries[summaries < start])


class Marked(NamedTuple):
    """A band, and marked keys that are seen from everywhere, though not by earlier queries where ``causal``.

    marks (b, s); arXiv:2004.05150, section 3.1, "global attention", its columns. ``Rows`` is the other half.
    """

    band: Band
    marks: Bool[Tensor, "b s"]
    causal: bool

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        marked = self.marks[b, j]
        return self.band(b, h, i, j) | (marked & (j <= i) if self.causal else marked)

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[Block]:
        columns = self.marks.any(dim=0).nonzero().squeeze(1)
        for block in self.band.blocks(queries, keys, offset, size):
            seen = columns[columns < offset + block.stop] if self.causal else columns
            yield block._replace(further=seen[~block.holds(seen)])


class Rows(NamedTuple):
    """Queries listed in ascending order, each of which sees everything, or everything up to itself."""

    queries: Sequence[int]
    causal: bool

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return j <= i if self.causal else torch.ones_like(i - j, dtype=torch.bool)

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[Block]:
        """A block for each run of neighbours; queries that are not listed stand in none."""
        first = 0
        for place, query in enumerate(self.queries, start=1):
            after = self.queries[place] if place < len(self.queries) else None
            if after != query + 1 or place - first == size:
                start = self.queries[first]
                yield Block(start, query + 1, 0, offset + query + 1 if self.causal else keys)
                first = place


class Without(NamedTuple):
    """What a pattern sees and none of the others does, so that a union of patterns counts no key twice."""

    pattern: Band
    others: tuple[Band, ...]

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = self.pattern(b, h, i, j)
        for other in self.others:
            seen = seen & ~other(b, h, i, j)
        return seen

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[Block]:
        return self.pattern.blocks(queries, keys, offset, size)


class Graph(NamedTuple):
    """Blocks of keys that blocks of queries see, one graph for each row and head, or for all of them.

    edges (b, h, n, n), or 1 for b or h: True where a block of queries (row) sees a block of keys (column).
    planned: its blocks, where they have been found before.
    """

    edges: Bool[Tensor, "b h n n"]
    size: int
    planned: tuple[Block, ...] = ()

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        rows, heads = self.edges.shape[:2]
        return self.edges[b if rows > 1 else 0, h if heads > 1 else 0, i // self.size, j // self.size]

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[Block]:
        """The band that all rows and heads share stands in the range of keys; what differs is listed."""
        if self.planned:
            yield from self.planned
            return
        inside = torch.arange(self.size, device=self.edges.device)
        shared = self.edges.all(dim=1).all(dim=0).tolist()
        for number in range(-(-queries // self.size)):
            first, stop = number * self.size, min((number + 1) * self.size, queries)
            edges = self.edges[:, :, number]
            low, high = common_run(shared[number], number)
            start, end = low * self.size, min(high * self.size, keys)
            others = edges.clone()
            others[..., low:high] = False
            most = int(others.sum(-1).max())
            if most == 0:
                yield Block(first, stop, start, end, whole=True)
                continue
            order = others.int().argsort(dim=-1, descending=True, stable=True)[..., :most]
            listed = (order[..., None] * self.size + inside).masked_fill(~others.gather(-1, order)[..., None], -1)
            listed = listed.masked_fill(listed >= keys, -1).flatten(2)
            yield Block(first, stop, start, end, further=listed, whole=True)


def common_run(shared: Sequence[bool], home: int) -> tuple[int, int]:
    """The longest run of blocks around ``home`` that all share; an empty one where home itself is not shared."""
    low = high = home
    while high < len(shared) and shared[high]:
        high += 1
    while high > home and low > 0 and shared[low - 1]:
        low -= 1
    return low, high


def aligned(size: int, queries: int, offset: int) -> Iterator[tuple[int, int, int]]:
    """Runs of queries that lie within one block of ``size`` positions: first, stop, and the block's first key."""
    first = 0
    while first < queries:
        start = (offset + first) // size * size
        stop = min(queries, start + size - offset)
        yield first, stop, start
        first = stop


def stacked(blocks: Iterable[Block], most: Callable[[Block], int]) -> Iterator[Block]:
    """Neighbours that are moved copies of each other as one, at most so many as ``most`` says of the first."""
    run: list[Block] = []
    for block in blocks:
        stride = block.first - run[-1].first if run else 0
        steady = len(run) < 2 or stride == run[1].first - run[0].first
        if run and stride > 0 and steady and len(run) < most(run[0]) and block.follows(run[-1], stride):
            run.append(block)
            continue
        if run:
            yield as_one(run)
        run = [block]
    if run:
        yield as_one(run)


def as_one(run: Sequence[Block]) -> Block:
    """Blocks that follow each other in equal strides."""
    if len(run) == 1:
        return run[0]
    lists = [block.further for block in run if block.further is not None]
    further = torch.stack(lists, dim=2) if lists else None
    return run[0]._replace(further=further, times=len(run), stride=run[1].first - run[0].first)


def visible(
    pattern: Pattern,
    i: Int[Tensor, "*#b t 1"],
    j: Int[Tensor, "*#b s"],
    seen: Bool[Tensor, "b s"] | None,
    rows: int,
    heads: int,
    times: int = 1,
) -> Bool[Tensor, "*b t s"]:
    """The mask of queries i and keys j, of which those exist that ``seen`` says; ``times``: blocks of each row. A query
    that is padding sees itself where its pattern lets it, so that its softmax is a number."""
    b = torch.arange(rows, device=i.device).repeat_interleave(times)[:, None, None, None]
    h = torch.arange(heads, device=i.device)[None, :, None, None]
    mask = pattern(b, h, i, j)
    return mask if seen is None else mask & (seen[b, j] | (i == j))
