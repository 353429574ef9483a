"""Factorised sparse attention (Child et al. 2019, arXiv:1904.10509, sections 4.2 and 4.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, final

from lit_transformers.attention.executors import Inputs, attend_heads, attend_union, heads_flops, union_flops
from lit_transformers.attention.patterns import Band, Local, Pattern, Summaries
from lit_transformers.config import ConfigError, Length, Positive
from lit_transformers.mixer import Context, Promises, Shape
from lit_transformers.mixers.qkv import HeadsOutput, QKVMixer, ScoresConfig, SegmentInputs
from lit_transformers.space import Choice, Space


@final
class SparseConfig(ScoresConfig, kind="sparse"):
    """pattern: "strided" has A1, the last ``block`` keys, and A2, every ``block``-th key back; "fixed" has A1, the
    query's own block, and A2, the last ``summary`` positions of every block (None for an eighth of it).

    heads: how the two are combined: layers alternate between them (the paper's eq. 6), all heads attend to their union
    (eq. 7), or one half of the heads has A1 and the other A2 (eq. 8).
    """

    space: ClassVar[Space] = {"block": Choice((32, 64, 128))}

    pattern: Literal["strided", "fixed"] = "strided"
    block: Annotated[Positive, Length] = 128
    summary: Annotated[Positive | None, Length] = None
    heads: Literal["layers", "merged", "halves"] = "merged"

    def conflicts(self) -> Iterator[str]:
        if self.pattern == "strided" and self.summary is not None:
            yield "summary is of the fixed pattern; a strided one has none"
        if self.summary is not None and self.summary > self.block:
            yield f"summary {self.summary} is longer than block {self.block}"

    def attention_promises(self) -> Promises:
        return Promises(
            ("causal",),
            refusals={
                "bidirectional": "its two patterns are defined for earlier positions",
                "cross": "it slides along one sequence; across two there is no neighbourhood",
            },
        )

    def build(self, shape: Shape) -> Sparse:
        return Sparse(self, shape)


@final
class Sparse(QKVMixer):
    """Attention in two patterns of about sqrt(n) keys each, connecting every position to all later ones in two steps.

    In A2 of the fixed pattern every query sees itself too, so that those before the first summary see a key.
    """

    def __init__(self, config: SparseConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        if config.heads == "halves" and shape.heads < 2:
            raise ConfigError("one head has no halves; set heads: layers or merged", "mixer.heads")
        bands = Band(config.block, 0), Band(None, 0, step=config.block)
        summaries = Summaries(config.block, config.summary or max(1, config.block // 8))
        fixed: tuple[Pattern, Pattern] = Local(config.block, causal=True), summaries
        near, far = fixed if config.pattern == "fixed" else bands
        near_heads = shape.heads - shape.heads // 2
        self.bands: tuple[Band, ...] = ()
        self.patterns: Sequence[Pattern] = ()
        match config.heads, config.pattern:
            case "layers", _:
                self.patterns = [near if shape.layer % 2 == 0 else far] * shape.heads
            case "halves", _:
                self.patterns = [near] * near_heads + [far] * (shape.heads - near_heads)
                self.heads_differ = "the halves of the heads have different patterns (mixer.heads)"
            case "merged", "strided":
                self.bands = bands
            case "merged", "fixed":
                self.patterns = [replace(summaries, local=True)] * shape.heads

    def attend(self, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        if self.bands:
            y = attend_union(self.bands, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped)
        else:
            y = attend_heads(self.patterns, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped)
        return HeadsOutput(y)

    def needed_keys(self, length: int) -> Sequence[int]:
        if self.bands:
            return [max(band.needed(length) for band in self.bands)] * self.heads
        return [pattern.needed(length) for pattern in self.patterns]

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        projections = self.projection_flops(queries, queries)
        if self.bands:
            return projections + union_flops(self.bands, queries, self.width, self.relative)
        return projections + heads_flops(self.patterns, queries, queries, self.width, encoding=self.relative)
