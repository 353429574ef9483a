"""Language models, each as a table.

GPT-2 (Radford et al. 2019), as transformers 5 names its fields and tensors: norms before sublayers and after the last,
learned positions that are never restarted, and a softmax without a bias. In training this suite drops channels after
the last norm too, where GPT-2 does not. A row may not be longer than the table of positions.
"""

from __future__ import annotations

from lit_transformers.config import Plain
from lit_transformers.exchange.mapping import (
    ACTIVATION,
    PREDICTION,
    SYMBOLS,
    TRANSPOSED,
    Architecture,
    Conversion,
    Family,
    Fields,
    Fused,
    Part,
    Setting,
    Weight,
    affine,
    position_table,
)
from lit_transformers.models import LanguageModelConfig
from lit_transformers.tasks import CausalLMConfig

__all__ = ["GPT2"]

BLOCK = "network.stack.blocks.{layer}"
CHANNELS = 768
"""The width of the layers where it is not given."""


def _read_width(width: Plain, fields: Fields) -> Plain:
    channels = fields.get("n_embd", CHANNELS)
    return 4 * channels if width is None and isinstance(channels, int) else width


FOUR_TIMES = Conversion(_read_width, lambda width, fields: width)
"""Of the width of the feed-forward, which is four times that of the layers where it is not given."""


def transposed(theirs: str, ours: str) -> tuple[Weight, Weight]:
    """Returns the pairs of weight and bias of a map whose weight a checkpoint holds as (inputs, outputs)."""
    return Weight(f"{theirs}.weight", f"{ours}.weight", TRANSPOSED), Weight(f"{theirs}.bias", f"{ours}.bias")


def fused(end: str, dim: int) -> Fused:
    """Returns the projections to queries, keys and values, which are one tensor whose name ends like this."""
    return Fused(f".attn.c_attn.{end}", tuple(f".attn.c_attn.{name}.{end}" for name in ("query", "key", "value")), dim)


GPT2 = Architecture(
    name="gpt2",
    prefix="transformer.",
    settings=(
        Setting("n_embd", "dim", CHANNELS),
        Setting("n_layer", "depth", 12),
        Setting("n_head", "heads", 12),
        Setting("n_inner", "feedforward.width", None, FOUR_TIMES),
        Setting("activation_function", "feedforward.activation", "gelu_new", ACTIVATION),
        Setting("layer_norm_epsilon", "norm_epsilon", 1e-5),
        Setting("initializer_range", "initial_std", 0.02),
        Setting("attn_pdrop", "mixer.dropout", 0.1),
        Setting("embd_pdrop", "dropout", 0.1),
        Setting("resid_pdrop", "dropout", 0.1),
        Setting("scale_attn_weights", "mixer.scaled", True),
        Setting("tie_word_embeddings", "tokens.tied", True),
        Setting("n_positions", "positions.max_length", 1024),
    ),
    fixed={
        "norm": "pre",
        "positions": {"kind": "learned", "restart": "document"},
        "tokens.scaled": False,
        "tokens.bias": False,
        "mixer.bias": True,
    },
    refused={
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "pruned_heads": {},
        "quantization_config": None,
    },
    written={},
    symbols=SYMBOLS,
    encoder=Part(
        "network",
        (
            Weight("transformer.wte.weight", "network.tokens.table.weight"),
            Weight("transformer.wpe.weight", "network.stack.entry.positions.weight", position_table()),
            *affine("transformer.h.{layer}.ln_1", f"{BLOCK}.mixer_norm"),
            *transposed("transformer.h.{layer}.attn.c_attn.query", f"{BLOCK}.mixer.query"),
            *transposed("transformer.h.{layer}.attn.c_attn.key", f"{BLOCK}.mixer.key"),
            *transposed("transformer.h.{layer}.attn.c_attn.value", f"{BLOCK}.mixer.value"),
            *transposed("transformer.h.{layer}.attn.c_proj", f"{BLOCK}.mixer.merge"),
            *affine("transformer.h.{layer}.ln_2", f"{BLOCK}.feedforward_norm"),
            *transposed("transformer.h.{layer}.mlp.c_fc", f"{BLOCK}.feedforward.widen"),
            *transposed("transformer.h.{layer}.mlp.c_proj", f"{BLOCK}.feedforward.narrow"),
            *affine("transformer.ln_f", "network.norm"),
        ),
    ),
    heads=(Part(PREDICTION, (Weight("lm_head.weight", "network.tokens.logits.weight"),)),),
    foreign=("multiple_choice_head.", "score.", "classifier.", "qa_outputs."),
    classes={"GPT2LMHeadModel": ()},
    family=Family(LanguageModelConfig(), CausalLMConfig(), (PREDICTION,)),
    fused=(fused("weight", 1), fused("bias", 0)),
)
