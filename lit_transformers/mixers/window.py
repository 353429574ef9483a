"""Sliding-window attention with dilation and global tokens (Beltagy et al. 2020, arXiv:2004.05150, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal, cast, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lit_transformers.attention.executors import Inputs, attend, attend_heads, encoding_flops, heads_flops
from lit_transformers.attention.patterns import Band, GlobalQueries, Marked, Pattern, marked_columns
from lit_transformers.config import ConfigError, Cycle, Dilation, Heads, Length, Positive, Reach
from lit_transformers.host import HOST, sent
from lit_transformers.maps import LinearMap, MapRole
from lit_transformers.mixer import Context, Layered, Promises, Shape, at_layer, in_cycle
from lit_transformers.mixers.global_tokens import GlobalTokens
from lit_transformers.mixers.heads import split
from lit_transformers.mixers.qkv import HeadsOutput, QKVConfig, QKVMixer, SegmentInputs
from lit_transformers.space import Interval, Space


@final
class WindowConfig(QKVConfig, kind="window"):
    """window: keys that a query sees on each side (only before it if causal), besides itself, one number or one per
    layer, or the widest of the schedule. Transformers' ``attention_window`` is twice this, the authors' own is this.
    smallest, schedule: windows go from ``smallest`` to ``window`` by equal factors over the layers, ``increasing`` as
    in the paper or ``decreasing``; ``fixed`` gives all layers their mean, so that the cost is the same.
    dilation: the step between the keys of a window, by which it reaches that much further; 1 is none.
    dilated_heads: how many heads, the last ones, are dilated; None for all (the paper: 2, in upper layers).
    global_tokens: which tokens see all tokens and are seen by all: the first ``global_count``, those the data mark, or
    one in ``global_count``. global_projections: whether they have their own query, key and value projections for the
    tokens that they see, as in the paper; tokens that see them use the common ones.
    full_every: every n-th layer, from the first on, has no window and no dilation: its tokens see all tokens
    (arXiv:2412.13663, section 2.1.2: 3); None: all layers have a window."""

    space: ClassVar[Space] = {"window": Interval(16, 256, log=True)}

    window: Annotated[Layered, Reach] = 128
    smallest: Annotated[Positive | None, Reach] = None
    schedule: Literal["increasing", "fixed", "decreasing"] = "increasing"
    dilation: Annotated[Layered, Dilation] = 1
    dilated_heads: Annotated[Positive | None, Heads] = None
    global_tokens: Literal["none", "first", "marked", "periodic"] = "none"
    global_count: Annotated[Positive, Length] = 1
    global_projections: Literal["separate", "shared"] = "shared"
    full_every: Annotated[Positive | None, Cycle] = None

    def conflicts(self) -> Iterator[str]:
        if self.full_every == 1:
            yield "full_every: 1 leaves no layer a window; set mixer to attention, or full_every to 2 or more"
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

    def attention_promises(self) -> Promises:
        return Promises(
            ("causal", "bidirectional"),
            streams=True,
            refusals={"cross": "a window slides along one sequence; across two there is no neighbourhood"},
        )

    def build(self, shape: Shape) -> Window:
        return Window(self, shape)


def window_of(config: WindowConfig, shape: Shape) -> int | None:
    """Returns this layer's window; None where it sees all keys."""
    if in_cycle(config.full_every, shape):
        return None
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


@final
class Window(QKVMixer):
    """Each query sees the keys around it and the global ones; global queries see all keys (if causal, earlier ones)."""

    def __init__(self, config: WindowConfig, shape: Shape) -> None:
        separate = config.global_projections == "separate"
        kind = config.global_tokens
        tokens = None if kind == "none" else GlobalTokens(kind, config.global_count)
        super().__init__(config, shape, None if tokens is None else tokens.marks, keep_hidden=separate)
        self.window, self.global_tokens = window_of(config, shape), tokens
        dilation = 1 if self.window is None else at_layer(config.dilation, shape, "mixer.dilation")
        undilated = 0 if config.dilated_heads is None else self.heads - config.dilated_heads
        if undilated < 0:
            raise ConfigError(
                f"only {self.heads} heads can be dilated, not {config.dilated_heads}", "mixer.dilated_heads"
            )
        self.dilations = [1] * undilated + [dilation] * (self.heads - undilated)
        if len({*self.dilations}) > 1:
            self.heads_differ = "some heads are dilated, and others not (mixer.dilated_heads)"
        roles: tuple[MapRole, ...] = ("query", "key", "value") if separate else ()
        self.global_maps = nn.ModuleList(LinearMap(shape.dim, self.width, role, config.bias) for role in roles)

    def patterns(
        self, causal: bool, marks: Bool[Tensor, "b s"] | None, columns: tuple[int, ...] | None = None
    ) -> list[Pattern]:
        """Returns the pattern of each head; ``columns``: as in ``Marked``."""
        bands = [Band(self.window, 0 if causal else self.window, step) for step in self.dilations]
        return [*bands] if marks is None else [Marked(band, marks, causal, columns) for band in bands]

    def columns(self, marks: Bool[Tensor, "b s"] | None, ctx: Context, remembered: int) -> tuple[int, ...]:
        """Returns the keys that are global in any row, after ``remembered`` ones of memory. The host waits for a
        device where memory or the data mark them, and where it does not know the positions of the segment."""
        if marks is None or self.global_tokens is None:
            return ()
        known = None if remembered else self.global_tokens.columns(ctx)
        return marked_columns(marks) if known is None else known

    def attend(self, inputs: Inputs, ctx: Context, segment: SegmentInputs) -> HeadsOutput:
        columns = self.columns(segment.marks, ctx, inputs.offset)
        patterns = self.patterns(ctx.causal, segment.marks, columns)
        y = attend_heads(patterns, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped)
        if segment.marks is not None:
            marks = segment.marks[:, inputs.offset :]
            queries = [column - inputs.offset for column in columns if column >= inputs.offset]
            if len(self.global_maps):
                inputs = self.of_global_tokens(inputs, segment, ctx)
            outputs = self.see_everything(inputs, queries, ctx.causal)
            indices = sent(torch.tensor(queries, dtype=torch.long, device=HOST), y.device)
            with_global = y.index_copy(2, indices, outputs.to(y.dtype))
            y = torch.where(marks[:, None, :, None], with_global, y)
        return HeadsOutput(y)

    def of_global_tokens(self, inputs: Inputs, segment: SegmentInputs, ctx: Context) -> Inputs:
        """Returns the inputs of global queries, computed with their own projections."""
        assert segment.hidden is not None, "asked to be kept"
        query, key, value = self.global_maps
        q, k, v = (split(part, self.heads) for part in (query(segment.x), key(segment.hidden), value(segment.hidden)))
        return self.encoded(Inputs(q, k, v, inputs.key_mask), ctx)

    def needed_keys(self, length: int) -> Sequence[int]:
        """As in ``QKVMixer.needed_keys``. Where later tokens may be global, they see everything."""
        if self.global_tokens is not None and self.global_tokens.kind != "first":
            return [length] * self.heads
        first = 0 if self.global_tokens is None else self.global_tokens.number
        return [min(length, first + Band(self.window, 0, step).needed(length)) for step in self.dilations]

    def see_everything(self, inputs: Inputs, queries: Sequence[int], causal: bool) -> Float[Tensor, "b h g k"]:
        if not queries:  # uses every weight, for in data-parallel training each needs a gradient
            return (inputs.q[:, :, :0] @ inputs.k.mT) @ inputs.v
        pattern = GlobalQueries(tuple(queries), causal)
        return attend(pattern, inputs, encoding=self.relative, scale=self.scale, dropout=self.dropped)

    def flops(self, queries: int, remembered: int, causal: bool = True) -> int:
        memory = min(remembered, self.memory)
        keys, total = queries + memory, self.projection_flops(queries, queries + memory)
        positions = torch.arange(remembered - memory, remembered + queries)
        marks = None if self.global_tokens is None else self.global_tokens.by_place(positions)
        columns = () if marks is None else marked_columns(marks[None])
        if marks is not None:
            global_queries = GlobalQueries([column - memory for column in columns if column >= memory], causal)
            total += heads_flops([global_queries], queries, keys, self.width, causal=causal, encoding=self.relative)
            if len(self.global_maps):
                query, key, value = cast("list[LinearMap]", [*self.global_maps])
                total += query.flops(queries) + key.flops(keys) + value.flops(keys)
            elif self.relative:  # the tables are those of the window
                total -= encoding_flops(self.relative, queries, keys, causal)
        patterns = self.patterns(causal, None if marks is None else marks[None], columns)
        return total + heads_flops(patterns, queries, keys, self.width, causal=causal, encoding=self.relative)
