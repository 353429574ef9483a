"""LSH attention and shared queries and keys: the Reformer (Kitaev et al. 2020, arXiv:2001.04451, section 2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lit_transformers.attention.executors import Inputs, with_tables
from lit_transformers.attention.relative import Relative
from lit_transformers.config import Length, NonNegative, Positive, RandomSeed, Rounds
from lit_transformers.encodings.rotary import Rotary
from lit_transformers.maps import LinearMap
from lit_transformers.mixer import Context, Mixer, MixerOutput, Mode, OutputProjection, Promises, Shape, decide
from lit_transformers.mixers.heads import channels_of_a_head, join, split
from lit_transformers.mixers.qkv import EncodedConfig
from lit_transformers.mixers.reformer.chunked import Chunked, attend_chunks
from lit_transformers.mixers.reformer.chunks import By, Chunks, chunk_flops, ordered
from lit_transformers.mixers.reformer.hashing import columns, digits, hashed, rotations
from lit_transformers.mixers.reformer.shared_qk import attend_others, attend_others_flops, unit
from lit_transformers.named_tuples import with_fields
from lit_transformers.precision import no_autocast
from lit_transformers.space import Choice, Interval, Space


@final
class LSHConfig(EncodedConfig, kind="lsh"):
    """rounds: of hashing; no weight depends on them, so an evaluation may use another number. None: every query sees
    all keys, which is shared QK alone; fields of the hashing then matter only in an evaluation that has rounds.

    chunk_length: positions per chunk; back, ahead: chunks that a query gets besides its own (None ahead: as many as
    back, and none if causal); chunks: how they are formed, see ``Chunks``. The paper's are ``by_sort`` with back 1;
    there a causal query depends on the future, so that is refused. across_buckets: by_sort, whether a query sees other
    buckets (as in the authors' code). buckets: 1 or an even number, or a tuple of such digits (None: the paper's
    2 length / chunk_length of the training length, so that rows of any length hash alike; beyond 128 in two digits).
    correct_duplicates: whether a key seen in several rounds counts once (appendix A; not so in the authors' code).
    seed: of the rotations; None draws new ones in every pass of training, and evaluates with those of seed 0.

    scaled: whether scores are divided by sqrt(head_dim): the paper omits that "for clarity", its authors' code always.
    encoding: of positions in the scores, not in the hash.
    """

    space: ClassVar[Space] = {"chunk_length": Choice((16, 32, 64, 128)), "rounds": Interval(1, 8, log=True)}
    rounds: Annotated[Positive | None, Rounds] = 4
    chunk_length: Annotated[Positive, Length] = 64
    back: Annotated[NonNegative, Length] = 1
    ahead: Annotated[NonNegative | None, Length] = None
    chunks: By = "by_rank"
    across_buckets: bool = False
    buckets: Annotated[Positive | tuple[Positive, ...] | None, Length] = None
    correct_duplicates: bool = True
    seed: Annotated[NonNegative | None, RandomSeed] = None
    scaled: bool = False

    def conflicts(self) -> Iterator[str]:
        if self.across_buckets and self.chunks == "by_rank":
            yield "across_buckets: ranks are counted within a bucket; set chunks: by_sort to see other buckets"
        if self.buckets == ():
            yield "buckets names no digit; write null for as many as the length wants"
        if any(digit > 1 and digit % 2 for digit in self.digits(1)):
            yield f"buckets {self.buckets}: a direction and its opposite are two, so a number of buckets is even, or 1"

    def digits(self, length: int) -> tuple[int, ...]:
        if self.buckets is None:
            return digits(length, self.chunk_length)
        return (self.buckets,) if isinstance(self.buckets, int) else self.buckets

    def attention_promises(self) -> Promises:
        refusals: dict[Mode, str] = {"cross": "queries are the keys, so both are of one sequence"}
        promises = Promises(("causal", "bidirectional"), of_pass=bool(self.rounds), refusals=refusals)
        if self.rounds and self.chunks == "by_sort":
            reason = "a later token moves the chunks that earlier ones see; set chunks: by_rank"
            return promises.without("causal", reason, "mixer")
        if self.rounds and self.ahead:
            return promises.without("causal", "a causal query sees nothing ahead; set ahead: null", "mixer.ahead")
        return promises

    def build(self, shape: Shape) -> LSH:
        return LSH(self, shape)


@final
class LSH(Mixer):
    """Attention with k_j = q_j / |q_j| among tokens of one bucket; a token sees itself only if it sees no other. It
    does not stream: every past token would have to be kept, and hashed by the same rotations."""

    def __init__(self, config: LSHConfig, shape: Shape) -> None:
        super().__init__()
        self.config, self.rounds, self.counts = config, config.rounds, config.digits(shape.max_length)
        self.heads, self.dim = shape.heads, shape.dim
        self.head_dim = channels_of_a_head(config.head_dim, shape)
        self.width = self.heads * self.head_dim
        self.scale = self.head_dim**-0.5 if config.scaled else 1.0
        self.query = LinearMap(shape.dim, self.width, "query", bias=config.bias)
        self.value = LinearMap(shape.dim, self.width, "value", bias=config.bias)
        self.merge = OutputProjection(self.width, shape, bias=config.bias)
        encoding = config.encoding.build(shape, self.head_dim) if config.encoding else None
        self.rotary = encoding if isinstance(encoding, Rotary) else None
        self.relative = encoding if isinstance(encoding, Relative) else None

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        with no_autocast(x.device):  # in half precision tokens near the border of a bucket would change buckets
            q = split(self.query(x.to(self.query.weight.dtype)), self.heads)
            buckets = None if self.rounds is None else decide(ctx, lambda: self.hash(q, ctx))
        v = split(self.value(x), self.heads)
        inputs = Inputs(q, unit(q), v, ctx.padding_mask)
        if self.rotary is not None:
            positions = torch.arange(x.size(1), device=x.device)
            inputs = with_fields(inputs, q=self.rotary.rotate(q, positions), k=self.rotary.rotate(inputs.k, positions))
        if self.relative is not None:
            inputs = with_tables(self.relative, inputs, ctx.causal, ctx.segments)
        dropout = self.config.dropout if self.training else 0.0
        if buckets is None:
            y = attend_others(inputs, causal=ctx.causal, encoding=self.relative, scale=self.scale, dropout=dropout)
        else:
            order = ordered(buckets, self.chunks(ctx.causal), ctx.padding_mask)
            chunked = Chunked(order, ctx.causal, self.scale, dropout, self.config.correct_duplicates, self.relative)
            y = attend_chunks(chunked, inputs)
        return MixerOutput(self.merge(join(y)))

    def hash(self, q: Float[Tensor, "b h t k"], ctx: Context) -> Int[Tensor, "b h r t"]:
        """Returns the buckets of all rounds; content alone is hashed, for q is not rotated by positions yet."""
        seed = 0 if self.config.seed is None and not self.training else self.config.seed
        rotation = rotations(self.heads, self.head_dim, self.rounds or 0, self.counts, seed, q.device)
        return hashed(q, rotation, self.counts, ctx.padding_mask)

    def chunks(self, causal: bool) -> Chunks:
        """Returns the chunks that determine which keys a query gets."""
        config, default_ahead = self.config, 0 if causal else self.config.back
        ahead = default_ahead if config.ahead is None else config.ahead
        return Chunks(config.chunk_length, config.back, ahead, config.chunks, config.across_buckets)

    def decoding_state(self, length: int) -> int:
        """As in ``Mixer.decoding_state``: vectors that are query and key at once, and values, of all tokens."""
        return 2 * self.width * length

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        projections = sum(linear.flops(queries) for linear in (self.query, self.value, self.merge))
        encoding = self.relative
        if self.rounds is None:
            return projections + attend_others_flops(queries, self.width, causal=causal, encoding=encoding)
        pairs = chunk_flops(self.chunks(causal), self.rounds, queries, self.width, causal=causal, encoding=encoding)
        return projections + pairs + self.rounds * 2 * queries * self.width * columns(self.counts)
