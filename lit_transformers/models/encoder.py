"""Encoders of whole rows: bidirectional (Devlin et al. 2019, arXiv:1810.04805), with the embeddings of ALBERT and
ELECTRA, with the second stream of XLNet (Yang et al. 2019, arXiv:1906.08237), or causal; and DeFormer (Cao et al. 2020,
arXiv:2005.00697), an encoder whose lower layers read the two texts of a row apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.activations import Activation, activation
from lit_transformers.attention.patterns import Ordered
from lit_transformers.batch import DataDescription, LabelledDescription, MixedDescription, RowDescription
from lit_transformers.checked_files import Precision, VectorLayout
from lit_transformers.config import ConfigError, LowerLayers, NonNegative, Positive, Segments, Width, field_types
from lit_transformers.encodings.positions import LearnedConfig, SinusoidalConfig
from lit_transformers.mixer import Context, Mode, Shape
from lit_transformers.mixers.qkv import EncodedConfig
from lit_transformers.models.capabilities import (
    CACHED_LAYERS,
    LayerOutputs,
    LowerStates,
    OrderedOutput,
    OrderedRows,
    RowModelConfig,
    RowNetwork,
    every_layer,
)
from lit_transformers.models.model import ModelOutput
from lit_transformers.models.two_texts import Division, joined_masks, mean_losses
from lit_transformers.named_tuples import with_fields
from lit_transformers.stacks import Stack, StackInput, StackOutput
from lit_transformers.stacks.block import add_losses
from lit_transformers.stacks.unpadded import pass_without_padding


class EncoderConfig(RowModelConfig, kind="encoder"):
    """An encoder that reads a whole row at once.

    extra_tokens: number of learned vectors that are put before each row as marked tokens and removed from the output,
    as in BigBird's ETC (arXiv:2007.14062, section 2).
    segments: number of learned segment vectors; the vector of its segment is added to each symbol (arXiv:1810.04805,
    figure 2); 0 for none. embedding_norm: whether the sum of symbols, positions and segments is normalised, as in
    BERT's code. embedding_dim: width of that sum, which a linear map takes to ``dim`` (arXiv:1909.11942, section 3.1);
    None for ``dim``.
    transform: the activation of a linear map with a layer norm between the last layer and the softmax, as in BERT's
    code; None: the softmax reads the last layer. transform_bias: whether that map has a bias.
    query_stream: the stream that predicts symbols in an order of their row. learned: a second stream through the same
    weights, which begins as one learned vector and knows its position only (arXiv:1906.08237, section 2.3). content:
    the stream that reads the symbols; it sees the symbols that it predicts, as its gate reports. none: symbols are not
    predicted in an order.
    causal: whether each symbol sees only itself and earlier symbols, the left-to-right model of arXiv:1810.04805,
    section 5.1.
    """

    gates: ClassVar[str] = "lit_transformers.gates.gates:BIDIRECTIONAL"

    extra_tokens: NonNegative = 0
    segments: Annotated[NonNegative, Segments] = 0
    embedding_norm: bool = False
    embedding_dim: Annotated[Positive | None, Width] = None
    transform: Activation | None = None
    transform_bias: bool = True
    query_stream: Literal["none", "learned", "content"] = "none"
    causal: bool = False

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.embedding_dim is not None and self.transform is None:
            yield "embeddings of another width than the layers need a transform before the softmax; set it to gelu"
        if self.embedding_dim == 1:
            yield "the norm before the softmax makes one channel zero; set embedding_dim: 2 or more"
        per_layer = isinstance(self.positions, SinusoidalConfig | LearnedConfig) and self.positions.per_layer
        if self.embedding_dim is not None and per_layer:
            yield "positions that each layer adds are as wide as the layers; drop embedding_dim or positions.per_layer"
        if not self.transform_bias and self.transform is None:
            yield "transform_bias belongs to the map before the softmax, and transform is null"
        if self.query_stream != "none" and self.extra_tokens:
            yield "extra_tokens have no place in an order of the row; set extra_tokens: 0, or query_stream: none"
        if self.query_stream != "none" and self.causal:
            yield "a causal encoder has one order of its rows; set causal: false, or query_stream: none"
        if self.query_stream == "learned" and not self.stack.reads_queries:
            yield f"a {self.stack.kind} stack reads no second stream of queries; set stack: sequential"

    @property
    def first_sees_all(self) -> bool:
        return not self.causal

    @property
    def predicts_in_order(self) -> bool:
        return self.query_stream != "none"

    @property
    def restarts(self) -> bool:
        """Hook: whether positions begin again with the second segment. By default they do where data say so."""
        return False

    @property
    def embedding_width(self) -> int:
        """The channels of the embeddings, and of the vectors that the softmax reads."""
        return self.embedding_dim or self.dim

    def build(self, data: DataDescription) -> Encoder:
        return Encoder(self, data)

    def build_input(self, shape: Shape) -> StackInput:
        width = self.embedding_width
        positions = self.positions.build(with_fields(shape, dim=width)) if self.positions else None
        norm = self.build_norm(width) if self.embedding_norm else None
        widen = nn.Linear(width, self.dim) if self.embedding_dim else None
        return StackInput(positions, self.dropout, norm, widen)

    def build_transform(self) -> nn.Sequential | None:
        """Builds the map, activation and norm between the last layer and the softmax; None without ``transform``."""
        if self.transform is None:
            return None
        widths = self.dim, self.embedding_width
        linear = nn.Linear(*widths, bias=self.transform_bias)
        return nn.Sequential(linear, activation(self.transform), self.build_norm(self.embedding_width))


class Encoder(RowNetwork):
    """A network in which every position sees all positions of its row or, if it is causal, only itself and earlier
    ones."""

    def __init__(self, config: EncoderConfig, data: DataDescription) -> None:
        super().__init__()
        width = config.embedding_width
        self.tokens = config.tokens.build(data.vocabulary.size, width)
        self.padding_last = data.padding_last
        self.restarts = config.restarts or (isinstance(data, RowDescription) and data.restarts)
        has_encoding = isinstance(config.mixer, EncodedConfig) and config.mixer.encoding is not None
        self.unpadded = config.unpadded
        if self.unpadded and not self.padding_last:
            reason = "data.source.question_width puts padding between two texts"
            raise ConfigError(f"{reason}; set it to false", "model.unpadded")
        if self.restarts and (config.positions is None or has_encoding):
            raise ConfigError(
                "only positions that are added to symbols restart with a segment; set positions, and set "
                "mixer.encoding to null",
                "model",
            )
        self.query_stream = config.query_stream
        is_ordered = config.query_stream != "none" or (isinstance(data, RowDescription) and data.ordered)
        if is_ordered and config.causal:
            raise ConfigError("rows have one order; set causal: false, or drop data.attention_masks", "model.causal")
        self.causal = config.causal
        mode: Mode = "permuted" if is_ordered else "causal" if config.causal else "bidirectional"
        self.stack = config.build_stack(mode, data.length + config.extra_tokens)
        self.query = LearnedQuery(width) if config.query_stream == "learned" else None
        self.extra = nn.Embedding(config.extra_tokens, width) if config.extra_tokens else None
        self.segments = nn.Embedding(config.segments, width) if config.segments else None
        self.norm = config.final_norm()
        self.transform = config.build_transform()
        config.initialise(self, self.tokens)

    def forward(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None = None,
        marked: Bool[Tensor, "b t"] | None = None,
        segments: Int[Tensor, "b t"] | None = None,
        order: Int[Tensor, "b t"] | None = None,
        keep_layers: bool = False,
        lower: LowerStates | None = None,
        first: bool = False,
    ) -> ModelOutput:
        """Maps symbols (b, t) to hidden (b, t, d). keep_layers: also return the outputs of all layers. first: return
        hidden (b, 1, d) of the first symbols alone, of a network that ``reads_first``. For the other arguments see
        ``read_row`` and ``read_ordered``."""
        x = self.embed(symbols, segments) if lower is None else lower.states
        if self.extra is not None:
            rows, extra = symbols.size(0), self.extra.weight.size(0)
            x = torch.cat([self.extra.weight.to(x.dtype).expand(rows, -1, -1), x], dim=1)
            padding_mask = None if padding_mask is None else F.pad(padding_mask, (extra, 0), value=True)
            marked = torch.zeros_like(symbols, dtype=torch.bool) if marked is None else marked
            marked = F.pad(marked, (extra, 0), value=True)
            order = None if order is None else F.pad(order, (extra, 0), value=0)
        positions = torch.arange(x.size(1), device=x.device).expand(x.size(0), -1)
        if segments is not None:
            segments = F.pad(segments, (x.size(1) - symbols.size(1), 0))
            positions = positions - second_segments(segments) if self.restarts else positions
        pattern = None if order is None else Ordered(order, itself=True)
        ctx = Context(
            positions,
            causal=self.causal,
            padding_mask=padding_mask,
            marked=marked,
            segments=segments,
            pattern=pattern,
            start=None if self.restarts else 0,
            last=x.size(1) - 1,
            padding_last=self.padding_last,
        )
        if first:
            output = self.first_tokens(x, ctx)
        elif lower is None:
            output = self.pass_layers(x, ctx, keep_layers)
        else:
            output = self.through(self.stack.split(lower.layers)[1], x, ctx, keep_layers)
        extra = x.size(1) - symbols.size(1)
        layers = tuple(layer[:, extra:] for layer in output.hidden)
        embedded = None if output.entered is None else output.entered[:, extra:]
        return ModelOutput(self.norm(output.y)[:, extra:], None, dict(output.aux), layers, embedded=embedded)

    def pass_layers(self, x: Float[Tensor, "b t e"], ctx: Context, keep_hidden: bool = False) -> StackOutput:
        """Hook: passes embedded rows (b, t, e) through all layers. By default every layer reads the whole row."""
        return self.through(self.stack, x, ctx, keep_hidden)

    @property
    def reads_first(self) -> bool:
        """Whether the last layer can compute the output for the first token of each row alone."""
        is_whole = not (self.causal or self.apart) and self.extra is None
        return is_whole and self.stack.reads_first

    def first_tokens(self, x: Float[Tensor, "b t e"], ctx: Context) -> StackOutput:
        """Passes embedded rows (b, t, e) through all layers, the first token of each row alone through the last one.
        Its output has the shape (b, 1, d)."""
        lower, last = self.stack.split(len(self.stack.steps()) - 1)
        output = self.through(lower, x, ctx, keep_hidden=False)
        return with_fields(output, y=last.first_tokens(output.y, ctx))

    def through(self, stack: Stack, x: Float[Tensor, "b t d"], ctx: Context, keep_hidden: bool) -> StackOutput:
        """Passes rows (b, t, d) through a stack, without their padding if the config says so."""
        if self.unpadded:
            return pass_without_padding(stack, x, ctx, keep_hidden)
        output: StackOutput = stack(x, ctx, keep_hidden=keep_hidden)
        return output

    def read_row(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> ModelOutput:
        output: ModelOutput = self(symbols, padding_mask, marked, segments)
        return output

    def read_first(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> ModelOutput:
        if not self.reads_first:
            return super().read_first(symbols, padding_mask, marked, segments)
        output: ModelOutput = self(symbols, padding_mask, marked, segments, first=True)
        return output

    def read_layers(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> LayerOutputs:
        output: ModelOutput = self(symbols, padding_mask, marked, segments, keep_layers=True)
        return every_layer(output)

    def read_upper_layers(
        self,
        lower: LowerStates,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> LayerOutputs:
        output: ModelOutput = self(symbols, padding_mask, marked, segments, keep_layers=True, lower=lower)
        return LayerOutputs((lower.states, *output.layers, output.hidden), output.aux)

    def require_division(self, layers: int) -> None:
        if self.extra is not None:
            raise ConfigError("model.extra_tokens have no place in cached rows; set one of both to 0", CACHED_LAYERS)
        if layers < self.apart:
            reason = f"{self.apart} layers read the two texts of a row apart"
            raise ConfigError(f"{reason}; set it to {self.apart} or more, or to 0", CACHED_LAYERS)
        self.stack.split(layers)

    def read_ordered(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None,
        order: Int[Tensor, "b t"],
    ) -> ModelOutput:
        output: ModelOutput = self(symbols, padding_mask, marked, segments, order)
        return output

    def read_in_order(self, rows: OrderedRows, state: Any = None) -> OrderedOutput:
        if self.query_stream == "none":
            raise ConfigError("predicts in no order of its rows; set it to learned", "model.query_stream")
        x = self.embed(rows.symbols, rows.segments)
        positions = torch.arange(x.size(1), device=x.device).expand(x.size(0), -1)
        positions = positions.flip(1) if rows.backward else positions
        ctx = Context(positions, False, rows.padding_mask, marked=rows.marked, segments=rows.segments)
        ctx = with_fields(ctx, reused=rows.reused, backward=rows.backward, unbroken=rows.unbroken)
        if self.query is None:
            output = self.stack(x, with_fields(ctx, pattern=Ordered(rows.places, itself=True)), state)
            hidden = output.y.gather(1, rows.at[..., None].expand(-1, -1, output.y.size(-1)))
            return OrderedOutput(self.norm(hidden), self.norm(output.y), output.state, dict(output.aux))
        queries = self.query(rows.at, rows.segments, self.segments)
        streams = self.stack.forward_with_queries(x, queries, ctx, rows.places, rows.at, state)
        hidden, content = self.norm(streams.queries), self.norm(streams.content)
        return OrderedOutput(hidden, content, streams.state, dict(streams.aux))

    def order_only(self) -> list[nn.Parameter]:
        return [] if self.query is None else [*self.query.parameters()]

    def in_order_flops(self, length: int, predictions: int, remembered: int = 0) -> int:
        if self.query is None:
            return 0
        widen = self.stack.entry.widen
        of_entry = 0 if widen is None else linear_flops(widen, predictions)
        return self.stack.query_flops(predictions, length, remembered) + of_entry

    def embed(self, symbols: Int[Tensor, "b t"], segments: Int[Tensor, "b t"] | None) -> Float[Tensor, "b t e"]:
        """Returns the embeddings (b, t, e) of symbols, plus the vectors of their segments if the network has any."""
        x = self.tokens.embed(symbols)
        if self.segments is None:
            return x
        vectors: Tensor = x + self.segments(torch.zeros_like(symbols) if segments is None else segments)
        return vectors

    def predict(self, hidden: Float[Tensor, "*n d"]) -> Float[Tensor, "*n e"]:
        return hidden if self.transform is None else self.transform(hidden)

    def predict_flops(self, length: int) -> int:
        return 0 if self.transform is None else linear_flops(self.transform[0], length)

    def share_embeddings(self, other: RowNetwork) -> None:
        if not isinstance(other, Encoder) or other.embedding_shapes() != self.embedding_shapes():
            raise ConfigError(
                "networks that share embeddings need the same embedding_dim, positions and segments", "model"
            )
        self.tokens, self.segments = other.tokens, other.segments
        self.stack.entry.positions, self.stack.entry.norm = other.stack.entry.positions, other.stack.entry.norm

    def keep_layers(self, layers: int) -> None:
        self.stack = self.stack.split(layers)[0] if layers else self.stack.without_steps()
        self.norm = nn.Identity()

    def embedding_shapes(self) -> dict[str, torch.Size]:
        """Returns the shapes of the weights that embed symbols, segments and positions, by name."""
        parts = (self.tokens, self.segments, self.stack.entry.positions, self.stack.entry.norm)
        weights = nn.ModuleList(nn.Identity() if part is None else part for part in parts).named_parameters()
        return {name: weight.shape for name, weight in weights}

    def prediction_only(self) -> list[nn.Parameter]:
        parts = [part for part in (self.transform, self.query) if part is not None]
        return [*self.tokens.softmax_only(), *(parameter for part in parts for parameter in part.parameters())]

    def flops(self, length: int, remembered: int = 0, source: int = 0) -> int:
        """As in ``Network.flops``, without the output layer, which belongs to the objective."""
        positions = length + (0 if self.extra is None else self.extra.weight.size(0))
        widen = self.stack.entry.widen
        return self.layer_flops(positions, remembered) + (0 if widen is None else linear_flops(widen, positions))

    def layer_flops(self, length: int, remembered: int) -> int:
        """Hook: returns the forward FLOPs of all layers for a row of ``length`` tokens. By default every layer reads
        the whole row."""
        return self.stack.flops(length, remembered, causal=self.causal)

    def softmax_flops(self, length: int) -> int:
        return 0


class DeFormerConfig(EncoderConfig, kind="deformer"):
    """An encoder whose lower layers read the two texts of a row apart: in these layers no token sees the other text
    (Cao et al. 2020, arXiv:2005.00697, section 3). The upper layers read the whole row. All layers read a row of one
    text as in ``encoder``.

    apart: number of lower layers that read the two texts apart, k in the paper. 0: the same network as ``encoder``.
    ``depth``: two encoders with the same weights.
    passage_positions: the position at which the second text begins, in all layers. keep: its place in the row; the
    states of a passage are then independent of its question only if all second texts begin at the same place
    (``data.source.question_width``). restart: 0, as in the authors' code; an ``encoder`` has no such rows.
    passage_states: the precision in which the upper layers read the states of the second text, as the command
    ``encode`` writes them: int8 has a scale for each channel of each text. Gradients pass as if nothing was rounded.
    """

    gates: ClassVar[str] = "lit_transformers.gates.gates:DIVIDED"

    apart: Annotated[NonNegative, LowerLayers] = 0
    passage_positions: Literal["keep", "restart"] = "keep"
    passage_states: Precision = "float32"

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.apart > self.depth:
            yield f"apart: {self.apart} of {self.depth} layers cannot read texts apart; set it to {self.depth} or fewer"
        if self.apart and self.extra_tokens:
            yield "extra_tokens see both texts, which the lower layers read apart; set extra_tokens: 0, or apart: 0"
        if self.unpadded:
            yield "unpadded: true reads rows whole, and a deformer divides them; set it to false, or kind to encoder"
        if self.apart and self.query_stream != "none":
            yield "query_stream follows an order that spans both texts; set query_stream: none, or apart: 0"
        if self.passage_states != "float32" and not self.apart:
            yield f"passage_states: {self.passage_states} rounds states of lower layers; set apart: 1 or more"
        if self.passage_states == "int8" and self.causal:
            yield "passage_states: int8 has scales of whole texts, which show later symbols; set it to bfloat16"

    def origin(self) -> EncoderConfig:
        return EncoderConfig(**{name: getattr(self, name) for name in field_types(EncoderConfig)})

    def beyond_origin(self) -> str:
        if self.apart:
            return f"apart: {self.apart} of its layers read two texts apart"
        return "passage_positions: restart begins the positions of the second text at 0" if self.restarts else ""

    @property
    def restarts(self) -> bool:
        return self.passage_positions == "restart"

    def passage_bytes(self, tokens: int) -> int | None:
        return VectorLayout(self.passage_states, self.dim).size(tokens) if self.apart else None

    def build(self, data: DataDescription) -> DeFormer:
        return DeFormer(self, data)


class DeFormer(Encoder):
    """An encoder whose lower layers read two texts apart, and whose upper layers read both together
    (arXiv:2005.00697).

    ``parts``: the stack of the lower layers and the stack of the upper layers. Both share the weights of ``stack``.
    A stack without layers is None.
    """

    parts: tuple[Stack | None, Stack | None]

    def __init__(self, config: DeFormerConfig, data: DataDescription) -> None:
        super().__init__(config, data)
        if config.apart and isinstance(data, RowDescription) and data.ordered:
            reason = "data.attention_masks order a row across both texts; set apart: 0, or drop data.attention_masks"
            raise ConfigError(reason, "model.apart")
        labelled = data if isinstance(data, LabelledDescription | MixedDescription) else None
        self.apart, self.question_width = config.apart, None if labelled is None else labelled.question_width
        self.written = VectorLayout(config.passage_states, config.dim)
        described = data if isinstance(data, RowDescription) else labelled
        self.has_two_texts = described is not None and described.segments > 1
        self.parts = self.divided()

    def divided(self) -> tuple[Stack | None, Stack | None]:
        """Returns the stack of the lower layers and the stack of the upper layers; None for no layers. Raises
        ConfigError if the stack cannot be divided."""
        if self.apart == 0:
            return None, self.stack
        return self.stack.split(self.apart) if self.apart < len(self.stack.steps()) else (self.stack, None)

    def keep_layers(self, layers: int) -> None:
        super().keep_layers(layers)
        self.apart = min(self.apart, layers)
        self.parts = self.divided()

    def pass_layers(self, x: Float[Tensor, "b t e"], ctx: Context, keep_hidden: bool = False) -> StackOutput:
        if self.apart == 0 or ctx.segments is None:
            return super().pass_layers(x, ctx, keep_hidden)
        division = self.division(x, ctx.segments)
        ctx = with_fields(ctx, offset=self.stack.entry.offsets(ctx.positions) if ctx.offset is None else ctx.offset)
        lower = self.read_apart(x, ctx, division, keep_hidden)
        return self.read_jointly(lower, ctx, keep_hidden)

    def division(self, x: Float[Tensor, "b t e"], segments: Int[Tensor, "b t"]) -> Division:
        """Returns the division of rows into two texts: at ``question_width`` of the data, else at the second segment
        (b, t) of each row."""
        length = x.size(1)
        if self.question_width is not None and self.question_width < length:
            return Division(length, self.question_width, length - self.question_width)
        return Division.of(segments)

    def read_apart(
        self, x: Float[Tensor, "b t e"], ctx: Context, division: Division, keep_hidden: bool = False
    ) -> StackOutput:
        """Passes the two texts of rows (b, t, e) through the lower layers, and returns their output joined to rows
        (b, t, d)."""
        lower, _ = self.parts
        assert lower is not None
        texts = [division.part(number, x) for number in (0, 1)]
        contexts = [division.context(number, ctx) for number in (0, 1)]
        outputs = [lower(*read, keep_hidden=keep_hidden) for read in zip(texts, contexts, strict=True)]
        first, second = outputs
        hidden = tuple(division.joined(*layer) for layer in zip(first.hidden, second.hidden, strict=True))
        entered = None
        if first.entered is not None and second.entered is not None:
            entered = division.joined(first.entered, second.entered)
        passage = self.written.rounded(second.y, contexts[1].padding_mask)
        return StackOutput(division.joined(first.y, passage), (), mean_losses(outputs, contexts), hidden, entered)

    def read_jointly(self, lower: StackOutput, ctx: Context, keep_hidden: bool = False) -> StackOutput:
        """Passes rows through the upper layers, given the output of the lower layers."""
        _, upper = self.parts
        if upper is None:
            return lower
        output: StackOutput = upper(lower.y, ctx, keep_hidden=keep_hidden)
        hidden = (*lower.hidden, lower.y, *output.hidden) if keep_hidden else ()
        return with_fields(output, aux=add_losses(lower.aux, output.aux), hidden=hidden, entered=lower.entered)

    def lower_states(
        self, symbols: Int[Tensor, "b p"], padding_mask: Bool[Tensor, "b p"] | None = None
    ) -> Float[Tensor, "b p d"]:
        return self.text_states(1, symbols, padding_mask)

    def question_states(
        self, questions: Int[Tensor, "b w"], padding_mask: Bool[Tensor, "b w"] | None = None
    ) -> Float[Tensor, "b w d"]:
        return self.text_states(0, questions, padding_mask)

    def text_states(
        self, number: int, symbols: Int[Tensor, "b s"], padding_mask: Bool[Tensor, "b s"] | None
    ) -> Float[Tensor, "b s d"]:
        """Returns the states (b, s, d) of text 0 or 1 of rows above the lower layers. Raises ConfigError if no layer
        reads texts apart, or if the positions of passages depend on questions."""
        lower, _ = self.parts
        if lower is None:
            raise ConfigError("no layer reads a passage apart from its question; set apart: 1 or more", "model.apart")
        start, places = self.passage_start() if number else 0, torch.arange(symbols.size(1), device=symbols.device)
        segments = torch.full_like(symbols, number) if padding_mask is None else number * padding_mask.long()
        positions, marked = ((start + places).expand_as(symbols), ((places == 0) & (number == 0)).expand_as(symbols))
        ctx = Context(positions, self.causal, padding_mask, marked=marked, segments=segments)
        output: StackOutput = lower(self.embed(symbols, segments), with_fields(ctx, start=start, padding_last=True))
        return output.y

    def lower_part(self) -> nn.Module:
        parts = {"tokens": self.tokens, "segments": self.segments, "lower": self.parts[0]}
        return nn.ModuleDict({name: part for name, part in parts.items() if part is not None})

    def read_states(
        self,
        questions: Float[Tensor, "b w d"],
        padding_mask: Bool[Tensor, "b w"] | None,
        states: Float[Tensor, "b p d"],
        states_mask: Bool[Tensor, "b p"] | None = None,
    ) -> ModelOutput:
        width, start = questions.size(1), self.passage_start()
        if not (self.restarts or width == start):
            reason = f"passages begin at {start}, and questions have {width} symbols with their padding"
            raise ConfigError(reason, "data.source.question_width")
        states = self.written.rounded(states, states_mask)
        joined = torch.cat([questions, states.to(questions.dtype)], dim=1)
        places = torch.arange(joined.size(1), device=joined.device).expand(len(joined), -1)
        is_second, real = places >= width, joined_masks((questions, padding_mask), (states, states_mask))
        segments = (is_second if real is None else is_second & real).long()
        positions, begin = places - (width - start) * is_second, None if self.restarts else 0
        ctx = Context(
            positions, self.causal, real, marked=places == 0, segments=segments, start=begin, last=places.size(1) - 1
        )
        output = self.read_jointly(StackOutput(joined, (), {}), ctx)
        return ModelOutput(self.norm(output.y), None, dict(output.aux))

    def passage_start(self) -> int:
        """Returns the position of the first symbol of every passage. Raises ConfigError if it depends on the
        question."""
        if self.restarts:
            return 0
        if self.question_width is None:
            reason = "the positions of a passage depend on the length of its question; set a width"
            raise ConfigError(f"{reason}, or model.passage_positions: restart", "data.source.question_width")
        return self.question_width

    def layer_flops(self, length: int, remembered: int) -> int:
        """As in ``Encoder.layer_flops``. The first of two texts has ``question_width`` tokens, or half of the row."""
        if self.apart == 0 or not self.has_two_texts:
            return super().layer_flops(length, remembered)
        width = min(length // 2 if self.question_width is None else self.question_width, length)
        lower, upper = self.parts
        apart = 0 if lower is None else sum(lower.flops(size, 0, self.causal) for size in (width, length - width))
        return apart + (0 if upper is None else upper.flops(length, remembered, self.causal))


def second_segments(segments: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """Returns, for each symbol (b, t), the place at which the second segment of its row begins; 0 for symbols outside
    the second segment."""
    is_second = segments == 1
    return is_second.long().argmax(dim=1, keepdim=True) * is_second


class LearnedQuery(nn.Module):
    """The learned vector with which every query of a second stream begins, w of arXiv:1906.08237, section 2.3."""

    role: ClassVar[str] = "embeddings"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(
        self, at: Int[Tensor, "b m"], segments: Int[Tensor, "b t"] | None, of_segments: nn.Embedding | None
    ) -> Float[Tensor, "b m e"]:
        """Returns the queries (b, m, e) at positions ``at``, plus the vectors of their segments if ``of_segments`` is
        given."""
        queries = self.weight.expand(*at.shape, -1)
        if of_segments is None:
            return queries
        numbers = torch.zeros_like(at) if segments is None else segments.gather(1, at)
        return queries + of_segments(numbers).to(queries.dtype)


def linear_flops(module: nn.Module, queries: int) -> int:
    """Returns the forward FLOPs of a linear map for ``queries`` vectors."""
    assert isinstance(module, nn.Linear)
    return 2 * queries * module.in_features * module.out_features
