"""The base of mixers with queries, keys and values: projections, memory, encoding and output projection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from lit_transformers.attention.executors import Inputs, with_tables
from lit_transformers.attention.relative import Relative
from lit_transformers.config import ConfigError, Dropout, Fraction, Memory, NonNegative
from lit_transformers.encodings import EncodingConfig
from lit_transformers.encodings.rotary import Rotary
from lit_transformers.maps import LinearMap, products
from lit_transformers.mixer import Context, Mixer, MixerOutput, OutputProjection, Promises, Shape
from lit_transformers.mixers.heads import HeadsConfig, channels_of_a_head, join, split
from lit_transformers.mixers.memory import needs_mask, of_source, remember, some_key
from lit_transformers.named_tuples import with_fields
from lit_transformers.row_groups import RowGroup, mean_losses


class EncodedConfig(HeadsConfig, ABC):
    """encoding: of positions in the scores; dropout: of the attention weights."""

    encoding: EncodingConfig | None = None
    dropout: Annotated[Fraction, Dropout] = 0.0

    @abstractmethod
    def attention_promises(self) -> Promises:
        """Returns the promises that the mixer could make without an encoding and without memory."""

    @final
    def promises(self) -> Promises:
        promises = self.attention_promises()
        if self.encoding is not None:
            reason = "distances between two sequences mean nothing: cross mixers take no encoding"
            promises = promises.without("cross", reason, "encoding")
            if self.encoding.tells_segments:
                reason = "text that is read in order has no segments to tell apart; set segments: 0"
                promises = promises.without("causal", reason, "encoding.segments")
        if self.remembered:
            reason = "memory is of the past, so a {} mixer has none; set memory: 0"
            promises = promises.without("bidirectional", reason.format("bidirectional"), "mixer.memory")
            promises = promises.without("cross", reason.format("cross"), "mixer.memory")
        return promises


class ScoresConfig(EncodedConfig, ABC):
    """scaled: whether scores are divided by sqrt(head_dim)."""

    scaled: bool = True


class QKVConfig(ScoresConfig, ABC):
    """memory: how many past inputs of this layer stay visible. For mixers whose patterns do not depend on where a
    segment starts; the others use ScoresConfig."""

    memory: Annotated[NonNegative, Memory] = 0

    @property
    def remembered(self) -> int:
        return self.memory


class SegmentInputs(NamedTuple):
    """The inputs of queries and keys, for mixers that need more than these: x (b, t, d), the segment; hidden (b, s, d),
    memory and segment, if the mixer set ``keep_hidden``; marks (b, s), which of them the mixer marked."""

    x: Float[Tensor, "b t d"]
    hidden: Float[Tensor, "b s d"] | None = None
    marks: Bool[Tensor, "b s"] | None = None

    def of_group(self, group: RowGroup) -> SegmentInputs:
        """Returns the inputs of the rows of one group, where rows are read without padding."""
        hidden, marks = (None if part is None else group.of(part) for part in (self.hidden, self.marks))
        return SegmentInputs(group.of(self.x), hidden, marks)


class HeadsOutput(NamedTuple):
    """The outputs of all heads, before they are merged. ``aux`` and ``observed`` are those of MixerOutput."""

    y: Float[Tensor, "b h t k"]
    aux: Mapping[str, Tensor] = {}
    observed: Mapping[str, Tensor] = {}


class QKVMixer(Mixer):
    """Projects to heads, adds memory, applies the encoding, calls ``attend``, and merges the heads.

    mark: returns which tokens of a segment are marked, which memory keeps too; keep_hidden: whether memory holds inputs
    also while gradients are off.
    """

    heads_differ: str = ""
    """Why a head with the same weights computes something else at another place or among fewer heads; "" where it
    computes the same, so that a network may start from some heads of another one (``start.narrow``)."""

    def __init__(
        self,
        config: ScoresConfig,
        shape: Shape,
        mark: Callable[[Context], Bool[Tensor, "b t"]] | None = None,
        keep_hidden: bool = False,
    ) -> None:
        super().__init__()
        self.mark, self.keep_hidden = mark, keep_hidden
        self.heads = shape.heads
        self.head_dim = channels_of_a_head(config.head_dim, shape)
        self.width = self.heads * self.head_dim
        self.dim = shape.dim
        self.memory = config.remembered
        self.scale = self.head_dim**-0.5 if config.scaled else 1.0
        self.dropout = config.dropout
        self.query = LinearMap(shape.dim, self.width, "query", bias=config.bias)
        self.key = LinearMap(shape.dim, self.width, "key", bias=config.bias)
        self.value = LinearMap(shape.dim, self.width, "value", bias=config.bias)
        self.merge = OutputProjection(self.width, shape, bias=config.bias)
        encoding = config.encoding.build(shape, self.head_dim) if config.encoding else None
        self.rotary = encoding if isinstance(encoding, Rotary) else None
        self.relative = encoding if isinstance(encoding, Relative) else None

    @property
    def reads_groups(self) -> bool:
        return True

    @abstractmethod
    def attend(self, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        """Returns the outputs of the heads. The queries are the last keys unless there is a source."""

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        if ctx.groups:
            return self._forward_groups(x, ctx)
        inputs, state, segment = self.prepared(x, ctx, state)
        y, aux, observed = self.attend(inputs, ctx, segment)
        return MixerOutput(self.merge(join(y)), state, aux, observed)

    def _forward_groups(self, x: Float[Tensor, "1 n d"], ctx: Context) -> MixerOutput:
        """Projects the tokens of all groups of rows at once, and attends within each group."""
        inputs, _, segment = self.read(x, ctx, None)
        outputs = [self._attend_group(group, inputs, ctx, segment) for group in ctx.groups]
        y = torch.cat([join(output.y).flatten(0, 1) for output in outputs])[None]
        return MixerOutput(self.merge(y), None, mean_losses(ctx.groups, [output.aux for output in outputs]))

    def _attend_group(self, group: RowGroup, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        q, k, v = (group.of(part.transpose(1, 2)).transpose(1, 2) for part in (inputs.q, inputs.k, inputs.v))
        ctx = ctx.of_group(group)
        return self.attend(self.encoded(Inputs(q, k, v, None), ctx), ctx, segment.of_group(group))

    def prepared(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any) -> tuple[Inputs, Any, SegmentInputs]:
        """Returns the inputs of ``attend``, the state after the segment, and the segment. Raises ConfigError for rows
        without padding, whose groups are attended apart."""
        if ctx.groups:
            raise ConfigError("attention weights are read from padded rows only; set it to false", "model.unpadded")
        inputs, state, segment = self.read(x, ctx, state)
        return self.encoded(inputs, ctx), state, segment

    def read(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any) -> tuple[Inputs, Any, SegmentInputs]:
        """Returns the outputs of ``prepared`` before the encoding adds to them."""
        if ctx.source is not None:
            q = split(self.query(x), self.heads)
            k, v, state = of_source(ctx.source, state, self.keys)
            inputs = Inputs(q, k, v, some_key(ctx.source_padding_mask), crossed=True)
            return inputs, state, SegmentInputs(x)
        marks = None if self.mark is None else self.mark(ctx)
        if self.memory == 0:
            q, k, v = (split(y, self.heads) for y in products(x, (self.query, self.key, self.value)))
            return Inputs(q, k, v, ctx.key_mask), None, SegmentInputs(x, x, marks)
        q = split(self.query(x), self.heads)
        real = (
            torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if ctx.padding_mask is None else ctx.padding_mask
        )
        flags = {"key_mask": real} | ({} if marks is None else {"marks": marks})
        memory = remember(self.memory, x, flags, state, self.keys, self.keep_hidden, ctx.reused)
        segment = SegmentInputs(x, memory.hidden, memory.flags.get("marks"))
        is_masked = ctx.key_mask is not None or needs_mask(state, ctx.unbroken)
        key_mask = memory.flags["key_mask"] if is_masked else None
        return Inputs(q, memory.k, memory.v, key_mask), memory.state, segment

    def weighted_sums(
        self, of_keys: Float[Tensor, "s n"], inputs: Inputs, ctx: Context, segment: SegmentInputs
    ) -> Iterator[Float[Tensor, "b h t k"]]:
        """Yields the sums over the keys of n numbers of each key, weighted by the attention of each query; at a time as
        many of the n as a head has channels. The other arguments are those of ``attend``.

        Attention is linear in its values, so these numbers take the place of the values, with any pattern, encoding or
        softmax: a one-hot number of each key yields its attention weight. Terms that do not depend on the values (from
        an encoding, from projections of global tokens) are subtracted from the output. Attention across two sequences
        has no such terms.
        """

        def attended(part: Float[Tensor, "s k"]) -> Float[Tensor, "b h t k"]:
            v = F.pad(part, (0, inputs.v.size(-1) - part.size(1))).expand_as(inputs.v)
            return self.attend(with_fields(inputs, v=v), ctx, segment).y[..., : part.size(1)]

        for part in of_keys.to(inputs.v.dtype).split(inputs.v.size(-1), dim=1):
            yield attended(part) if inputs.crossed else attended(part) - attended(torch.zeros_like(part))

    def keys(self, x: Float[Tensor, "b s d"]) -> tuple[Float[Tensor, "b h s k"], Float[Tensor, "b h s k"]]:
        """Returns keys and values in heads."""
        k, v = products(x, (self.key, self.value))
        return split(k, self.heads), split(v, self.heads)

    @final
    def decoding_state(self, length: int) -> int:
        longest = min(length, self.memory or length)
        return 2 * self.head_dim * sum(min(longest, keys) for keys in self.needed_keys(length))

    def needed_keys(self, length: int) -> Sequence[int]:
        """Hook: returns for each head the most keys of the first ``length`` tokens that later ones see. All by
        default."""
        return [length] * self.heads

    @property
    def dropped(self) -> float:
        """The dropout rate of the attention weights in the present mode: zero outside training."""
        return self.dropout if self.training else 0.0

    def encoded(self, inputs: Inputs, ctx: Context) -> Inputs:
        """Returns the inputs with the additions of the encoding."""
        inputs = self.rotated(inputs, ctx.backward)
        if self.relative is None:
            return inputs
        return with_tables(self.relative, inputs, ctx.causal, ctx.segments, ctx.backward)

    def rotated(self, inputs: Inputs, backward: bool) -> Inputs:
        """Returns the inputs with queries and keys rotated by their positions, if the encoding is rotary; ``backward``:
        they stand in reverse."""
        if self.rotary is None:
            return inputs
        positions = torch.arange(inputs.k.size(-2), device=inputs.k.device) * (-1 if backward else 1)
        q = self.rotary.rotate(inputs.q, positions[-inputs.q.size(-2) :])
        return with_fields(inputs, q=q, k=self.rotary.rotate(inputs.k, positions))

    def projection_flops(self, queries: int, keys: int) -> int:
        """FLOPs of the four projections for one sequence, with memory, which is projected again with gradients."""
        of_queries = self.query.flops(queries) + self.merge.flops(queries)
        return of_queries + self.key.flops(keys) + self.value.flops(keys)

    def cross_flops(self, queries: int, source: int) -> int:
        return self.projection_flops(queries, source) + 4 * queries * source * self.width
