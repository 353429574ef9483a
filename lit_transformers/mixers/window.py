"""Sliding-window attention with dilation and global tokens (Beltagy et al. 2020, arXiv:2004.05150, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.config import ConfigError, Positive
from lit_transformers.executors import Inputs, attend, attend_heads, heads_flops, with_tables
from lit_transformers.mixer import Context, Layered, Mode, Shape, at_layer
from lit_transformers.mixers.global_tokens import GlobalTokens
from lit_transformers.mixers.heads import split
from lit_transformers.mixers.qkv import Heard, QKVConfig, QKVMixer
from lit_transformers.patterns import Band, Marked, Pattern, Rows
from lit_transformers.space import Interval, Space


class WindowConfig(QKVConfig, kind="window"):
    """window: keys that a query sees on one side (both sides where nothing is causal), besides itself; its layers'
    values, or the widest of the schedule. Transformers' ``attention_window`` is twice this, the authors' own is this.

    smallest, schedule: from ``smallest`` to ``window`` by equal factors over the layers, ``increasing`` as the paper
    does or ``decreasing``; ``fixed`` gives all layers the mean of these, so that the cost is the same.
    dilation: only every so many-th key counts, so a window reaches that much further; 1 is none.
    dilated_heads: how many heads, the last ones, are dilated; None for all (the paper: 2, in upper layers).
    global_tokens: which tokens see and are seen from everywhere: the first ``global_count``, those the data marks, or
    one in ``global_count``. global_projections: whether they have query, key and value projections of their own, as the
    paper does, for what they see; what sees them uses the common ones.
    """

    space: ClassVar[Space] = {"window": Interval(16, 256, log=True)}

    window: Layered = 128
    smallest: Positive | None = None
    schedule: Literal["increasing", "fixed", "decreasing"] = "increasing"
    dilation: Layered = 1
    dilated_heads: Positive | None = None
    global_tokens: Literal["none", "first", "marked", "periodic"] = "none"
    global_count: Positive = 1
    global_projections: Literal["separate", "shared"] = "shared"

    def conflicts(self) -> Iterator[str]:
        if self.smallest is not None and not isinstance(self.window, int):
            yield "smallest begins a schedule that ends at one window, and window lists one for each layer"
        if isinstance(self.window, int) and self.smallest is not None and self.smallest > self.window:
            yield f"smallest {self.smallest} is wider than window {self.window}"
        if self.schedule != "increasing" and self.smallest is None:
            yield f"a schedule that is {self.schedule} needs smallest, where it begins"
        if self.global_projections == "separate" and self.global_tokens == "none":
            yield "global_projections are of global tokens, and global_tokens is none"
        if self.global_count != 1 and self.global_tokens in ("none", "marked"):
            yield f"global_count is of first and periodic global tokens, and global_tokens is {self.global_tokens}"
        if self.dilated_heads is not None and self.dilation == 1:
            yield "dilated_heads says which heads are dilated, and dilation 1 is none"

    def build(self, shape: Shape) -> Window:
        return Window(self, shape)


def window_of(config: WindowConfig, shape: Shape) -> int:
    """This layer's window."""
    if config.smallest is None or not isinstance(config.window, int):
        return at_layer(config.window, shape, "mixer.window")
    growth = (config.window / config.smallest) ** (1 / max(1, shape.depth - 1))
    windows = [round(config.smallest * growth**layer) for layer in range(shape.depth)]
    match config.schedule:
        case "increasing":
            return windows[shape.layer]
        case "decreasing":
            return windows[-1 - shape.layer]
        case "fixed":
            return round(sum(windows) / len(windows))


class Window(QKVMixer):
    """Each query sees the keys around it and the global ones; global queries see everything (in causal use: so far)."""

    causal = bidirectional = streams = True
    refusals: ClassVar[Mapping[Mode, str]] = {
        "cross": "a window slides along one sequence; across two there is no neighbourhood"
    }

    def __init__(self, config: WindowConfig, shape: Shape) -> None:
        separate = config.global_projections == "separate"
        kind = config.global_tokens
        tokens = None if kind == "none" else GlobalTokens(kind, config.global_count)
        super().__init__(config, shape, None if tokens is None else tokens.marks, keep_hidden=separate)
        self.window, self.global_tokens = window_of(config, shape), tokens
        dilation = at_layer(config.dilation, shape, "mixer.dilation")
        plain = 0 if config.dilated_heads is None else self.heads - config.dilated_heads
        if plain < 0:
            raise ConfigError(
                f"only {self.heads} heads can be dilated, not {config.dilated_heads}", "mixer.dilated_heads"
            )
        self.dilations = [1] * plain + [dilation] * (self.heads - plain)
        self.own = nn.ModuleList(
            nn.Linear(shape.dim, self.width, bias=config.bias) for _ in range(3 if separate else 0)
        )

    def patterns(self, causal: bool, marks: Bool[Tensor, "b s"] | None) -> list[Pattern]:
        """What each head sees."""
        bands = [Band(self.window, 0 if causal else self.window, step) for step in self.dilations]
        return [*bands] if marks is None else [Marked(band, marks, causal) for band in bands]

    def attend(self, inputs: Inputs, ctx: Context, heard: Heard) -> tuple[Float[Tensor, "b h t k"], dict[str, Tensor]]:
        patterns = self.patterns(ctx.causal, heard.marks)
        y = attend_heads(patterns, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped)
        if heard.marks is not None:
            marks = heard.marks[:, inputs.offset :]
            listed = marks.any(dim=0).nonzero().squeeze(1)
            if len(self.own):
                inputs = self.of_global_tokens(inputs, heard, ctx.causal)
            seen = self.see_everything(inputs, listed, ctx.causal)
            whole = y.index_copy(2, listed, seen.to(y.dtype))
            y = torch.where(marks[:, None, :, None], whole, y)
        return y, {}

    def of_global_tokens(self, inputs: Inputs, heard: Heard, causal: bool) -> Inputs:
        """What global tokens ask with and read: projections of their own."""
        assert heard.hidden is not None, "asked to be kept"
        query, key, value = self.own
        q, k, v = (split(part, self.heads) for part in (query(heard.x), key(heard.hidden), value(heard.hidden)))
        inputs = self.rotated(Inputs(q, k, v, inputs.seen))
        return with_tables(self.relative, inputs, causal) if self.relative else inputs

    def see_everything(self, inputs: Inputs, listed: Int[Tensor, " g"], causal: bool) -> Float[Tensor, "b h g k"]:
        if len(listed) == 0:  # still through every weight: in data-parallel training each needs a gradient
            return (inputs.q[:, :, :0] @ inputs.k.mT) @ inputs.v
        pattern = Rows(tuple(listed.tolist()), causal)
        return attend(pattern, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        kept = min(remembered, self.memory)
        keys, products = queries + kept, self.projection_flops(queries, queries + kept)
        places = torch.arange(remembered - kept, remembered + queries)
        marks = None if self.global_tokens is None else self.global_tokens.by_place(places)
        if marks is not None:
            rows = Rows(tuple(marks[kept:].nonzero().squeeze(1).tolist()), causal)
            products += heads_flops([rows], queries, keys, self.width, causal=causal, encoding=self.relative)
            if len(self.own):
                products += 2 * self.dim * self.width * (queries + 2 * keys)
            elif self.relative:  # the tables are those of the window
                products -= self.relative.table_flops(keys + (1 if causal else queries))
        patterns = self.patterns(causal, None if marks is None else marks[None])
        return products + heads_flops(patterns, queries, keys, self.width, causal=causal, encoding=self.relative)
