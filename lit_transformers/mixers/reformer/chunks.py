"""Which tokens of a bucket attend to each other: each round cuts sorted tokens in chunks (arXiv:2001.04451, section
2)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.attention.executors import encoding_flops
from lit_transformers.attention.relative import Relative

By = Literal["by_rank", "by_sort"]


class Chunks(NamedTuple):
    """Sorted tokens are cut into chunks. A query gets the keys of its chunk, of ``back`` chunks before it and of
    ``ahead`` after it.

    by_sort: the query sees all of these keys or, unless ``across`` is set, those in its bucket. A later token in a
    lower bucket shifts the chunks, so the keys that a causal query sees would leak information about the future.
    by_rank: it sees the keys in its bucket whose rank there is at most back x length before the query's rank, and at
    most ahead x length after it. Ranks within a bucket depend on earlier tokens alone.
    """

    length: int
    back: int
    ahead: int
    by: By = "by_rank"
    across: bool = False

    @property
    def width(self) -> int:
        """The number of keys that a query gets."""
        return (self.back + 1 + self.ahead) * self.length

    @property
    def step(self) -> int:
        """How much each further chunk adds to the difference of two codes."""
        return self.length if self.by == "by_rank" else 1

    @property
    def middle(self) -> float:
        """A query sees a key where code(query) - code(key) is within ``reach`` of this."""
        return (self.back - self.ahead) * self.step / 2

    @property
    def reach(self) -> float:
        """The largest distance of code(query) - code(key) from ``middle`` at which the query sees the key."""
        return (self.back + self.ahead) * self.step / 2

    def codes(self, buckets: Int[Tensor, "*b t"], sorted_positions: Int[Tensor, "*b t"]) -> Float[Tensor, "*b t"]:
        """Returns numbers whose differences determine which keys a query sees: the sorted position, or its chunk, plus
        a gap between buckets that no query sees across. They are floats, which compare fast; exact below 2^23."""
        units = sorted_positions if self.by == "by_rank" else sorted_positions // self.length
        gap = 0 if self.across else (self.back + self.ahead) * self.step + 1
        return (units + gap * buckets).float()


class BucketOrder(NamedTuple):
    """The tokens of every round, sorted by bucket and position.

    tokens (b, h, r, n) are padded with the index t to whole chunks, with ``back`` more chunks before and ``ahead``
    after. codes (b, h, r, t + 1) end with the code of that padding; key_codes are infinite at padding of either sort.
    """

    chunks: Chunks
    tokens: Int[Tensor, "b h r n"]
    codes: Float[Tensor, "b h r t+1"]
    key_codes: Float[Tensor, "b h r t+1"]

    @property
    def number(self) -> int:
        """The number of chunks in a round."""
        return self.tokens.size(-1) // self.chunks.length - self.chunks.back - self.chunks.ahead

    def queries(self, turn: int, first: int, stop: int) -> Int[Tensor, "b h c m"]:
        """Returns the tokens of the chunks ``first`` to ``stop`` of a round."""
        length, back = self.chunks.length, self.chunks.back
        return self.tokens[:, :, turn, (back + first) * length : (back + stop) * length].unflatten(-1, (-1, length))

    def keys(self, turn: int, first: int, stop: int) -> Int[Tensor, "b h c w"]:
        """Returns the tokens whose keys these chunks get. There are none before the first chunk of a round."""
        length, width = self.chunks.length, self.chunks.width
        return self.tokens[:, :, turn, first * length : (stop - 1) * length + width].unfold(-1, width, length)


@torch.no_grad()
def ordered(buckets: Int[Tensor, "b h r t"], chunks: Chunks, padding_mask: Bool[Tensor, "b t"] | None) -> BucketOrder:
    """Sorts the tokens of each round by bucket and position, and pads them to whole chunks."""
    t = buckets.size(-1)
    tokens = buckets.sort(dim=-1, stable=True).indices
    sorted_positions = torch.empty_like(tokens).scatter_(
        -1, tokens, torch.arange(t, device=tokens.device).expand_as(tokens)
    )
    codes = F.pad(chunks.codes(buckets, sorted_positions), (0, 1))
    real = (
        torch.ones(buckets.size(0), t, dtype=torch.bool, device=tokens.device) if padding_mask is None else padding_mask
    )
    key_codes = codes.masked_fill(~F.pad(real, (0, 1))[:, None, None], float("inf"))
    fill = (chunks.back * chunks.length, -t % chunks.length + chunks.ahead * chunks.length)
    return BucketOrder(chunks, F.pad(tokens, fill, value=t), codes, key_codes)


def rows_of(tokens: Int[Tensor, "b h *c"], t: int, fill: int | None = None) -> Int[Tensor, " n"]:
    """Returns indices of tokens in a tensor whose rows and heads are flattened. The padding index t becomes the last
    token, or ``fill``."""
    rows, heads = tokens.shape[:2]
    starts = torch.arange(rows * heads, device=tokens.device).view(rows, heads, *[1] * (tokens.dim() - 2)) * t
    indices = starts + tokens.clamp(max=t - 1)
    return (indices if fill is None else indices.masked_fill(tokens == t, fill)).flatten()


def chunk_flops(
    chunks: Chunks, rounds: int, queries: int, width: int, *, causal: bool, encoding: Relative | None
) -> int:
    """Forward FLOPs of ``attend_chunks`` for one sequence; the last chunk of a round counts whole."""
    pairs = rounds * -(-queries // chunks.length) * chunks.length * chunks.width
    if encoding is None:
        return 4 * pairs * width
    return 2 * pairs * width + encoding.listed_flops(1, pairs) + encoding_flops(encoding, queries, queries, causal)
