"""Which tokens of a bucket meet: the order of each round, cut into chunks (arXiv:2001.04451, section 2)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.encodings.relative import Relative

By = Literal["by_rank", "by_sort"]


class Chunks(NamedTuple):
    """Sorted tokens are cut into chunks; a query is given the keys of its own, of ``back`` before and ``ahead`` after.

    by_sort: it sees all of them, or, unless ``across`` buckets, those of its own bucket. Chunks move when a later token
    comes into a lower bucket, so whom a causal query sees would tell of the future.
    by_rank: it sees those of its own bucket that stand at most back x length before it there, and ahead x length after.
    Ranks within a bucket depend on earlier tokens alone.
    """

    length: int
    back: int
    ahead: int
    by: By = "by_rank"
    across: bool = False

    @property
    def width(self) -> int:
        """Keys given to a query."""
        return (self.back + 1 + self.ahead) * self.length

    @property
    def step(self) -> int:
        """What a chunk further away adds to the difference of two codes."""
        return self.length if self.by == "by_rank" else 1

    @property
    def middle(self) -> float:
        """A query sees a key where code(query) - code(key) is within ``reach`` of this."""
        return (self.back - self.ahead) * self.step / 2

    @property
    def reach(self) -> float:
        """See ``middle``."""
        return (self.back + self.ahead) * self.step / 2

    def codes(self, buckets: Int[Tensor, "*b t"], places: Int[Tensor, "*b t"]) -> Float[Tensor, "*b t"]:
        """Numbers whose differences say who sees whom: the place in the order, or its chunk, and between buckets a gap
        that no query sees across. Floats, for their comparison is fast; exact below 2^23."""
        units = places if self.by == "by_rank" else places // self.length
        gap = 0 if self.across else (self.back + self.ahead) * self.step + 1
        return (units + gap * buckets).float()


class Order(NamedTuple):
    """The tokens of every round, sorted by bucket and position.

    tokens (b, h, r, n): filled up with t to whole chunks, with ``back`` chunks more before and ``ahead`` after. codes
    (b, h, r, t + 1): the last of what fills; of keys infinite where there is none.
    """

    chunks: Chunks
    tokens: Int[Tensor, "b h r n"]
    codes: Float[Tensor, "b h r t+1"]
    key_codes: Float[Tensor, "b h r t+1"]

    @property
    def number(self) -> int:
        """Chunks in a round."""
        return self.tokens.size(-1) // self.chunks.length - self.chunks.back - self.chunks.ahead

    def queries(self, turn: int, first: int, stop: int) -> Int[Tensor, "b h c m"]:
        """The tokens of some chunks of a round."""
        length, back = self.chunks.length, self.chunks.back
        return self.tokens[:, :, turn, (back + first) * length : (back + stop) * length].unflatten(-1, (-1, length))

    def keys(self, turn: int, first: int, stop: int) -> Int[Tensor, "b h c w"]:
        """The tokens that they are given. Nothing is before the first chunk: a round does not look into another."""
        length, width = self.chunks.length, self.chunks.width
        return self.tokens[:, :, turn, first * length : (stop - 1) * length + width].unfold(-1, width, length)


@torch.no_grad()
def ordered(buckets: Int[Tensor, "b h r t"], chunks: Chunks, keep: Bool[Tensor, "b t"] | None) -> Order:
    """Sorts, and fills up."""
    t = buckets.size(-1)
    tokens = buckets.sort(dim=-1, stable=True).indices
    places = torch.empty_like(tokens).scatter_(-1, tokens, torch.arange(t, device=tokens.device).expand_as(tokens))
    codes = F.pad(chunks.codes(buckets, places), (0, 1))
    real = torch.ones(buckets.size(0), t, dtype=torch.bool, device=tokens.device) if keep is None else keep
    key_codes = codes.masked_fill(~F.pad(real, (0, 1))[:, None, None], float("inf"))
    fill = (chunks.back * chunks.length, -t % chunks.length + chunks.ahead * chunks.length)
    return Order(chunks, F.pad(tokens, fill, value=t), codes, key_codes)


def rows_of(tokens: Int[Tensor, "b h *c"], t: int, fill: int | None = None) -> Int[Tensor, " n"]:
    """Where they stand when all rows and heads are one; what fills is read from the last token, or put at ``fill``."""
    rows, heads = tokens.shape[:2]
    starts = torch.arange(rows * heads, device=tokens.device).view(rows, heads, *[1] * (tokens.dim() - 2)) * t
    found = starts + tokens.clamp(max=t - 1)
    return (found if fill is None else found.masked_fill(tokens == t, fill)).flatten()


def chunk_flops(
    chunks: Chunks, rounds: int, queries: int, width: int, *, causal: bool, encoding: Relative | None
) -> int:
    """Forward FLOPs of ``attend_chunks`` for one sequence; the last chunk of a round counts whole."""
    pairs = rounds * -(-queries // chunks.length) * chunks.length * chunks.width
    if encoding is None:
        return 4 * pairs * width
    tables = encoding.table_flops(queries + (1 if causal else queries))
    return 2 * pairs * width + encoding.listed_flops(1, pairs) + tables
