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
from lit_transformers.models.model import ModelConfig, Read, positions_of
from lit_transformers.models.tokens import Tokens


class EncoderDecoderConfig(ModelConfig, kind="encoder_decoder"):
    """``mixer`` and ``depth`` are the encoder's; the decoder's own and its cross mixer are chosen apart.

    decoder_depth: None for as many layers as the encoder has. shared_tokens: where both sides have one vocabulary, they
    have one set of symbol vectors, which is the softmax's too if ``tokens.tied`` (arXiv:1706.03762, section 3.4).

    A source or a target is one segment, however long: added positions never begin anew within it, and where training
    draws an offset, both sides of a pair have the same, so that what belongs together stays at equal places. A decoder
    mixer with a ``memory`` of 0 remembers all that was decoded, which changes nothing where a target is read at once.
    """

    decoder_mixer: MixerConfig = AttentionConfig()
    cross_mixer: MixerConfig = AttentionConfig()
    decoder_depth: Positive | None = None
    shared_tokens: bool = True

    def build(self, vocabulary: int, max_length: int) -> EncoderDecoder:
        """Both sides of one vocabulary and of one length."""
        side = Side(vocabulary, max_length)
        return EncoderDecoder(self, side, side, shared=self.shared_tokens)

    def build_pairs(self, data: DataDescription) -> EncoderDecoder:
        """For the pairs that ``data`` describes. Raises ConfigError where it describes none."""
        if data.source is None:
            raise ConfigError("these data have no sources for an encoder_decoder to read; set data to pairs", "data")
        source = Side(data.source.size, data.source_length)
        shared = self.shared_tokens and data.source is data.vocabulary
        return EncoderDecoder(self, source, Side(data.vocabulary.size, data.length), shared)

    def sides(self) -> tuple[ModelConfig, ModelConfig]:
        """The encoder's stack and the decoder's, each as the config of a model."""
        whole = self if self.positions is None else self.override({"positions.restart": "document"})
        depth = self.decoder_depth or self.depth
        return whole, whole.override({"mixer": unforgetting(self.decoder_mixer), "depth": depth})


class Side(NamedTuple):
    """How many symbols the source or the target is written in, and the tokens of its longest row in training."""

    symbols: int
    length: int


def unforgetting(mixer: MixerConfig) -> MixerConfig:
    """The mixer with a memory of everything, where its field for it holds 0."""
    if "memory" not in field_types(type(mixer)) or mixer.get("memory"):
        return mixer
    try:
        return mixer.override({"memory": EVERYTHING})
    except ConfigError:  # configured so, it has no use for a memory
        return mixer


class EncoderDecoder(nn.Module):
    """The encoder reads a source once; the decoder's state is {"length": (b,) symbols read, "layers": the stack's}.

    tokens: of the targets, and of the sources too where these have none of their own.
    """

    def __init__(self, config: EncoderDecoderConfig, source: Side, target: Side, shared: bool) -> None:
        super().__init__()
        encoder, decoder = config.sides()
        self.tokens = config.tokens.build(target.symbols, config.dim)
        self.source_tokens: Tokens | None = None
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
        keep: Bool[Tensor, "b s"] | None = None,
        offset: Int[Tensor, " b"] | None = None,
    ) -> Read:
        """The source, once. ``offset``: what its positions count from."""
        positions, _ = positions_of(source, None)
        x = (self.source_tokens or self.tokens).embed(source)
        stacked = self.encoder(x, Context(positions, causal=False, keep=keep, offset=offset))
        return Read(self.encoder_norm(stacked.y), None, dict(stacked.aux))

    def decode(
        self,
        symbols: Int[Tensor, "n t"],
        source: Float[Tensor, "b s d"],
        source_keep: Bool[Tensor, "b s"] | None = None,
        state: Any = None,
        keep: Bool[Tensor, "n t"] | None = None,
        offset: Int[Tensor, " n"] | None = None,
    ) -> Read:
        """Target symbols after those that ``state`` remembers. Every row of the source may have several of the target,
        as many as each other one, which follow each other."""
        positions, start = positions_of(symbols, None if state is None else state["length"])
        ctx = Context(positions, True, keep, source, source_keep, offset=offset)
        stacked = self.decoder(self.tokens.embed(symbols), ctx, None if state is None else state["layers"])
        length = start + (symbols.size(1) if keep is None else keep.sum(dim=1))
        return Read(self.decoder_norm(stacked.y), {"length": length, "layers": stacked.state}, dict(stacked.aux))

    def forward(
        self,
        source: Int[Tensor, "b s"],
        symbols: Int[Tensor, "b t"],
        source_keep: Bool[Tensor, "b s"] | None = None,
        keep: Bool[Tensor, "b t"] | None = None,
    ) -> Read:
        """Both sides at once: hidden (b, t, d) of the target."""
        offset = self.encoder.entry.offsets(source)
        encoded = self.encode(source, source_keep, offset)
        decoded = self.decode(symbols, encoded.hidden, source_keep, keep=keep, offset=offset)
        return decoded._replace(aux=add_losses(encoded.aux, decoded.aux))

    @property
    def streams(self) -> bool:
        """Whether the decoder may read symbol by symbol."""
        return all(module.streams for module in self.decoder.modules() if isinstance(module, Mixer))

    def crossings(self) -> list[Mixer]:
        """The decoder's cross mixers, each once, in the order of its layers."""
        found = (block.cross for block in self.decoder.modules() if isinstance(block, Block))
        return list(dict.fromkeys(cross for cross in found if cross is not None))

    def flops(self, source: int, target: int) -> int:
        """Forward FLOPs for one pair of so many tokens, the softmax among them."""
        read = self.encoder.flops(source, 0, causal=False) + self.decoder.flops(target, 0, source=source)
        return read + self.tokens.flops(target)


def take_hypotheses(state: Any, hypotheses: Int[Tensor, " n"], rows: Int[Tensor, " m"] | None = None) -> Any:
    """The decoder's state of the given rows of the target, in the given order; ``rows`` are those of the source that
    are left, where some leave. What was made of the source is one for all rows of the target that read it."""

    def taken(name: str, part: Any) -> Any:
        if name != "cross":
            return take_rows(part, hypotheses)
        return part if rows is None else take_rows(part, rows)

    layers = tuple({name: taken(name, part) for name, part in layer.items()} for layer in state["layers"])
    return {"length": state["length"][hypotheses], "layers": layers}
