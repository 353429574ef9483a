"""One layer: a mixer, an optional cross mixer and a feed-forward, each in a residual branch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lit_transformers.adapters import Adapter, AdapterConfig, Sublayer
from lit_transformers.config import Added, Config, ConfigError, Dropout, Fraction, PositiveFloat
from lit_transformers.mixer import Context, Mixer, MixerConfig, MixerOutput, Mode, QueryStream, Shape
from lit_transformers.mixers import AttentionConfig
from lit_transformers.named_tuples import with_fields
from lit_transformers.row_groups import mean_losses
from lit_transformers.stacks.feedforward import FeedForwardConfig, TransitionConfig

Output = TypeVar("Output")


class BlockConfig(Config):
    """One layer. norm: "post" normalises after each residual sum (arXiv:1706.03762), "pre" before each sublayer
    (arXiv:2002.04745); dropout: applied to each sublayer's output; norm_epsilon: the number that every layer norm adds
    to the variance (1e-12 in BERT's code, 1e-5 elsewhere); norm_bias: whether it adds a learned vector too; first_norm:
    in "pre", whether the mixer of the first layer, and of those that share its weights, reads a norm of its inputs,
    which repeats one that embeddings have passed (arXiv:2412.13663, section 2.1.1); adapter: the part that is added to
    the outputs of sublayers, or of their linear maps."""

    mixer: MixerConfig = AttentionConfig()
    feedforward: TransitionConfig = FeedForwardConfig()
    norm: Literal["pre", "post"] = "pre"
    dropout: Annotated[Fraction, Dropout] = 0.0
    norm_epsilon: PositiveFloat = 1e-5
    norm_bias: bool = True
    first_norm: bool = True
    adapter: Annotated[AdapterConfig | None, Added] = None

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if not self.first_norm and self.norm == "post":
            yield "first_norm: false leaves out a norm before a sublayer, and norm: post has none there"

    def build_norm(self, dim: int) -> nn.LayerNorm:
        """Builds a layer norm of vectors (d,)."""
        return nn.LayerNorm(dim, eps=self.norm_epsilon, bias=self.norm_bias)

    def build_mixer_norm(self, shape: Shape) -> nn.Module:
        """Builds the norm of the input of a layer's mixer, or of the residual sum after the mixer."""
        is_left_out = shape.layer == 0 and not self.first_norm
        return nn.Identity() if is_left_out else self.build_norm(shape.dim)

    def build_block(self, shape: Shape, mode: Mode, cross: MixerConfig | None = None) -> Block:
        """Builds the layer. Raises ConfigError where a sublayer does not support the mode it is used in."""
        mixer = self.mixer.build(shape)
        self.mixer.require(mode)
        self.feedforward.require(mode)
        try:
            cross_mixer = cross.build(shape) if cross else None
            if cross is not None:
                cross.require("cross")
        except ConfigError as error:  # a mixer does not know that it is the cross mixer
            raise ConfigError(error.reason, re.sub(r"^mixer\b", "cross_mixer", error.path)) from None
        return Block(self, shape, mixer, cross_mixer, mode)

    def build_adapter(self, name: Sublayer, sublayer: nn.Module, shape: Shape) -> Adapter | None:
        """Hook: adapts a sublayer, and returns the adapter whose output is added to the sublayer's output, as
        ``AdapterConfig.build`` does, which is called by default. A family may choose by sublayer and by layer."""
        return None if self.adapter is None else self.adapter.build(name, sublayer, shape)


class TwoStreamOutput(NamedTuple):
    """The outputs of a content stream and of a query stream, the sums of the blocks' losses by name, and the state
    after the segment, which is of content alone."""

    content: Float[Tensor, "b t d"]
    queries: Float[Tensor, "b m d"]
    aux: Mapping[str, Tensor]
    state: Any = None


class Branch(NamedTuple):
    """A sublayer of a block, its norm, and its adapter if it has one. All sublayers have the same signature; a cross
    mixer's state belongs to the source."""

    name: str
    sublayer: nn.Module
    norm: nn.Module
    adapter: Adapter | None


class Block(nn.Module):
    """Computes x + mix(norm(x)), or norm(x + mix(x)), and the same for the cross mixer and the feed-forward.

    The state is a dict from the name of each branch to that branch's state. recompute: whether training keeps the
    inputs of the layer alone and computes it again in the backward pass (arXiv:1604.06174), to the same bit.
    """

    def __init__(self, config: BlockConfig, shape: Shape, mixer: Mixer, cross: Mixer | None, mode: Mode) -> None:
        super().__init__()
        self.recompute = False
        self.pre, self.permuted = config.norm == "pre", mode == "permuted"
        self.mixer, self.mixer_norm = mixer, config.build_mixer_norm(shape)
        self.cross, self.cross_norm = cross, config.build_norm(shape.dim) if cross else None
        self.feedforward, self.feedforward_norm = config.feedforward.build(shape), config.build_norm(shape.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.mixer_adapter = config.build_adapter("mixer", mixer, shape)
        self.cross_adapter = config.build_adapter("cross", cross, shape) if cross else None
        self.feedforward_adapter = config.build_adapter("feedforward", self.feedforward, shape)

    def branches(self) -> Iterator[Branch]:
        """Yields the branches in the order in which they are computed."""
        yield Branch("mixer", self.mixer, self.mixer_norm, self.mixer_adapter)
        if self.cross is not None and self.cross_norm is not None:
            yield Branch("cross", self.cross, self.cross_norm, self.cross_adapter)
        yield Branch("feedforward", self.feedforward, self.feedforward_norm, self.feedforward_adapter)

    def forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any = None) -> MixerOutput:
        return self._run(self._forward, x, ctx, state)

    def _run(self, compute: Callable[..., Output], *inputs: Any) -> Output:
        """Computes the layer, and in training again in the backward pass where it is to be recomputed."""
        if not (self.recompute and self.training and torch.is_grad_enabled()):
            return compute(*inputs)
        output: Output = checkpoint(compute, *inputs, use_reentrant=False)
        return output

    def _forward(self, x: Float[Tensor, "b t d"], ctx: Context, state: Any) -> MixerOutput:
        states: dict[str, Any] = {}
        aux: dict[str, Tensor] = {}
        for branch in self.branches():
            output = self.compute(branch, x, ctx, None if state is None else state[branch.name])
            x = self.add(branch, x, output.y)
            states[branch.name], aux = output.state, add_losses(aux, output.aux)
        return MixerOutput(x, states, aux)

    def compute(self, branch: Branch, x: Float[Tensor, "b t d"], ctx: Context, state: Any) -> MixerOutput:
        """Returns the vectors that a branch adds to the residual sum, with its state and its auxiliary losses. Raises
        ValueError for a context with a pattern where the block was not built to obey one."""
        self.require_permuted(ctx)
        if branch.name == "cross":
            ctx = with_fields(ctx, pattern=None)
        else:
            ctx = with_fields(ctx, source=None, source_padding_mask=None)
        x = self.before(branch, x)
        merged, ctx = side_by_side(x, ctx)
        if ctx.groups and not branch.sublayer.reads_groups:
            output = by_groups(branch.sublayer, merged, ctx)
        else:
            output = branch.sublayer(merged, ctx, state)
        return with_fields(output, y=self.after(branch, output.y.reshape(x.shape), x))

    @property
    def reads_first(self) -> bool:
        """Whether ``first_tokens`` can be computed."""
        return not self.permuted and self.cross is None and self.mixer.crosses_itself and self.feedforward.reads_groups

    def first_tokens(self, x: Float[Tensor, "b t d"], ctx: Context) -> Float[Tensor, "b 1 d"]:
        """Returns the output for the first token of each row alone, which sees the whole row (b, t, d) in both
        directions."""
        first, first_ctx = x[:, :1], ctx.of_first()
        for branch in self.branches():
            if branch.name == "mixer":
                rows = self.before(branch, x)
                crossed = with_fields(first_ctx, source=rows, source_padding_mask=ctx.padding_mask)
                y = self.after(branch, self.mixer(rows[:, :1], crossed).y, rows[:, :1])
            else:
                y = self.compute(branch, first, first_ctx, None).y
            first = self.add(branch, first, y)
        return first

    def require_permuted(self, ctx: Context) -> None:
        """Raises ValueError for a context with a pattern where the block was not built to obey one."""
        if ctx.pattern is not None and not self.permuted:
            raise ValueError(f"this block of {type(self.mixer).__name__} obeys no pattern: build it as permuted")

    def forward_with_queries(
        self, x: Float[Tensor, "b t d"], queries: QueryStream, ctx: Context, state: Any = None
    ) -> TwoStreamOutput:
        """Computes the layer for x, and for queries that read x in the mixer and are mapped as x is elsewhere."""
        return self._run(self._forward_with_queries, x, queries, ctx, state)

    def _forward_with_queries(
        self, x: Float[Tensor, "b t d"], queries: QueryStream, ctx: Context, state: Any
    ) -> TwoStreamOutput:
        self.require_permuted(ctx)
        vectors, query_ctx = queries.vectors, queries.context(ctx)
        states: dict[str, Any] = {}
        aux: dict[str, Tensor] = {}
        for branch in self.branches():
            before = None if state is None else state[branch.name]
            if branch.name == "mixer":
                inner = with_fields(ctx, source=None, source_padding_mask=None)
                content, read = self.before(branch, x), with_fields(queries, vectors=self.before(branch, vectors))
                output, of_queries = self.mixer.forward_with_queries(content, read, inner, before)
                output = with_fields(output, y=self.after(branch, output.y, content))
                query_output = MixerOutput(self.after(branch, of_queries, read.vectors))
            else:
                output, query_output = (
                    self.compute(branch, stream, stream_ctx, before)
                    for stream, stream_ctx in ((x, ctx), (vectors, query_ctx))
                )
            x, vectors = self.add(branch, x, output.y), self.add(branch, vectors, query_output.y)
            states[branch.name] = output.state
            aux = add_losses(add_losses(aux, output.aux), query_output.aux)
        return TwoStreamOutput(x, vectors, aux, states)

    def before(self, branch: Branch, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Returns the input of a sublayer, given the residual sum."""
        return branch.norm(x) if self.pre else x

    def after(self, branch: Branch, y: Float[Tensor, "b t d"], x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Returns the vectors that are added to the residual sum, given the output and the input of a sublayer."""
        if branch.adapter is not None:
            y = y + branch.adapter(x if branch.adapter.reads_input else y)
        return self.dropout(y)

    def add(self, branch: Branch, x: Float[Tensor, "b t d"], y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Returns the residual sum after a branch."""
        return x + y if self.pre else branch.norm(x + y)

    def flops(self, queries: int, remembered: int, causal: bool = True, source: int = 0) -> int:
        """Forward FLOPs for one sequence; a cross mixer reads ``source`` tokens."""
        cross_flops = 0 if self.cross is None else self.cross.cross_flops(queries, source)
        adapter_flops = sum(branch.adapter.flops(queries) for branch in self.branches() if branch.adapter is not None)
        mixer_flops = self.mixer.flops(queries, remembered, causal)
        return mixer_flops + cross_flops + self.feedforward.flops(queries) + adapter_flops

    def query_flops(self, queries: int, length: int, remembered: int = 0) -> int:
        """Returns the forward FLOPs that a stream of n queries in a row of ``length`` tokens adds to ``flops``."""
        adapter_flops = sum(branch.adapter.flops(queries) for branch in self.branches() if branch.adapter is not None)
        of_mixer = self.mixer.query_flops(queries, length, remembered)
        return of_mixer + self.feedforward.flops(queries) + adapter_flops


def side_by_side(x: Float[Tensor, "b t d"], ctx: Context) -> tuple[Float[Tensor, "n r d"], Context]:
    """Merges the rows that read the same source (the hypotheses of a search) into one row. A cross mixer treats each
    position independently, so neither the source nor its projections need be copied for each hypothesis."""
    if ctx.source is None or ctx.source.size(0) == x.size(0):
        return x, ctx
    rows = ctx.source.size(0)
    padding_mask = None if ctx.padding_mask is None else ctx.padding_mask.reshape(rows, -1)
    return x.reshape(rows, -1, x.size(-1)), with_fields(
        ctx, positions=ctx.positions.reshape(rows, -1), padding_mask=padding_mask, start=None
    )


def by_groups(sublayer: nn.Module, x: Float[Tensor, "1 n d"], ctx: Context) -> MixerOutput:
    """Computes a sublayer for each group of rows without padding."""
    outputs: list[MixerOutput] = [sublayer(group.of(x), ctx.of_group(group)) for group in ctx.groups]
    y = torch.cat([output.y.flatten(0, 1) for output in outputs])[None]
    return MixerOutput(y, None, mean_losses(ctx.groups, [output.aux for output in outputs]))


def add_losses(first: Any, second: Any) -> dict[str, Tensor]:
    """Returns the sum of two sets of named losses, name by name."""
    totals = dict(first)
    for name, loss in second.items():
        totals[name] = totals[name] + loss if name in totals else loss
    return totals
