"""Attention within blocks: the local baseline of Long Range Arena (Tay et al. 2021, arXiv:2011.04006, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, final

from lit_transformers.attention.executors import Inputs, attend, attend_flops
from lit_transformers.attention.patterns import Local
from lit_transformers.config import Positive, Reach
from lit_transformers.mixer import Context, Promises, Shape
from lit_transformers.mixers.qkv import HeadsOutput, QKVMixer, ScoresConfig, SegmentInputs
from lit_transformers.space import Interval, Space


@final
class LocalConfig(ScoresConfig, kind="local"):
    """block: positions per block. No query sees beyond its own block, so information never leaves it."""

    space: ClassVar[Space] = {"block": Interval(16, 256, log=True)}

    block: Annotated[Positive, Reach] = 128

    def attention_promises(self) -> Promises:
        return Promises(
            ("causal", "bidirectional"),
            refusals={"cross": "blocks cut one sequence; across two they mean nothing"},
        )

    def build(self, shape: Shape) -> LocalAttention:
        return LocalAttention(self, shape)


@final
class LocalAttention(QKVMixer):
    """softmax(Q K^T / sqrt(k)) V within each block."""

    def __init__(self, config: LocalConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.block = config.block

    def attend(self, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        pattern = Local(self.block, ctx.causal)
        return HeadsOutput(attend(pattern, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped))

    def needed_keys(self, length: int) -> Sequence[int]:
        return [Local(self.block, causal=True).needed(length)] * self.heads

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        pattern = Local(self.block, causal)
        products = attend_flops(pattern, queries, queries, self.width, causal=causal, encoding=self.relative)
        return self.projection_flops(queries, queries) + products
