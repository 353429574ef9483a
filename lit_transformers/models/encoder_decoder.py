"""Encoder and decoder with cross-attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.1)."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.batch import DataDescription
from lit_transformers.block import Block, add_losses
from lit_transformers.config import ConfigError, Positive, field_types
from lit_transformers.mixer import Context, Mixer, MixerConfig, take_rows
from lit_transformers.mixers import AttentionConfig
from lit_transformers.mixers.memory import EVERYTHING
from lit_transformers.models.model import ModelConfig, ModelOutput, positions_of
from lit_transformers.models.tokens import TokenEmbedding


class EncoderDecoderConfig(ModelConfig, kind="encoder_decoder"):
    """``mixer`` and ``depth`` are the encoder's; the decoder's mixer and cross mixer have fields of their own.

    decoder_depth: None for as many layers as the encoder has. shared_tokens: whether both sides, if they have the same
    vocabulary, share their embeddings, and the softmax too if ``tokens.tied`` (arXiv:1706.03762, section 3.4).

    A source or a target is one segment, however long: added positions never restart within it, and if training draws an
    offset, both sides of a pair use the same one, so that positions of both stay aligned. A decoder mixer with a
    ``memory`` of 0 remembers all that was decoded, which changes nothing where a target is read at once.
    """

    decoder_mixer: MixerConfig = AttentionConfig()
    cross_mixer: MixerConfig = AttentionConfig()
    decoder_depth: Positive | None = None
    shared_tokens: bool = True

    def build(self, vocabulary: int, max_length: int) -> EncoderDecoder:
        """Builds a network whose two sides have the same vocabulary and the same length."""
        shape = SequenceShape(vocabulary, max_length)
        return EncoderDecoder(self, shape, shape, shared=self.shared_tokens)

    def build_pairs(self, data: DataDescription) -> EncoderDecoder:
        """Builds the network for the pairs that ``data`` describes. Raises ConfigError if the data have no sources."""
        if data.source is None:
            raise ConfigError("these data have no sources for an encoder_decoder to read; set data to pairs", "data")
        source = SequenceShape(data.source.size, data.source_length)
        shared = self.shared_tokens and data.source is data.vocabulary
        return EncoderDecoder(self, source, SequenceShape(data.vocabulary.size, data.length), shared)

    def sides(self) -> tuple[ModelConfig, ModelConfig]:
        """Returns the encoder's and the decoder's stack, each as the config of a model."""
        encoder = self if self.positions is None else self.override({"positions.restart": "document"})
        depth = self.decoder_depth or self.depth
        return encoder, encoder.override({"mixer": unforgetting(self.decoder_mixer), "depth": depth})


class SequenceShape(NamedTuple):
    """The vocabulary size of the source or of the target, and the tokens of its longest row in training."""

    symbols: int
    length: int


def unforgetting(mixer: MixerConfig) -> MixerConfig:
    """Returns the mixer with an unlimited memory if its field ``memory`` is 0, else the mixer itself."""
    if "memory" not in field_types(type(mixer)) or mixer.get("memory"):
        return mixer
    try:
        return mixer.override({"memory": EVERYTHING})
    except ConfigError:  # this mixer's other fields exclude a memory
        return mixer


class EncoderDecoder(nn.Module):
    """The encoder reads a source once; the decoder's state is {"length": (b,) symbols read, "layers": the stack's}.

    ``tokens`` embeds the targets, and the sources too where these have no embedding of their own.
    """

    def __init__(
        self, config: EncoderDecoderConfig, source: SequenceShape, target: SequenceShape, shared: bool
    ) -> None:
        super().__init__()
        encoder, decoder = config.sides()
        self.tokens = config.tokens.build(target.symbols, config.dim)
        self.source_tokens: TokenEmbedding | None = None
        if not shared:
            self.source_tokens = config.tokens.override({"tied": True}).build(source.symbols, config.dim)
            for parameter in self.source_tokens.softmax_only():
                parameter.requires_grad_(False)
        self.encoder = encoder.build_stack("bidirectional", source.length)
        self.encoder_norm = config.final_norm()
        self.decoder = decoder.build_stack("causal", target.length, config.cross_mixer)
        self.decoder_norm = config.final_norm()
        config.initialise(self, self.tokens)

    def encode(
        self,
        source: Int[Tensor, "b s"],
        padding_mask: Bool[Tensor, "b s"] | None = None,
        offset: Int[Tensor, " b"] | None = None,
    ) -> ModelOutput:
        """Encodes the source. ``offset`` (b,) is added to its positions."""
        positions, _ = positions_of(source, None)
        x = (self.source_tokens or self.tokens).embed(source)
        output = self.encoder(x, Context(positions, causal=False, padding_mask=padding_mask, offset=offset))
        return ModelOutput(self.encoder_norm(output.y), None, dict(output.aux))

    def decode(
        self,
        symbols: Int[Tensor, "n t"],
        source: Float[Tensor, "b s d"],
        source_padding_mask: Bool[Tensor, "b s"] | None = None,
        state: Any = None,
        padding_mask: Bool[Tensor, "n t"] | None = None,
        offset: Int[Tensor, " n"] | None = None,
    ) -> ModelOutput:
        """Decodes target symbols after those that ``state`` remembers. Each row of the source may have several
        consecutive rows of the target, the same number for every source."""
        positions, start = positions_of(symbols, None if state is None else state["length"])
        ctx = Context(positions, True, padding_mask, source, source_padding_mask, offset=offset)
        output = self.decoder(self.tokens.embed(symbols), ctx, None if state is None else state["layers"])
        length = start + (symbols.size(1) if padding_mask is None else padding_mask.sum(dim=1))
        return ModelOutput(self.decoder_norm(output.y), {"length": length, "layers": output.state}, dict(output.aux))

    def forward(
        self,
        source: Int[Tensor, "b s"],
        symbols: Int[Tensor, "b t"],
        source_padding_mask: Bool[Tensor, "b s"] | None = None,
        padding_mask: Bool[Tensor, "b t"] | None = None,
    ) -> ModelOutput:
        """Encodes the source and decodes the target; returns hidden (b, t, d) of the target."""
        offset = self.encoder.entry.offsets(source)
        encoded = self.encode(source, source_padding_mask, offset)
        decoded = self.decode(symbols, encoded.hidden, source_padding_mask, padding_mask=padding_mask, offset=offset)
        return decoded._replace(aux=add_losses(encoded.aux, decoded.aux))

    @property
    def streams(self) -> bool:
        """Whether the decoder can read one symbol at a time."""
        return all(module.streams for module in self.decoder.modules() if isinstance(module, Mixer))

    def crossings(self) -> list[Mixer]:
        """Returns the decoder's distinct cross mixers, in the order of its layers."""
        cross_mixers = (block.cross for block in self.decoder.modules() if isinstance(block, Block))
        return list(dict.fromkeys(cross for cross in cross_mixers if cross is not None))

    def flops(self, source: int, target: int) -> int:
        """Forward FLOPs for one pair with these numbers of tokens, the softmax included."""
        stacks = self.encoder.flops(source, 0, causal=False) + self.decoder.flops(target, 0, source=source)
        return stacks + self.tokens.flops(target)


def take_hypotheses(state: Any, hypotheses: Int[Tensor, " n"], rows: Int[Tensor, " m"] | None = None) -> Any:
    """Returns the decoder's state of the given target rows, in the given order; ``rows`` are the source rows that
    remain, if some are finished. State of the source is stored once for all target rows that read it."""

    def select(name: str, part: Any) -> Any:
        if name != "cross":
            return take_rows(part, hypotheses)
        return part if rows is None else take_rows(part, rows)

    layers = tuple({name: select(name, part) for name, part in layer.items()} for layer in state["layers"])
    return {"length": state["length"][hypotheses], "layers": layers}
