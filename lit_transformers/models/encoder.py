"""A bidirectional encoder (Devlin et al. 2019, arXiv:1810.04805), of ALBERT's and ELECTRA's embeddings too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_transformers.attention.patterns import Ordered
from lit_transformers.batch import DataDescription, RowDescription
from lit_transformers.config import ConfigError, NonNegative, Positive, Width
from lit_transformers.encodings.positions import LearnedConfig, SinusoidalConfig
from lit_transformers.mixer import Context, Mode, Shape
from lit_transformers.mixers.qkv import EncodedConfig
from lit_transformers.models.capabilities import RowModelConfig, RowNetwork
from lit_transformers.models.model import ModelOutput
from lit_transformers.stacks import StackInput
from lit_transformers.stacks.feedforward import Activation, activation


class EncoderConfig(RowModelConfig, kind="encoder"):
    """Reads a whole sequence at once.

    extra_tokens: learned vectors that are put before the sequence as marked tokens and removed from the output, as
    BigBird's ETC adds them for its global attention (arXiv:2007.14062, section 2).
    segments: number of learned vectors of which one is added to the symbols of each segment (arXiv:1810.04805, figure
    2); 0 for none. embedding_norm: whether the sum of symbols, positions and segments is normalised, as in BERT's code.
    embedding_dim: width of that sum, which is then mapped to ``dim`` (arXiv:1909.11942, section 3.1); None for ``dim``.
    transform: the activation of a map with a layer norm between the last layer and the softmax, as in BERT's code; None
    where the softmax reads the last layer.
    """

    gates: ClassVar[str] = "lit_transformers.checks.gates:BIDIRECTIONAL"
    first_sees_all: ClassVar[bool] = True

    extra_tokens: NonNegative = 0
    segments: NonNegative = 0
    embedding_norm: bool = False
    embedding_dim: Annotated[Positive | None, Width] = None
    transform: Activation | None = None

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if self.embedding_dim is not None and self.transform is None:
            yield "embeddings of another width than the layers need a transform before the softmax; set it to gelu"
        per_layer = isinstance(self.positions, SinusoidalConfig | LearnedConfig) and self.positions.per_layer
        if self.embedding_dim is not None and per_layer:
            yield "positions that each layer adds are as wide as the layers; drop embedding_dim or positions.per_layer"

    @property
    def embedding_width(self) -> int:
        """The channels of embeddings, and of what the softmax reads."""
        return self.embedding_dim or self.dim

    def build(self, data: DataDescription) -> Encoder:
        return Encoder(self, data)

    def build_input(self, shape: Shape) -> StackInput:
        width = self.embedding_width
        positions = self.positions.build(shape._replace(dim=width)) if self.positions else None
        norm = self.build_norm(width) if self.embedding_norm else None
        widen = nn.Linear(width, self.dim) if self.embedding_dim else None
        return StackInput(positions, self.dropout, norm, widen)


class Encoder(RowNetwork):
    """A network in which every position sees every other, so that a position is represented from both sides."""

    def __init__(self, config: EncoderConfig, data: DataDescription) -> None:
        super().__init__()
        width = config.embedding_width
        self.tokens = config.tokens.build(data.vocabulary.size, width)
        self.restarts = isinstance(data, RowDescription) and data.restarts
        has_encoding = isinstance(config.mixer, EncodedConfig) and config.mixer.encoding is not None
        if self.restarts and (config.positions is None or has_encoding):
            raise ConfigError(
                "positions that restart with a segment are those that are added to symbols; set positions, and "
                "mixer.encoding to null",
                "model",
            )
        mode: Mode = "permuted" if isinstance(data, RowDescription) and data.ordered else "bidirectional"
        self.stack = config.build_stack(mode, data.length + config.extra_tokens)
        self.extra = nn.Embedding(config.extra_tokens, width) if config.extra_tokens else None
        self.segments = nn.Embedding(config.segments, width) if config.segments else None
        self.norm = config.final_norm()
        self.transform = (
            nn.Sequential(nn.Linear(config.dim, width), activation(config.transform), config.build_norm(width))
            if config.transform
            else None
        )
        config.initialise(self, self.tokens)

    def forward(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None = None,
        marked: Bool[Tensor, "b t"] | None = None,
        segments: Int[Tensor, "b t"] | None = None,
        order: Int[Tensor, "b t"] | None = None,
    ) -> ModelOutput:
        """Maps symbols (b, t) to hidden (b, t, d). The other arguments are those of ``read_row`` and
        ``read_ordered``."""
        x = self.tokens.embed(symbols)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(symbols) if segments is None else segments)
        if self.extra is not None:
            rows, extra = symbols.size(0), self.extra.weight.size(0)
            x = torch.cat([self.extra.weight.to(x.dtype).expand(rows, -1, -1), x], dim=1)
            padding_mask = None if padding_mask is None else F.pad(padding_mask, (extra, 0), value=True)
            marked = torch.zeros_like(symbols, dtype=torch.bool) if marked is None else marked
            marked = F.pad(marked, (extra, 0), value=True)
            order = None if order is None else F.pad(order, (extra, 0), value=0)
        positions = torch.arange(x.size(1), device=x.device).expand(x.size(0), -1)
        if self.restarts and segments is not None:
            positions = positions - F.pad(second_segments(segments), (x.size(1) - symbols.size(1), 0))
        pattern = None if order is None else Ordered(order, itself=True)
        ctx = Context(positions, causal=False, padding_mask=padding_mask, marked=marked, pattern=pattern)
        output = self.stack(x, ctx)
        return ModelOutput(self.norm(output.y)[:, x.size(1) - symbols.size(1) :], None, dict(output.aux))

    def read_row(
        self,
        symbols: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"] | None,
        marked: Bool[Tensor, "b t"],
        segments: Int[Tensor, "b t"] | None = None,
    ) -> ModelOutput:
        output: ModelOutput = self(symbols, padding_mask, marked, segments)
        return output

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

    def embedding_shapes(self) -> dict[str, torch.Size]:
        """Returns the shapes of the weights that embed symbols, segments and positions, by name."""
        parts = (self.tokens, self.segments, self.stack.entry.positions, self.stack.entry.norm)
        weights = nn.ModuleList(nn.Identity() if part is None else part for part in parts).named_parameters()
        return {name: weight.shape for name, weight in weights}

    def prediction_only(self) -> list[nn.Parameter]:
        return [*self.tokens.softmax_only(), *([] if self.transform is None else self.transform.parameters())]

    def flops(self, length: int, remembered: int = 0, source: int = 0) -> int:
        """As in ``Network.flops``, without an output layer, which belongs to the objective."""
        positions = length + (0 if self.extra is None else self.extra.weight.size(0))
        widen = self.stack.entry.widen
        return self.stack.flops(positions, 0, causal=False) + (0 if widen is None else linear_flops(widen, positions))

    def softmax_flops(self, length: int) -> int:
        return 0


def second_segments(segments: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """Returns where the second segment of a row begins, at its symbols, and 0 at all others."""
    is_second = segments == 1
    return is_second.long().argmax(dim=1, keepdim=True) * is_second


def linear_flops(module: nn.Module, queries: int) -> int:
    """Forward FLOPs of a linear map for so many vectors."""
    assert isinstance(module, nn.Linear)
    return 2 * queries * module.in_features * module.out_features
