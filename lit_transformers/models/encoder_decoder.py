"""Encoder and decoder with cross-attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.1)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.block import add_losses
from lit_transformers.mixer import Context, MixerConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models.model import ModelConfig, Read, positions_of


class EncoderDecoderConfig(ModelConfig, kind="encoder_decoder"):
    """``mixer`` serves the encoder; the decoder's own and its cross mixer are chosen apart."""

    decoder_mixer: MixerConfig = AttentionConfig()
    cross_mixer: MixerConfig = AttentionConfig()

    def build(self, vocabulary: int, max_length: int) -> EncoderDecoder:
        return EncoderDecoder(self, vocabulary, max_length)


class EncoderDecoder(nn.Module):
    """One vocabulary and one set of symbol vectors for both sides."""

    def __init__(self, config: EncoderDecoderConfig, vocabulary: int, max_length: int) -> None:
        super().__init__()
        decoder = config.override({"mixer": config.decoder_mixer})
        self.tokens = config.tokens.build(vocabulary, config.dim)
        self.encoder = config.build_stack("bidirectional", max_length)
        self.encoder_norm = config.final_norm()
        self.decoder = decoder.build_stack("causal", max_length, config.cross_mixer)
        self.decoder_norm = config.final_norm()
        config.initialise(self, self.tokens)

    def encode(self, source: Int[Tensor, "b s"], keep: Bool[Tensor, "b s"] | None = None) -> Read:
        """The source, once."""
        positions, _ = positions_of(source, None)
        stacked = self.encoder(self.tokens.embed(source), Context(positions, causal=False, keep=keep))
        return Read(self.encoder_norm(stacked.y), None, dict(stacked.aux))

    def decode(
        self,
        symbols: Int[Tensor, "b t"],
        source: Float[Tensor, "b s d"],
        source_keep: Bool[Tensor, "b s"] | None = None,
        state: Any = None,
        keep: Bool[Tensor, "b t"] | None = None,
    ) -> Read:
        """Target symbols after those that ``state`` remembers."""
        positions, start = positions_of(symbols, None if state is None else state["length"])
        ctx = Context(positions, True, keep, source, source_keep)
        stacked = self.decoder(self.tokens.embed(symbols), ctx, None if state is None else state["layers"])
        state = {"length": start + symbols.size(1), "layers": stacked.state}
        return Read(self.decoder_norm(stacked.y), state, dict(stacked.aux))

    def forward(
        self,
        source: Int[Tensor, "b s"],
        symbols: Int[Tensor, "b t"],
        source_keep: Bool[Tensor, "b s"] | None = None,
        keep: Bool[Tensor, "b t"] | None = None,
    ) -> Read:
        """Both sides at once: hidden (b, t, d) of the target."""
        encoded = self.encode(source, source_keep)
        decoded = self.decode(symbols, encoded.hidden, source_keep, keep=keep)
        return decoded._replace(aux=add_losses(encoded.aux, decoded.aux))
