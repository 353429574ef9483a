"""XLNet (arXiv:1906.08237) as a table, as transformers 5 names its fields and tensors.

Norms stand after residual sums; maps of attention have no biases, and positions are relative. In training, dropout
differs: XLNet's code drops sinusoids and within the feed-forward too.
"""

from __future__ import annotations

from lit_transformers.exchange.encoders import BLOCK
from lit_transformers.exchange.mapping import (
    ACTIVATION,
    HEAD_BIAS,
    INTO_HEADS,
    ONE_VECTOR,
    OR_NONE,
    OR_ZERO,
    OUT_OF_HEADS,
    PREDICTION,
    SYMBOLS,
    Architecture,
    Part,
    Setting,
    Weight,
    affine,
)

__all__ = ["XLNET"]

XLNET_LAYER = "transformer.layer.{layer}."
RELATIVE = f"{BLOCK}.mixer.relative"
XLNET = Architecture(
    name="xlnet",
    prefix="transformer.",
    settings=(
        Setting("d_model", "dim"),
        Setting("n_layer", "depth"),
        Setting("n_head", "heads"),
        Setting("d_inner", "feedforward.width"),
        Setting("ff_activation", "feedforward.activation", "gelu", ACTIVATION),
        Setting("dropout", "mixer.dropout", 0.1),
        Setting("dropout", "dropout", 0.1),
        Setting("layer_norm_eps", "norm_epsilon", 1e-12),
        Setting("initializer_range", "initial_std", 0.02),
        Setting("tie_word_embeddings", "tokens.tied", True),
        Setting("mem_len", "mixer.memory", 512, OR_ZERO),
        Setting("clamp_len", "mixer.encoding.clamp_length", -1, OR_NONE),
    ),
    fixed={
        "norm": "post",
        "positions": None,
        "tokens.scaled": False,
        "mixer.bias": False,
        "mixer.encoding": {"kind": "xl", "biases": "per_layer", "segments": 3},
        "query_stream": "learned",
    },
    refused={"attn_type": "bi", "same_length": False, "bi_data": False, "untie_r": True, "quantization_config": None},
    written={"attn_type": "bi"},
    symbols=SYMBOLS,
    encoder=Part(
        "encoder",
        (
            Weight("transformer.word_embedding.weight", "network.tokens.table.weight"),
            Weight("transformer.mask_emb", "network.query.weight", ONE_VECTOR),
            Weight(f"{XLNET_LAYER}rel_attn.q", f"{BLOCK}.mixer.query.weight", INTO_HEADS),
            Weight(f"{XLNET_LAYER}rel_attn.k", f"{BLOCK}.mixer.key.weight", INTO_HEADS),
            Weight(f"{XLNET_LAYER}rel_attn.v", f"{BLOCK}.mixer.value.weight", INTO_HEADS),
            Weight(f"{XLNET_LAYER}rel_attn.r", f"{RELATIVE}.project.weight", INTO_HEADS),
            Weight(f"{XLNET_LAYER}rel_attn.o", f"{BLOCK}.mixer.merge.weight", OUT_OF_HEADS),
            Weight(f"{XLNET_LAYER}rel_attn.r_w_bias", f"{RELATIVE}.content.weight", HEAD_BIAS),
            Weight(f"{XLNET_LAYER}rel_attn.r_r_bias", f"{RELATIVE}.position.weight", HEAD_BIAS),
            Weight(f"{XLNET_LAYER}rel_attn.r_s_bias", f"{RELATIVE}.segments.bias.weight", HEAD_BIAS),
            Weight(f"{XLNET_LAYER}rel_attn.seg_embed", f"{RELATIVE}.segments.weight"),
            *affine(f"{XLNET_LAYER}rel_attn.layer_norm", f"{BLOCK}.mixer_norm"),
            *affine(f"{XLNET_LAYER}ff.layer_1", f"{BLOCK}.feedforward.widen"),
            *affine(f"{XLNET_LAYER}ff.layer_2", f"{BLOCK}.feedforward.narrow"),
            *affine(f"{XLNET_LAYER}ff.layer_norm", f"{BLOCK}.feedforward_norm"),
        ),
    ),
    heads=(Part(PREDICTION, affine("lm_loss", "network.tokens.logits")),),
    foreign=("sequence_summary.", "logits_proj.", "classifier.", "start_logits.", "end_logits.", "answer_class."),
    classes={"XLNetLMHeadModel": (PREDICTION,), "XLNetModel": ()},
)
