"""Plain softmax attention (Vaswani et al. 2017, arXiv:1706.03762, equation 1), with memory and any encoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

from jaxtyping import Float
from torch import Tensor

from lit_transformers.attention.executors import Inputs, attend, attend_flops
from lit_transformers.attention.patterns import Band, Pattern
from lit_transformers.mixer import Context, MixerOutput, Promises, QueryStream, Shape
from lit_transformers.mixers.heads import join, split
from lit_transformers.mixers.qkv import HeadsOutput, QKVConfig, QKVMixer, SegmentInputs
from lit_transformers.named_tuples import with_fields


@final
class AttentionConfig(QKVConfig, kind="attention"):
    """same_length: whether every query sees exactly ``memory`` earlier tokens; otherwise late queries of a segment see
    more of them than early ones."""

    same_length: bool = False

    def conflicts(self) -> Iterator[str]:
        if self.same_length and not self.memory:
            yield "same_length gives every query as many keys as memory holds, and memory is 0"

    def attention_promises(self) -> Promises:
        return Promises(("causal", "bidirectional", "permuted", "cross"), streams=True, constant_reach=self.same_length)

    def build(self, shape: Shape) -> Attention:
        return Attention(self, shape)


@final
class Attention(QKVMixer):
    """softmax(Q K^T / sqrt(k)) V. With XL encoding and memory this is Transformer-XL (arXiv:1901.02860)."""

    def __init__(self, config: AttentionConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.before = config.memory if config.same_length else None

    @property
    def crosses_itself(self) -> bool:
        return self.rotary is None and self.relative is None

    def pattern(self, ctx: Context, remembered: int) -> Pattern:
        """Returns who sees whom, after ``remembered`` keys of memory."""
        if ctx.pattern is not None:
            return ctx.pattern.after_memory(remembered)
        return Band(self.before, 0) if ctx.causal and ctx.source is None else Band(None, None)

    def attend(self, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        pattern = self.pattern(ctx, inputs.offset)
        return HeadsOutput(attend(pattern, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped))

    def forward_with_queries(
        self, x: Float[Tensor, "b t d"], queries: QueryStream, ctx: Context, state: Any = None
    ) -> tuple[MixerOutput, Float[Tensor, "b m d"]]:
        inputs, state, segment = self.read(x, ctx, state)
        q = queries.spread(split(self.query(queries.vectors), self.heads), x.size(1))
        content, queried = (self.encoded(inputs, ctx), self.encoded(with_fields(inputs, q=q), ctx))
        y, aux, observed = self.attend(content, ctx, segment)
        read = self.attend(queried, with_fields(ctx, pattern=queries.pattern), segment).y
        output = MixerOutput(self.merge(join(y)), state, aux, observed)
        return output, self.merge(join(queries.gathered(read)))

    def query_flops(self, queries: int, length: int, remembered: int = 0) -> int:
        keys = length + min(remembered, self.memory)
        attention = attend_flops(Band(None, None), length, keys, self.width, causal=False, encoding=self.relative)
        return self.query.flops(queries) + self.merge.flops(queries) + attention

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        pattern = Band(self.before, 0) if causal else Band(None, None)
        keys = queries + min(remembered, self.memory)
        attention = attend_flops(pattern, queries, keys, self.width, causal=causal, encoding=self.relative)
        return self.projection_flops(queries, keys) + attention
