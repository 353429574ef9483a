"""Encoders with decoders, each as a table.

Marian (arXiv:1804.00344), as transformers 5 names its fields and tensors: norms after residual sums, sinusoidal
positions, one table of embeddings for sources, targets and the softmax, which has a bias. Both sides have as many heads
and as wide feed-forwards as each other here, which is so in all released models.
"""

from __future__ import annotations

from lit_transformers.config import ConfigError, Plain
from lit_transformers.exchange.mapping import (
    ACTIVATION,
    SYMBOLS,
    Architecture,
    Conversion,
    Family,
    Fields,
    Part,
    Setting,
    Transfer,
    Weight,
    affine,
)
from lit_transformers.models import EncoderDecoderConfig
from lit_transformers.tasks import Seq2SeqConfig

__all__ = ["MARIAN"]


def _read_vocabulary(size: Plain, fields: Fields) -> Plain:
    if size not in (None, fields.get("vocab_size")):
        raise ConfigError(f"is {size!r}, and only the vocab_size of the sources, {fields['vocab_size']}, can be mapped")
    return True


def attention(theirs: str, ours: str) -> tuple[Weight, ...]:
    """Returns the pairs of the four projections of an attention."""
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "merge"}
    return tuple(pair for name, own in names.items() for pair in affine(f"{theirs}.{name}", f"{ours}.{own}"))


def side(name: str) -> tuple[Weight, ...]:
    """Returns the pairs of one side, encoder or decoder, for the tensors that the layers of both sides have."""
    theirs, ours = f"model.{name}.layers.{{layer}}", f"network.{name}.blocks.{{layer}}"
    return (
        *attention(f"{theirs}.self_attn", f"{ours}.mixer"),
        *affine(f"{theirs}.self_attn_layer_norm", f"{ours}.mixer_norm"),
        *affine(f"{theirs}.fc1", f"{ours}.feedforward.widen"),
        *affine(f"{theirs}.fc2", f"{ours}.feedforward.narrow"),
        *affine(f"{theirs}.final_layer_norm", f"{ours}.feedforward_norm"),
    )


MARIAN = Architecture(
    name="marian",
    prefix="model.",
    settings=(
        Setting("d_model", "dim", 1024),
        Setting("encoder_layers", "depth", 12),
        Setting("decoder_layers", "decoder_depth", 12),
        Setting("encoder_attention_heads", "heads", 16),
        Setting("decoder_attention_heads", "heads", 16),
        Setting("encoder_ffn_dim", "feedforward.width", 4096),
        Setting("decoder_ffn_dim", "feedforward.width", 4096),
        Setting("activation_function", "feedforward.activation", "gelu", ACTIVATION),
        Setting("activation_dropout", "feedforward.dropout", 0.0),
        Setting("dropout", "dropout", 0.1),
        *(Setting("attention_dropout", f"{name}.dropout", 0.0) for name in ("mixer", "decoder_mixer", "cross_mixer")),
        Setting("init_std", "initial_std", 0.02),
        Setting("scale_embedding", "tokens.scaled", False),
        Setting("decoder_vocab_size", "shared_tokens", None, Conversion(_read_vocabulary, lambda shared, fields: None)),
    ),
    fixed={
        "norm": "post",
        "positions": {"kind": "sinusoidal"},
        "mixer.bias": True,
        "decoder_mixer.bias": True,
        "cross_mixer.bias": True,
    },
    refused={
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "static_position_embeddings": True,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "quantization_config": None,
    },
    written={
        "is_encoder_decoder": True,
        "max_position_embeddings": 1024,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
    },
    symbols=(*SYMBOLS, "decoder_start_token_id", "forced_eos_token_id"),
    encoder=Part(
        "network",
        (
            Weight(
                "model.shared.weight",
                "network.tokens.table.weight",
                copies=("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
            ),
            Weight(
                "final_logits_bias",
                "network.tokens.logits.bias",
                Transfer(lambda bias, heads: bias[0], lambda bias, heads: bias[None]),
            ),
            *side("encoder"),
            *side("decoder"),
            *attention("model.decoder.layers.{layer}.encoder_attn", "network.decoder.blocks.{layer}.cross"),
            *affine(
                "model.decoder.layers.{layer}.encoder_attn_layer_norm", "network.decoder.blocks.{layer}.cross_norm"
            ),
        ),
    ),
    heads=(),
    foreign=(),
    classes={"MarianMTModel": ()},
    family=Family(EncoderDecoderConfig(), Seq2SeqConfig(), ()),
    notes=(
        "symbols: transformers begins a target with decoder_start_token_id, often its padding, where here it begins "
        "with the symbol that ends it",
    ),
)
