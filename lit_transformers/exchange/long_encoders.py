"""Encoders of long rows, each as a table.

Longformer (arXiv:2004.05150) and BigBird (arXiv:2007.14062), as transformers 5 names their fields and tensors. Except
for their attention, Longformer has the layers of RoBERTa, and BigBird has the layers of BERT.
"""

from __future__ import annotations

from itertools import chain, repeat

from lit_transformers.config import ConfigError, Plain
from lit_transformers.exchange.encoders import (
    BLOCK,
    SHARED_FIXED,
    SHARED_REFUSED,
    SHARED_SETTINGS,
    embeddings,
    layer,
    nonlinear,
    pooler,
    prediction,
)
from lit_transformers.exchange.mapping import (
    ACTIVATION,
    POOLER,
    PREDICTION,
    RELATION,
    SYMBOLS,
    Architecture,
    Conversion,
    Fields,
    Part,
    Setting,
    affine,
    position_count,
)

__all__ = ["BIG_BIRD", "LONGFORMER"]


def _read_windows(windows: Plain, fields: Fields) -> Plain:
    """Returns half of each window, which theirs counts on both sides: one number, or one for each run of layers."""
    depth = fields["num_hidden_layers"]
    of_layers = windows if isinstance(windows, list) else [windows] * depth
    if len(of_layers) != depth or not all(isinstance(w, int) and w > 0 and w % 2 == 0 for w in of_layers):
        raise ConfigError(f"wants an even window, or one for each of {depth} layers, not {windows!r}")
    runs = next(
        n for n in range(1, depth + 1) if depth % n == 0 and _each(of_layers[:: depth // n], depth) == of_layers
    )
    halves = [window // 2 for window in of_layers[:: depth // runs]]
    return halves[0] if runs == 1 else halves


def _write_windows(windows: Plain, fields: Fields) -> Plain:
    """Returns the windows of all layers on both sides."""
    halves = [windows] if isinstance(windows, int) else list(windows or [])
    return [2 * half for half in _each(halves, fields["num_hidden_layers"])] or None


def _each(values: list[int], depth: int) -> list[int]:
    """Returns the value of each layer, given those of equal runs of layers."""
    return list(chain.from_iterable(repeat(value, depth // len(values)) for value in values))


LONGFORMER = Architecture(
    name="longformer",
    prefix="longformer.",
    settings=(
        *SHARED_SETTINGS,
        *nonlinear(),
        Setting("max_position_embeddings", "positions.max_length", conversion=position_count(2)),
        Setting("attention_window", "mixer.window", 512, Conversion(_read_windows, _write_windows)),
    ),
    fixed=SHARED_FIXED
    | {
        "transform": "gelu",
        "mixer": {"kind": "window", "global_tokens": "marked", "global_projections": "separate"},
    },
    refused=SHARED_REFUSED | {"pad_token_id": 1, "ignore_attention_mask": False, "attention_mode": "longformer"},
    written={"pad_token_id": 1},
    symbols=(*SYMBOLS, "sep_token_id"),
    encoder=Part(
        "encoder",
        (
            *embeddings("longformer.embeddings.", 2),
            *layer("longformer.encoder.layer.{layer}."),
            *affine("longformer.encoder.layer.{layer}.attention.self.query_global", f"{BLOCK}.mixer.global_maps.0"),
            *affine("longformer.encoder.layer.{layer}.attention.self.key_global", f"{BLOCK}.mixer.global_maps.1"),
            *affine("longformer.encoder.layer.{layer}.attention.self.value_global", f"{BLOCK}.mixer.global_maps.2"),
        ),
    ),
    heads=(
        prediction("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
        pooler("longformer.pooler.dense"),
    ),
    foreign=("classifier.", "qa_outputs."),
    classes={"LongformerForMaskedLM": (PREDICTION,), "LongformerModel": ()},
    notes=(
        "global tokens: transformers has those of global_attention_mask, none without it; here the data mark them, or "
        "else each row's first is one",
    ),
)

BIG_BIRD = Architecture(
    name="big_bird",
    prefix="bert.",
    settings=(
        *SHARED_SETTINGS,
        *nonlinear("gelu_new"),
        Setting("hidden_act", "transform", "gelu_new", ACTIVATION),
        Setting("max_position_embeddings", "positions.max_length", 4096),
        Setting("rescale_embeddings", "tokens.scaled", False),
        Setting("block_size", "mixer.block", 64),
        Setting("num_random_blocks", "mixer.random", 3),
    ),
    fixed={name: value for name, value in SHARED_FIXED.items() if name != "tokens.scaled"}
    | {"mixer": {"kind": "big_bird"}},
    refused=SHARED_REFUSED | {"attention_type": "block_sparse", "use_bias": True},
    written={"attention_type": "block_sparse", "use_bias": True},
    symbols=(*SYMBOLS, "sep_token_id"),
    encoder=Part("encoder", (*embeddings("bert.embeddings."), *layer("bert.encoder.layer.{layer}."))),
    heads=(
        prediction(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
            "cls.predictions.bias",
        ),
        pooler("bert.pooler"),
        Part(RELATION, affine("cls.seq_relationship", "heads.relation.map.2")),
    ),
    foreign=("classifier.", "qa_classifier.", "qa_outputs."),
    classes={
        "BigBirdForPreTraining": (PREDICTION, POOLER, RELATION),
        "BigBirdForMaskedLM": (PREDICTION,),
        "BigBirdModel": (),
    },
    notes=(
        "random blocks: transformers draws others in training, takes the first block for each of them in evaluation, "
        "and attends in full to rows of up to 5 + 2 num_random_blocks blocks; the numbers of rows of up to "
        "4 + num_random_blocks blocks are the same",
    ),
)
