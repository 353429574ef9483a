"""Which key a query may see, as pure functions of indices, and which blocks of queries and keys hold all that is seen.

Indices count keys: query i of a block that follows ``offset`` remembered keys has index offset + i. True means "may
attend". A pattern is called with the row of the batch, the head, the query and the key, as tensors that broadcast; the
same function serves as mask, as oracle and as FlexAttention's mask_mod. ``lit_transformers.executors`` runs patterns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Int
from torch import Tensor

BLOCK = 256
"""Queries in a block. Within 10 % of the fastest of 64 to 1,024, at lengths 1,024 and 4,096 on one CPU core."""


class Block(NamedTuple):
    """Queries first:stop:step against keys start:end:step and those listed in ``further``, none of them twice.

    first and stop count queries, the others keys. ``further`` is (n,), or (b, h, n) where rows or heads differ; there
    -1 stands for none.
    """

    first: int
    stop: int
    start: int
    end: int
    step: int = 1
    further: Int[Tensor, " n"] | Int[Tensor, "b h n"] | None = None

    @property
    def queries(self) -> range:
        return range(self.first, self.stop, self.step)

    @property
    def keys(self) -> range:
        return range(self.start, self.end, self.step)

    def on(self, device: torch.device) -> Block:
        """The same, with what is listed on a device."""
        return self if self.further is None else self._replace(further=self.further.to(device))

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
    """

    edges: Bool[Tensor, "b h n n"]
    size: int

    def __call__(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        rows, heads = self.edges.shape[:2]
        return self.edges[b if rows > 1 else 0, h if heads > 1 else 0, i // self.size, j // self.size]

    def blocks(self, queries: int, keys: int, offset: int, size: int) -> Iterator[Block]:
        """The band that all rows and heads share stands in the range of keys; what differs is listed."""
        inside = torch.arange(self.size, device=self.edges.device)
        for number in range(self.edges.size(2)):
            first, stop = number * self.size, min((number + 1) * self.size, queries)
            if first >= queries:
                return
            edges = self.edges[:, :, number]
            low, high = common_run(edges.all(dim=(0, 1)).tolist(), number)
            others = edges.clone()
            others[..., low:high] = False
            most = int(others.sum(-1).max())
            start, end = low * self.size, min(high * self.size, keys)
            if most == 0:
                yield Block(first, stop, start, end)
                continue
            order = others.int().argsort(dim=-1, descending=True, stable=True)[..., :most]
            listed = (order[..., None] * self.size + inside).masked_fill(~others.gather(-1, order)[..., None], -1)
            yield Block(first, stop, start, end, further=listed.masked_fill(listed >= keys, -1).flatten(2))


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


def visible(
    pattern: Pattern,
    i: Int[Tensor, "t 1"],
    j: Int[Tensor, "*#b s"],
    seen: Bool[Tensor, "b s"] | None,
    rows: int,
    heads: int,
) -> Bool[Tensor, "*b t s"]:
    """The mask of queries i and keys j, of which those exist that ``seen`` says. A query that is padding sees itself
    where its pattern lets it, so that its softmax is a number."""
    b = torch.arange(rows, device=i.device)[:, None, None, None]
    h = torch.arange(heads, device=i.device)[None, :, None, None]
    mask = pattern(b, h, i, j)
    return mask if seen is None else mask & (seen[b, j] | (i == j))
