"""Transformer on a diet: fewer keys in lower layers (Wang et al. 2020, arXiv:2002.06170, section 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, final

from lit_transformers.attention.executors import Inputs, attend_union, union_flops
from lit_transformers.attention.patterns import Band
from lit_transformers.config import Dilation, Length, Positive, Reach
from lit_transformers.mixer import Context, Promises, Shape
from lit_transformers.mixers.qkv import HeadsOutput, QKVMixer, ScoresConfig, SegmentInputs


@final
class DietConfig(ScoresConfig, kind="diet"):
    """pattern: the keys that a query sees in layer l, counted from 0:

    dilated: ``taps`` keys (None for 3) at a distance of ``base``^l (None for 2) from one another, the query's own the
    last. dilated_memory: these, and those of all layers below. cascade: the last ``window`` (None for 4) times
    ``growth``^l (None for 2) keys; as in the authors' code the query's own is one of them.
    """

    pattern: Literal["dilated", "dilated_memory", "cascade"] = "dilated"
    base: Annotated[Positive | None, Dilation] = None
    taps: Annotated[Positive | None, Length] = None
    window: Annotated[Positive | None, Reach] = None
    growth: Annotated[Positive | None, Length] = None

    def conflicts(self) -> Iterator[str]:
        cascade = self.pattern == "cascade"
        for name, value in (("base", self.base), ("taps", self.taps)):
            if cascade and value is not None:
                yield f"{name} is of dilated patterns; a cascade has window and growth"
        for name, value in (("window", self.window), ("growth", self.growth)):
            if not cascade and value is not None:
                yield f"{name} is of a cascade; a dilated pattern has base and taps"

    def bands(self, layer: int) -> tuple[Band, ...]:
        """Returns the bands that a query of this layer sees."""
        if self.pattern == "cascade":
            return (Band((self.window or 4) * (self.growth or 2) ** layer - 1, 0),)
        steps = [(self.base or 2) ** below for below in range(layer + 1)]
        taps = (self.taps or 3) - 1
        return tuple(Band(taps, 0, step) for step in dict.fromkeys(steps[-1:] if self.pattern == "dilated" else steps))

    def attention_promises(self) -> Promises:
        return Promises(
            ("causal",),
            refusals={
                "bidirectional": "its patterns are defined for earlier positions",
                "cross": "it slides along one sequence; across two there is no neighbourhood",
            },
        )

    def build(self, shape: Shape) -> Diet:
        return Diet(self, shape)


@final
class Diet(QKVMixer):
    """Softmax attention over few keys, whose reach grows with the layer as that of dilated convolutions does."""

    def __init__(self, config: DietConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.bands = config.bands(shape.layer)

    def attend(self, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        return HeadsOutput(
            attend_union(self.bands, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped)
        )

    def needed_keys(self, length: int) -> Sequence[int]:
        return [max(band.needed(length) for band in self.bands)] * self.heads

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        return self.projection_flops(queries, queries) + union_flops(self.bands, queries, self.width, self.relative)
