"""Encoder and decoder with cross-attention (Vaswani et al. 2017, arXiv:1706.03762, section 3.1), whose stacks may share
their layers (Raffel et al. 2020, arXiv:1910.10683, section 3.2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lit_transformers.batch import DataDescription, PairDescription
from lit_transformers.config import ConfigError, Memory, Positive
from lit_transformers.mixer import Context, Mixer, MixerConfig, take_rows
from lit_transformers.mixers import AttentionConfig
from lit_transformers.mixers.memory import EVERYTHING, first_tokens, holds_each_token
from lit_transformers.models.capabilities import PairModelConfig, PairNetwork
from lit_transformers.models.model import ModelConfig, ModelOutput, positions_of
from lit_transformers.models.tokens import TokenEmbedding
from lit_transformers.named_tuples import with_fields
from lit_transformers.stacks.block import Block
from lit_transformers.stacks.unpadded import pass_without_padding


class EncoderDecoderConfig(PairModelConfig, kind="encoder_decoder"):
    """``mixer`` and ``depth`` are the encoder's; the decoder's mixer and cross mixer have separate fields.

    decoder_depth: None for as many layers as the encoder has. shared_tokens: whether both sides, if they have the same
    vocabulary, share their embeddings, and the softmax too if ``tokens.tied`` (arXiv:1706.03762, section 3.4).
    shared_stacks: whether each layer of the decoder computes with the weights that the mixer and the feed-forward of
    the encoder's layer have, those of their norms included (arXiv:1910.10683, section 3.2). Cross mixers are the
    decoder's own; added positions, the norm after the last layer and halting units stay each stack's own. Both stacks
    then are equally deep, and their mixers differ in memory at most.

    A source or a target is one segment, however long: added positions never restart within it, and if training draws an
    offset, both sides of a pair use the same one, so that positions of both stay aligned. A decoder mixer with a
    ``memory`` of 0 remembers all that was decoded, which changes nothing where a target is read at once.
    """

    gates: ClassVar[str] = "lit_transformers.gates.gates:PAIRED"

    decoder_mixer: MixerConfig = AttentionConfig()
    cross_mixer: MixerConfig = AttentionConfig()
    decoder_depth: Positive | None = None
    shared_tokens: bool = True
    shared_stacks: bool = False

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        if not self.shared_stacks:
            return
        if self.decoder_depth not in (None, self.depth):
            yield "stacks that share their layers are equally deep; set decoder_depth: null, or shared_stacks: false"
        encoder, decoder = computed_by(self.mixer), computed_by(self.decoder_mixer)
        unequal = [path for path in encoder | decoder if encoder.get(path) != decoder.get(path)]
        if unequal:
            reason = f"stacks that share their layers have one mixer, and decoder_mixer has another {unequal[0]}"
            yield f"{reason} than mixer; give it the value of mixer, or set shared_stacks: false"

    def build(self, data: DataDescription) -> EncoderDecoder:
        """Builds the network for the pairs that ``data`` describes. Raises ConfigError if the data have no sources."""
        return EncoderDecoder(self, data)

    def depths(self) -> dict[str, int]:
        return {"depth": self.depth} | ({} if self.decoder_depth is None else {"decoder_depth": self.decoder_depth})

    def sides(self) -> tuple[ModelConfig, ModelConfig]:
        """Returns the encoder's and the decoder's stack, each as the config of a model."""
        encoder = self if self.positions is None else self.override({"positions.restart": "document"})
        depth = self.decoder_depth or self.depth
        return encoder, encoder.override({"mixer": with_unlimited_memory(self.decoder_mixer), "depth": depth})

    def unreadable_mixers(self) -> list[str]:
        """Returns the names of the decoder's mixers that cannot read one symbol at a time, in alphabetical order."""
        mixers = (self.decoder_mixer, self.cross_mixer)
        return sorted({mixer.mixer_name for mixer in mixers if not mixer.promises().streams})


def with_unlimited_memory(mixer: MixerConfig) -> MixerConfig:
    """Returns the mixer with an unlimited memory if it has one of length 0, else the mixer itself."""
    try:
        return mixer.override({path: EVERYTHING for path, length in mixer.leaves_with(Memory) if not length})
    except ConfigError:  # this mixer's other fields exclude a memory
        return mixer


def computed_by(mixer: MixerConfig) -> dict[str, Any]:
    """Returns the fields of a mixer by their paths, without the lengths of memories, which change no weights."""
    memories = dict(mixer.leaves_with(Memory))
    return {path: value for path, value in mixer.leaves() if path not in memories}


def share_parameters(module: nn.Module, other: nn.Module) -> None:
    """Replaces the parameters of a module by those of another one, name by name.

    Raises ConfigError where the same name has two shapes, because its size follows from the length of rows.
    """
    theirs = dict(other.named_parameters(remove_duplicate=False))
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        if parameter.shape != theirs[name].shape:
            shapes = f"{tuple(theirs[name].shape)} for sources and {tuple(parameter.shape)} for targets"
            reason = f"{name} of a {type(module).__name__} depends on the length of rows and cannot be shared: it is"
            raise ConfigError(f"{reason} {shapes}; make rows equally long, or set it to false", "shared_stacks")
        owner, _, own_name = name.rpartition(".")
        setattr(module.get_submodule(owner), own_name, theirs[name])


class EncoderDecoder(PairNetwork):
    """The encoder reads a source once; the decoder's state is {"length": (b,) next position, "layers": the stack's}.

    ``tokens`` embeds the targets, and the sources too where these have no separate embedding.
    """

    def __init__(self, config: EncoderDecoderConfig, data: DataDescription) -> None:
        super().__init__()
        pairs = PairDescription.of(data, "an encoder_decoder")
        encoder, decoder = config.sides()
        self.unreadable, self.unpadded = config.unreadable_mixers(), config.unpadded
        self.tokens = config.tokens.build(pairs.vocabulary.size, config.dim)
        self.source_tokens: TokenEmbedding | None = None
        if not (config.shared_tokens and pairs.source is pairs.vocabulary):
            self.source_tokens = config.tokens.override({"tied": True}).build(pairs.source.size, config.dim)
            for parameter in self.unused():
                parameter.requires_grad_(False)
        self.encoder = encoder.build_stack("bidirectional", pairs.source_length)
        self.encoder_norm = config.final_norm()
        try:
            self.decoder = decoder.build_stack("causal", pairs.length, config.cross_mixer)
        except ConfigError as error:  # the decoder's stack is the config of a model, whose mixer is another field here
            raise ConfigError(error.reason, re.sub(r"^mixer\b", "decoder_mixer", error.path)) from None
        self.decoder_norm = config.final_norm()
        config.initialise(self, self.tokens)
        if config.shared_stacks:
            self.share_stacks()

    def share_stacks(self) -> None:
        """Gives the layers of the decoder the weights of the encoder's, as these were initialised."""
        for encoder, decoder in zip(self.encoder.steps(), self.decoder.steps(), strict=True):
            share_parameters(decoder.mixer, encoder.mixer)
            share_parameters(decoder.mixer_norm, encoder.mixer_norm)
            share_parameters(decoder.feedforward, encoder.feedforward)
            share_parameters(decoder.feedforward_norm, encoder.feedforward_norm)

    def encode(
        self,
        source: Int[Tensor, "b s"],
        padding_mask: Bool[Tensor, "b s"] | None = None,
        offset: Int[Tensor, " b"] | None = None,
    ) -> ModelOutput:
        positions, _ = positions_of(source, None)
        x = (self.source_tokens or self.tokens).embed(source)
        ctx = Context(positions, causal=False, padding_mask=padding_mask, offset=offset, start=0)
        output = pass_without_padding(self.encoder, x, ctx) if self.unpadded else self.encoder(x, ctx)
        return ModelOutput(self.encoder_norm(output.y), None, dict(output.aux))

    def decode(
        self,
        symbols: Int[Tensor, "n t"],
        source: Float[Tensor, "b s d"],
        source_padding_mask: Bool[Tensor, "b s"] | None = None,
        state: Any = None,
        padding_mask: Bool[Tensor, "n t"] | None = None,
        offset: Int[Tensor, " n"] | None = None,
        start: Int[Tensor, " n"] | None = None,
        unbroken: int = 0,
    ) -> ModelOutput:
        positions, start = positions_of(symbols, start if state is None else state["length"])
        length = start + (symbols.size(1) if padding_mask is None else padding_mask.sum(dim=1))
        # The padding of a row that begins late would lie beyond the longest row, for which a table has no vectors.
        positions = positions.minimum((length - 1).clamp(min=0)[:, None])
        ctx = Context(
            positions,
            True,
            padding_mask,
            source,
            source_padding_mask,
            offset=offset,
            padding_last=True,
            unbroken=unbroken,
        )
        output = self.decoder(self.tokens.embed(symbols), ctx, None if state is None else state["layers"])
        return ModelOutput(self.decoder_norm(output.y), {"length": length, "layers": output.state}, dict(output.aux))

    def forward(
        self,
        source: Int[Tensor, "b s"],
        symbols: Int[Tensor, "b t"],
        source_padding_mask: Bool[Tensor, "b s"] | None = None,
        padding_mask: Bool[Tensor, "b t"] | None = None,
        start: Int[Tensor, " b"] | None = None,
    ) -> ModelOutput:
        offset = self.encoder.entry.offsets(source)
        encoded = self.encode(source, source_padding_mask, offset)
        decoded = self.decode(
            symbols, encoded.hidden, source_padding_mask, padding_mask=padding_mask, offset=offset, start=start
        )
        return with_fields(decoded, source_aux=encoded.aux)

    def crossings(self) -> list[Mixer]:
        cross_mixers = (block.cross for block in self.decoder.modules() if isinstance(block, Block))
        return list(dict.fromkeys(cross for cross in cross_mixers if cross is not None))

    def first_symbols(self, state: Any, read: int, kept: int) -> Any:
        of_targets = [{name: part for name, part in layer.items() if name != "cross"} for layer in state["layers"]]
        if not holds_each_token(of_targets, read):
            return None
        layers = tuple(layer | first_tokens(own, kept) for layer, own in zip(state["layers"], of_targets, strict=True))
        return {"length": state["length"] - (read - kept), "layers": layers}

    def take_hypotheses(self, state: Any, hypotheses: Int[Tensor, " n"], rows: Int[Tensor, " m"] | None = None) -> Any:
        def select(name: str, part: Any) -> Any:
            if name != "cross":
                return take_rows(part, hypotheses)
            return part if rows is None else take_rows(part, rows)

        layers = tuple({name: select(name, part) for name, part in layer.items()} for layer in state["layers"])
        return {"length": state["length"][hypotheses], "layers": layers}

    def flops(self, length: int, remembered: int = 0, source: int = 0) -> int:
        """As in ``Network.flops``, for a target of ``length`` tokens, its source and the softmax included."""
        stacks = self.encoder.flops(source, 0, causal=False) + self.decoder.flops(length, 0, source=source)
        return stacks + self.tokens.flops(length)

    def embeddings(self) -> list[TokenEmbedding]:
        return [self.tokens] if self.source_tokens is None else [self.tokens, self.source_tokens]

    def unused(self) -> list[nn.Parameter]:
        return [] if self.source_tokens is None else self.source_tokens.softmax_only()
