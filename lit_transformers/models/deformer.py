"""DeFormer (Cao et al. 2020, arXiv:2005.00697): a question and a passage pass the lower layers of an encoder apart, so
that the states of passages can be computed once, and the layers above them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.batch import DataDescription, LabelledDescription, MixedDescription, RowDescription
from lit_transformers.config import ConfigError, LowerLayers, NonNegative
from lit_transformers.host import reads_at_once
from lit_transformers.mixer import Context
from lit_transformers.models.encoder import Encoder, EncoderConfig
from lit_transformers.models.model import ModelOutput
from lit_transformers.named_tuples import with_fields
from lit_transformers.stacks import Stack, StackOutput
from lit_transformers.stacks.block import add_losses


class DeFormerConfig(EncoderConfig, kind="deformer"):
    """An encoder whose lower layers read the two texts of a row apart: no token sees the other text there (Cao et al.
    2020, arXiv:2005.00697, section 3). A row of one text passes all layers, as in an encoder.

    apart: the number of the lowest layers that read both texts apart, k in the paper. 0: the encoder; as many as there
    are layers: two encoders with the same weights.
    passage_positions: where the positions of the second text begin, in all layers. keep: at its place in the row, so
    that the states of a passage can be computed before its question is known only if every second text begins at one
    place (``data.source.question_width``). restart: at 0, as in the authors' code, which is no encoder's row.
    """

    gates: ClassVar[str] = "lit_transformers.gates.gates:DIVIDED"

    apart: Annotated[NonNegative, LowerLayers] = 0
    passage_positions: Literal["keep", "restart"] = "keep"

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.apart > self.depth:
            yield f"apart: {self.apart} of {self.depth} layers cannot read texts apart; set it to {self.depth} or fewer"
        if self.apart and self.extra_tokens:
            yield "extra_tokens see both texts, which the lower layers read apart; set extra_tokens: 0, or apart: 0"
        if self.apart and self.query_stream != "none":
            yield "an order of a row runs through both texts; set query_stream: none, or apart: 0"

    @property
    def restarts(self) -> bool:
        return self.passage_positions == "restart"

    def build(self, data: DataDescription) -> DeFormer:
        return DeFormer(self, data)


class DeFormer(Encoder):
    """An encoder whose lower layers read two texts apart, and whose upper layers read both together.

    ``parts``: the stack of the lower layers, and that of the upper ones, which share the weights of ``stack``; None
    where there are none.
    """

    parts: tuple[Stack | None, Stack | None]

    def __init__(self, config: DeFormerConfig, data: DataDescription) -> None:
        super().__init__(config, data)
        if config.apart and isinstance(data, RowDescription) and data.ordered:
            reason = "an order of a row runs through both texts; set apart: 0, or drop data.attention_masks"
            raise ConfigError(reason, "model.apart")
        self.apart, self.question_width, self.has_two_texts = config.apart, None, False
        if isinstance(data, LabelledDescription | MixedDescription):
            self.question_width = data.question_width
        if isinstance(data, LabelledDescription | MixedDescription | RowDescription):
            self.has_two_texts = data.segments > 1
        self.parts = self.divided()

    def divided(self) -> tuple[Stack | None, Stack | None]:
        """Returns the lower and the upper layers. Raises ConfigError where the stack cannot be divided there."""
        if self.apart == 0:
            return None, self.stack
        return self.stack.split(self.apart) if self.apart < len(self.stack.steps()) else (self.stack, None)

    def keep_layers(self, layers: int) -> None:
        super().keep_layers(layers)
        self.apart = min(self.apart, layers)
        self.parts = self.divided()

    def pass_layers(self, x: Float[Tensor, "b t e"], ctx: Context, keep_hidden: bool = False) -> StackOutput:
        if self.apart == 0 or ctx.segments is None:
            output: StackOutput = self.stack(x, ctx, keep_hidden=keep_hidden)
            return output
        ctx = with_fields(ctx, offset=self.stack.entry.offsets(ctx.positions) if ctx.offset is None else ctx.offset)
        division = self.division(x, ctx.segments)
        lower = self.read_apart(x, ctx, division, keep_hidden)
        return self.read_jointly(lower, ctx, keep_hidden)

    def division(self, x: Float[Tensor, "b t e"], segments: Int[Tensor, "b t"]) -> Division:
        """Returns how rows divide into texts: where the data say that every second text begins, or where the segments
        do."""
        length = x.size(1)
        if self.question_width is not None:
            return Division(length, self.question_width, length - self.question_width)
        is_second = segments == 1
        starts = torch.where(is_second.any(dim=1), is_second.long().argmax(dim=1), length)
        if not reads_at_once(starts):
            return Division(length, length, length, starts)
        return Division(length, max(1, int(starts.max())), max(1, length - int(starts.min())), starts)

    def read_apart(
        self, x: Float[Tensor, "b t e"], ctx: Context, division: Division, keep_hidden: bool = False
    ) -> StackOutput:
        """Passes both texts of rows through the lower layers, and returns what these make of the rows."""
        lower, _ = self.parts
        assert lower is not None
        texts = [division.part(number, x) for number in (0, 1)]
        contexts = [division.context(number, ctx) for number in (0, 1)]
        outputs = [lower(*read, keep_hidden=keep_hidden) for read in zip(texts, contexts, strict=True)]
        first, second = outputs
        hidden = tuple(division.joined(*layer) for layer in zip(first.hidden, second.hidden, strict=True))
        entered = division.joined(first.entered, second.entered) if keep_hidden else None
        return StackOutput(division.joined(first.y, second.y), (), mean_losses(outputs, contexts), hidden, entered)

    def read_jointly(self, lower: StackOutput, ctx: Context, keep_hidden: bool = False) -> StackOutput:
        """Passes rows through the upper layers, given what the lower ones make of them."""
        _, upper = self.parts
        if upper is None:
            return lower
        output: StackOutput = upper(lower.y, ctx, keep_hidden=keep_hidden)
        hidden = (*lower.hidden, lower.y, *output.hidden) if keep_hidden else ()
        return with_fields(output, aux=add_losses(lower.aux, output.aux), hidden=hidden, entered=lower.entered)

    def lower_states(
        self, symbols: Int[Tensor, "b p"], padding_mask: Bool[Tensor, "b p"] | None = None
    ) -> Float[Tensor, "b p d"]:
        """As in ``RowNetwork.lower_states``. ``padding_mask`` is True at real symbols and False at padding, which is at
        the end. Raises ConfigError where no layer reads passages apart, or their states depend on the questions before
        them."""
        lower, _ = self.parts
        if lower is None:
            raise ConfigError("no layer reads a passage apart from its question; set apart: 1 or more", "model.apart")
        start = self.passage_start()
        segments = torch.ones_like(symbols) if padding_mask is None else padding_mask.long()
        positions = (start + torch.arange(symbols.size(1), device=symbols.device)).expand_as(symbols)
        nothing = torch.zeros_like(symbols, dtype=torch.bool)
        ctx = Context(positions, self.causal, padding_mask, marked=nothing, segments=segments)
        output: StackOutput = lower(self.embed(symbols, segments), with_fields(ctx, start=start, padding_last=True))
        return output.y

    def lower_part(self) -> nn.Module:
        lower, _ = self.parts
        parts = {"tokens": self.tokens, "segments": self.segments, "lower": lower}
        return nn.ModuleDict({name: part for name, part in parts.items() if part is not None})

    def read_with(
        self,
        questions: Int[Tensor, "b w"],
        padding_mask: Bool[Tensor, "b w"] | None,
        states: Float[Tensor, "b p d"],
        states_mask: Bool[Tensor, "b p"] | None = None,
    ) -> ModelOutput:
        """Reads questions, each with its [CLS] and [SEP], and passages of which ``lower_states`` are given: what
        ``read_row`` returns of the rows (b, w + p) of both. Masks are True at real symbols and False at padding, which
        is at the end of a text. Raises ConfigError where passages do not begin where they did before."""
        lower, _ = self.parts
        width, start = questions.size(1), self.passage_start()
        if lower is None or not (self.restarts or width == start):
            reason = f"passages begin at {start}, and questions have {width} symbols with their padding"
            raise ConfigError(reason, "data.source.question_width")
        places, masks = torch.arange(width + states.size(1), device=questions.device), (padding_mask, states_mask)
        is_second = (places >= width).expand(len(states), -1)
        real = None
        if padding_mask is not None or states_mask is not None:
            either = torch.ones_like(is_second).split([width, states.size(1)], dim=1)
            real = torch.cat([one if mask is None else mask for one, mask in zip(either, masks, strict=True)], dim=1)
        segments = (is_second if real is None else is_second & real).long()
        positions = places - (width - start) * is_second
        first, begin = (places == 0).expand_as(is_second), None if self.restarts else 0
        ctx = Context(positions, self.causal, real, marked=first, segments=segments, start=begin)
        division = Division(len(places), width, states.size(1))
        embedded = self.embed(questions, segments[:, :width])
        question: StackOutput = lower(embedded, division.context(0, ctx))
        joined = division.joined(question.y, states.to(question.y.dtype))
        output = self.read_jointly(StackOutput(joined, (), {}), ctx)
        return ModelOutput(self.norm(output.y), None, dict(output.aux))

    def passage_start(self) -> int:
        """Returns the position of the first symbol of every passage. Raises ConfigError where it is not one."""
        if self.restarts:
            return 0
        if self.question_width is None:
            reason = "passages begin behind questions of any length, on which their positions depend; set a width"
            raise ConfigError(f"{reason}, or model.passage_positions: restart", "data.source.question_width")
        return self.question_width

    def layer_flops(self, length: int, remembered: int) -> int:
        """As in ``Encoder.layer_flops``. Of two texts the first is as wide as the data say, or half of the row."""
        if self.apart == 0 or not self.has_two_texts:
            return self.stack.flops(length, remembered, causal=self.causal)
        width = min(length // 2 if self.question_width is None else self.question_width, length)
        lower, upper = self.parts
        apart = 0 if lower is None else sum(lower.flops(size, 0, self.causal) for size in (width, length - width))
        return apart + (0 if upper is None else upper.flops(length, remembered, self.causal))


class Division(NamedTuple):
    """How rows of ``length`` tokens divide into two texts.

    widths of the first and the second text with their padding; starts (b,): the place of the second text in each row;
    None where it is as far as the first is wide, in all rows.
    """

    length: int
    first: int
    second: int
    starts: Int[Tensor, " b"] | None = None

    def places(self, number: int) -> tuple[Int[Tensor, "b s"], Bool[Tensor, "b s"]]:
        """Returns the place in its row of each token of a text, 0 or 1, and which of these are tokens of the text."""
        assert self.starts is not None
        starts = self.starts[:, None]
        if number == 0:
            places = torch.arange(self.first, device=starts.device).expand(len(starts), -1)
            return places, places < starts
        places = starts + torch.arange(self.second, device=starts.device)
        return places.clamp(max=self.length - 1), places < self.length

    def part(self, number: int, row: Tensor) -> Tensor:
        """Returns what rows (b, t, ...) hold of a text (b, s, ...)."""
        if self.starts is None:
            return row[:, : self.first] if number == 0 else row[:, self.first :]
        places, _ = self.places(number)
        return row.gather(1, places) if row.dim() == 2 else row.gather(1, places[..., None].expand(-1, -1, row.size(2)))

    def context(self, number: int, ctx: Context) -> Context:
        """Returns the context of a text, given that of the rows."""
        positions, mask, marked, segments = (
            None if part is None else self.part(number, part)
            for part in (ctx.positions, ctx.padding_mask, ctx.marked, ctx.segments)
        )
        start = ctx.start
        if self.starts is not None:
            _, real = self.places(number)
            mask = real if mask is None else mask & real
            start = ctx.start if number == 0 else None
        elif number == 1 and start is not None:
            start += self.first
        assert positions is not None
        return with_fields(
            ctx,
            positions=positions,
            padding_mask=mask,
            marked=marked,
            segments=segments,
            start=start,
            padding_last=True,
        )

    def joined(self, first: Float[Tensor, "b s d"], second: Float[Tensor, "b r d"]) -> Float[Tensor, "b t d"]:
        """Returns the rows of which two texts are the parts."""
        both = torch.cat([first, second], dim=1)
        if self.starts is None:
            return both
        places, starts = torch.arange(self.length, device=both.device), self.starts[:, None]
        sources = torch.where(places < starts, places, self.first + places - starts)
        return both.gather(1, sources[..., None].expand(-1, -1, both.size(2)))


def mean_losses(outputs: Sequence[StackOutput], contexts: Sequence[Context]) -> Mapping[str, Tensor]:
    """Returns the losses of texts by name, each a mean over the real tokens of all of them."""
    counts = [ctx.positions.numel() if ctx.padding_mask is None else ctx.padding_mask.sum() for ctx in contexts]
    shares = [count / sum(counts) for count in counts]
    names = outputs[0].aux
    return {
        name: sum(share * output.aux[name] for share, output in zip(shares, outputs, strict=True)) for name in names
    }
