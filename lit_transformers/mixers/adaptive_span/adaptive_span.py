"""Adaptive attention span: each head learns how far back it looks (Sukhbaatar et al. 2019, arXiv:1905.07799)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from lit_transformers.attention.executors import AttentionWeighting, Inputs, attend_heads, heads_flops
from lit_transformers.attention.patterns import Band
from lit_transformers.config import Length, NonNegativeFloat, Positive, Reach
from lit_transformers.mixer import Context, Promises, Shape
from lit_transformers.mixers.adaptive_span.spans import Constant, Dynamic, Spans, mean_span
from lit_transformers.mixers.qkv import HeadsOutput, QKVConfig, QKVMixer, SegmentInputs
from lit_transformers.space import Interval, Space

TRIM = 64
"""Widths of bands are rounded up to a multiple of it, so that heads with similar spans are computed together."""
EPSILON = 1e-8
"""Added to the sum of a row's masked weights before the division by it."""


@final
class AdaptiveSpanConfig(QKVConfig, kind="adaptive_span"):
    """span: the largest span, S; ramp: the tokens over which a span fades out, R; penalty: lambda, per token of span.

    learns: a span for each head (``adaptive``), one for each head and token (``dynamic``), or none (``fixed``).
    initial: the share of S that spans start from; None for the paper's: 0, and sigmoid(-4) if dynamic.
    share: which spans are shared: none, those of all heads of a ``layer``, or all of the ``model``.

    The paper uses ``ShawConfig(distance=S, values=False, share_layers=True)`` and a memory of S.
    """

    space: ClassVar[Space] = {"ramp": Interval(8, 64, log=True), "penalty": Interval(1e-7, 1e-4, log=True)}
    span: Annotated[Positive, Reach] = 1024
    ramp: Annotated[Positive, Length] = 32
    penalty: NonNegativeFloat = 2e-6
    learns: Literal["adaptive", "dynamic", "fixed"] = "adaptive"
    initial: Annotated[float, Field(ge=0, le=1)] | None = None
    share: Literal["none", "layer", "model"] = "none"

    def conflicts(self) -> Iterator[str]:
        if self.learns == "fixed" and self.initial is None:
            yield "fixed spans stay where they start: set initial"
        if self.learns == "fixed" and self.penalty:
            yield "a penalty moves no span that is fixed; set penalty: 0"
        if self.learns == "fixed" and self.share != "none":
            yield "fixed spans are all the same, so share has no effect; set share: none"
        if self.learns == "dynamic" and self.initial in (0, 1):
            yield f"a sigmoid never is {self.initial}: set initial between 0 and 1"
        if self.learns != "fixed" and self.ramp == 1:
            yield "on a ramp of 1 no key lies between seen and hidden, so that no span learns; set ramp: 2 or more"
        if self.learns == "fixed" and self.initial is not None and self.span * self.initial + self.ramp <= 1:
            yield "a span of no token and a ramp of 1 show no key; set a longer one"

    def attention_promises(self) -> Promises:
        reason = "a span is a distance back from the current token; nothing says how far it looks ahead"
        return Promises(
            ("causal",),
            streams=True,
            refusals={
                "bidirectional": reason,
                "cross": "a span is a distance in one sequence; across two there is none",
            },
        )

    def build(self, shape: Shape) -> AdaptiveSpan:
        return AdaptiveSpan(self, shape)

    def build_spans(self, shape: Shape) -> Spans:
        """Builds the spans of one layer, or those that all layers share."""
        count = shape.heads if self.share == "none" else 1
        if self.learns == "dynamic":
            initial = 1 / (1 + math.exp(4)) if self.initial is None else self.initial
            return Dynamic(self.span, count, initial, shape.dim)
        return Constant(self.span, count, self.initial or 0.0, fixed=self.learns == "fixed")


@final
class AdaptiveSpan(QKVMixer):
    """a_tr = m_z(t - r) exp(s_tr) / sum_q m_z(t - q) exp(s_tq) over the S tokens before t, itself not among them
    (section 2), with m_z(x) = clamp((R + z - x) / R, 0, 1). The output of the first token, which sees nothing, is zero.
    The distance x is counted from 1, as in the paper; its code counts from 0, so its spans reach one token further.

    Keys beyond z + R are not computed: a head costs as much as its own span. Memory has the length ``memory`` even
    where spans are short, so that they may grow again. Dynamic spans are unknown before they are read and cost S.
    """

    def __init__(self, config: AdaptiveSpanConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.span, self.ramp, self.penalty = config.span, config.ramp, config.penalty
        self.learned = config.learns != "fixed"
        make = partial(config.build_spans, shape)
        spans = shape.share("adaptive_span.spans", make) if config.share == "model" else make()
        assert isinstance(spans, Spans)
        self.spans = spans

    def after_step(self) -> None:
        if isinstance(self.spans, Constant):
            self.spans.keep_in_range()

    def patterns(self) -> list[Band]:
        """Returns the widest band that each head can see with its present span."""
        furthest = [math.ceil(span + self.ramp) - 1 for span in self.spans.reach()]
        bands = [Band(min(self.span, max(1, math.ceil(before / TRIM)) * TRIM), -1) for before in furthest]
        return bands if len(bands) == self.heads else bands * self.heads

    def attend(self, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        spans = self.spans(segment.x)
        weigh = AttentionWeighting(partial(self.masked, inputs.offset), (spans,))
        y = attend_heads(
            self.patterns(), inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped, weigh=weigh
        )
        return HeadsOutput(y, {"span": self.penalty * mean_span(spans, ctx.padding_mask)} if self.learned else {})

    def masked(
        self,
        offset: int,
        logits: Float[Tensor, "b h t s"],
        i: Int[Tensor, "t 1"],
        j: Int[Tensor, " s"],
        spans: Float[Tensor, "#b #h #n 1"],
    ) -> Float[Tensor, "b h t s"]:
        """Returns the softmax times the soft mask, divided by its sum (section 2.2).

        Keys whose mask is zero do not enter the softmax: a large score among them would leave the others weights that
        are lost in EPSILON, as they are in the authors' code.
        """
        if spans.size(-2) > 1:
            spans = spans[..., i[:, 0] - offset, :]
        mask = ((self.ramp + spans - (i - j)) / self.ramp).clamp(0, 1)
        with torch.no_grad():  # a weight of zero passes no gradient on; the value is finite for rows that see nothing
            logits.masked_fill_(mask == 0, torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1) * mask
        return weights / (weights.sum(dim=-1, keepdim=True) + EPSILON)

    def average_span(self, x: Float[Tensor, "b t d"]) -> float:
        """Returns the mean span over heads and tokens, in tokens: with the ramp, as the authors' code reports it, and
        at most S. x is the input of the layer, which matters only if spans are dynamic."""
        return float((self.spans(x).detach() + self.ramp).clamp(max=self.span).mean())

    def needed_keys(self, length: int) -> Sequence[int]:
        """As in ``QKVMixer.needed_keys``, with the longest spans that can be learned."""
        if self.learned:
            return [min(length, self.span)] * self.heads
        furthest = [min(self.span, math.ceil(span + self.ramp) - 1) for span in self.spans.reach()]
        return [min(length, span) for span in (furthest if len(furthest) == self.heads else furthest * self.heads)]

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        """As in ``Mixer.flops``, with the present spans."""
        keys = queries + min(remembered, self.memory)
        attention = heads_flops(self.patterns(), queries, keys, self.width, encoding=self.relative, weighed=True)
        return self.projection_flops(queries, keys) + attention + self.spans.flops(queries)
