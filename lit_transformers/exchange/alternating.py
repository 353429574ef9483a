"""ModernBERT (arXiv:2412.13663) as a table, as transformers 5 names its fields and tensors.

Norms without biases stand before sublayers, after embeddings and after the last layer, and none before the first
attention. Every n-th layer sees the whole row, the others a window, and the two kinds of layers have rotary positions
of different wavelengths. In training, dropout differs: here the rate of the embeddings also applies to the outputs of
all sublayers, whereas ModernBERT drops the outputs of attention at the rate of the attention weights, and no outputs of
the feed-forward. Its releases drop nothing.
"""

from __future__ import annotations

from lit_transformers.config import ConfigError, Plain
from lit_transformers.encodings.rotary import LONG_BASE
from lit_transformers.exchange.encoders import BLOCK, ENTRY
from lit_transformers.exchange.mapping import (
    ACTIVATION,
    HALF,
    PREDICTION,
    SAME,
    SYMBOLS,
    Architecture,
    Conversion,
    Fields,
    Fused,
    Part,
    Setting,
    Weight,
    affine,
)

__all__ = ["MODERNBERT"]

DEPTH, CYCLE = 22, 3
"""How many layers there are, and one in how many of them sees the whole row, where nothing else is given."""


def _types(every: int, depth: int) -> list[str]:
    """Returns the types of layers, as transformers names them, if every n-th layer, from the first on, sees all."""
    return ["sliding_attention" if layer % every else "full_attention" for layer in range(depth)]


def _read_cycle(every: Plain, fields: Fields) -> Plain:
    """Returns the cycle of layers that see the whole row, which transformers lists layer by layer."""
    types, depth = fields.get("layer_types"), fields.get("num_hidden_layers", DEPTH)
    if types is None or not isinstance(depth, int):
        return CYCLE if every is None else every
    cycles = [every] if isinstance(every, int) and every > 0 else range(2, max(2, depth) + 1)
    cycle = next((cycle for cycle in cycles if _types(cycle, depth) == types), None)
    if cycle is None:
        raise ConfigError(
            f"is {types!r}; only lists can be mapped in which every n-th layer, from the first on, is full"
        )
    return cycle


def _read_types(types: Plain, fields: Fields) -> Plain:
    return _read_cycle(fields.get("global_attn_every_n_layers"), fields)


def _write_types(every: Plain, fields: Fields) -> Plain:
    depth = fields["num_hidden_layers"]
    return _types(every, depth) if isinstance(every, int) else None


def wavelength(layers: str, default: float) -> Conversion:
    """Returns the conversion of the base of the rotary positions of such layers, which newer files hold by their
    name."""

    def read(base: Plain, fields: Fields) -> Plain:
        by_name = fields.get("rope_parameters")
        given = by_name.get(layers) if isinstance(by_name, dict) else None
        given = given if isinstance(given, dict) else {}
        if given.get("rope_type", "default") != "default":
            raise ConfigError(f"rope_parameters: rope_type is {given['rope_type']!r}, and only 'default' can be mapped")
        return given.get("rope_theta", default if base is None else base)

    return Conversion(read, SAME.write)


def halves(end: str) -> Fused:
    """Returns the two maps into the feed-forward's hidden layer, which are one tensor."""
    return Fused(f".mlp.Wi.{end}", (f".mlp.widen.{end}", f".mlp.gate.{end}"), 0)


def thirds(end: str) -> Fused:
    """Returns the projections to queries, keys and values, which are one tensor."""
    return Fused(f".attn.Wqkv.{end}", tuple(f".attn.{name}.{end}" for name in ("query", "key", "value")), 0)


LAYER = "model.layers.{layer}."
MODERNBERT = Architecture(
    name="modernbert",
    prefix="model.",
    settings=(
        Setting("hidden_size", "dim", 768),
        Setting("num_hidden_layers", "depth", DEPTH),
        Setting("num_attention_heads", "heads", 12),
        Setting("intermediate_size", "feedforward.width", 1152),
        Setting("hidden_activation", "feedforward.activation", "gelu", ACTIVATION),
        Setting("classifier_activation", "transform", "gelu", ACTIVATION),
        Setting("norm_eps", "norm_epsilon", 1e-5),
        Setting("norm_bias", "norm_bias", False),
        Setting("attention_bias", "mixer.bias", False),
        Setting("mlp_bias", "feedforward.bias", False),
        Setting("classifier_bias", "transform_bias", False),
        Setting("decoder_bias", "tokens.bias", True),
        Setting("tie_word_embeddings", "tokens.tied", True),
        Setting("local_attention", "mixer.window", 128, HALF),
        Setting("layer_types", "mixer.full_every", None, Conversion(_read_types, _write_types)),
        Setting("global_attn_every_n_layers", "mixer.encoding.long_every", None, Conversion(_read_cycle, SAME.write)),
        Setting("global_attn_every_n_layers", "mixer.full_every", None, Conversion(_read_cycle, SAME.write)),
        Setting("global_rope_theta", "mixer.encoding.long_base", None, wavelength("full_attention", LONG_BASE)),
        Setting("local_rope_theta", "mixer.encoding.base", None, wavelength("sliding_attention", 10_000.0)),
        Setting("attention_dropout", "mixer.dropout", 0.0),
        Setting("embedding_dropout", "dropout", 0.0),
        Setting("mlp_dropout", "feedforward.dropout", 0.0),
        Setting("initializer_range", "initial_std", 0.02),
    ),
    fixed={
        "norm": "pre",
        "first_norm": False,
        "embedding_norm": True,
        "positions": None,
        "tokens.scaled": False,
        "feedforward.gated": True,
        "mixer": {"kind": "window", "encoding": {"kind": "rotary"}},
    },
    refused={"position_embedding_type": "absolute", "rope_scaling": None, "quantization_config": None},
    written={},
    symbols=(*SYMBOLS, "cls_token_id", "sep_token_id"),
    encoder=Part(
        "encoder",
        (
            Weight("model.embeddings.tok_embeddings.weight", "network.tokens.table.weight"),
            *affine("model.embeddings.norm", f"{ENTRY}.norm"),
            *affine(f"{LAYER}attn_norm", f"{BLOCK}.mixer_norm"),
            *affine(f"{LAYER}attn.query", f"{BLOCK}.mixer.query"),
            *affine(f"{LAYER}attn.key", f"{BLOCK}.mixer.key"),
            *affine(f"{LAYER}attn.value", f"{BLOCK}.mixer.value"),
            *affine(f"{LAYER}attn.Wo", f"{BLOCK}.mixer.merge"),
            *affine(f"{LAYER}mlp_norm", f"{BLOCK}.feedforward_norm"),
            *affine(f"{LAYER}mlp.widen", f"{BLOCK}.feedforward.widen"),
            *affine(f"{LAYER}mlp.gate", f"{BLOCK}.feedforward.gate"),
            *affine(f"{LAYER}mlp.Wo", f"{BLOCK}.feedforward.narrow"),
            *affine("model.final_norm", "network.norm"),
        ),
    ),
    heads=(
        Part(
            PREDICTION,
            (
                *affine("head.dense", "network.transform.0"),
                *affine("head.norm", "network.transform.2"),
                *affine("decoder", "network.tokens.logits"),
            ),
        ),
    ),
    foreign=("classifier.",),
    classes={"ModernBertForMaskedLM": (PREDICTION,), "ModernBertModel": ()},
    fused=(thirds("weight"), thirds("bias"), halves("weight"), halves("bias")),
)
