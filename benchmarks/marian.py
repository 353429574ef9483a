"""The Marian model of transformers, and our network of the same size with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from lit_transformers.encodings.positions import SinusoidalConfig
from lit_transformers.gates.miniature import probe_data
from lit_transformers.mixers import AttentionConfig
from lit_transformers.models import EncoderDecoderConfig
from lit_transformers.models.encoder_decoder import EncoderDecoder
from lit_transformers.models.tokens import FullTokenEmbedding, FullTokenEmbeddingConfig
from lit_transformers.stacks.block import Block
from lit_transformers.stacks.feedforward import FeedForward, FeedForwardConfig

BOUNDARY = 0


class Sizes(NamedTuple):
    """The sizes of both networks. The last symbol of the vocabulary is the padding."""

    symbols: int
    dim: int
    heads: int
    width: int
    depth: int
    decoder_depth: int
    longest: int = 512
    dropout: float = 0.0
    activation: Literal["relu", "silu"] = "relu"
    scaled: bool = True


def theirs(sizes: Sizes) -> MarianMTModel:
    """A Marian model with random weights, in evaluation mode."""
    config = MarianConfig(
        vocab_size=sizes.symbols,
        d_model=sizes.dim,
        encoder_layers=sizes.depth,
        decoder_layers=sizes.decoder_depth,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.width,
        decoder_ffn_dim=sizes.width,
        max_position_embeddings=sizes.longest,
        activation_function="swish" if sizes.activation == "silu" else sizes.activation,
        scale_embedding=sizes.scaled,
        dropout=sizes.dropout,
        pad_token_id=sizes.symbols - 1,
        eos_token_id=BOUNDARY,
        decoder_start_token_id=BOUNDARY,
        forced_eos_token_id=None,
        bos_token_id=None,
    )
    return MarianMTModel(config).eval()


def ours(sizes: Sizes) -> EncoderDecoderConfig:
    """The config of our network: post-norm, sinusoidal positions, biases, embeddings shared by inputs and outputs."""
    attention = AttentionConfig(bias=True)
    return EncoderDecoderConfig(
        dim=sizes.dim,
        heads=sizes.heads,
        depth=sizes.depth,
        decoder_depth=sizes.decoder_depth,
        norm="post",
        dropout=sizes.dropout,
        positions=SinusoidalConfig(),
        tokens=FullTokenEmbeddingConfig(scaled=sizes.scaled),
        feedforward=FeedForwardConfig(width=sizes.width, activation=sizes.activation),
        mixer=attention,
        decoder_mixer=attention,
        cross_mixer=attention,
    )


def copied(model: MarianMTModel, sizes: Sizes) -> EncoderDecoder:
    """Our network with the weights of a Marian model, in evaluation mode."""
    network = ours(sizes).build(probe_data(sizes.symbols, sizes.longest))
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    assert isinstance(network.tokens, FullTokenEmbedding)
    fill(network.tokens.table, {"weight": weights["model.shared.weight"]})
    bias = weights["final_logits_bias"].squeeze(0)
    fill(network.tokens.logits, {"weight": weights["model.shared.weight"], "bias": bias})
    for side, stack in (("encoder", network.encoder), ("decoder", network.decoder)):
        blocks = [block for block in stack.modules() if isinstance(block, Block)]
        for number, block in enumerate(blocks):
            copy_block(block, weights, f"model.{side}.layers.{number}")
    return network.eval()


def copy_block(block: Block, weights: Mapping[str, Tensor], prefix: str) -> None:
    """Copies the weights of one layer, whose names begin with ``prefix``, into a block."""
    attentions = {"self_attn": (block.mixer, block.mixer_norm), "encoder_attn": (block.cross, block.cross_norm)}
    for name, (mixer, norm) in attentions.items():
        if mixer is not None and norm is not None:
            for linear, projection in (("query", "q"), ("key", "k"), ("value", "v"), ("merge", "out")):
                fill(mixer.get_submodule(linear), part(weights, f"{prefix}.{name}.{projection}_proj"))
            fill(norm, part(weights, f"{prefix}.{name}_layer_norm"))
    assert isinstance(block.feedforward, FeedForward)
    fill(block.feedforward.widen, part(weights, f"{prefix}.fc1"))
    fill(block.feedforward.narrow, part(weights, f"{prefix}.fc2"))
    fill(block.feedforward_norm, part(weights, f"{prefix}.final_layer_norm"))


def part(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weight and the bias whose names begin with ``prefix``."""
    return {name: weights[f"{prefix}.{name}"] for name in ("weight", "bias")}


def fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Sets every parameter of a module. Raises RuntimeError for a missing or an unknown name."""
    module.load_state_dict(tensors)
