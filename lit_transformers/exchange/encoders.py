"""Encoders with full attention, each as a table.

BERT (arXiv:1810.04805), RoBERTa (arXiv:1907.11692), DistilBERT (arXiv:1910.01108), ALBERT (arXiv:1909.11942) and
ELECTRA (arXiv:2003.10555), as transformers 5 names their fields and tensors. The properties that all of them share, and
this suite has, are fixed: norms after residual sums, learned positions, biases in all maps. In training, dropout
differs in two places: DistilBERT has none after attention, ALBERT's code none after the feed-forward, and here both
have.

Relations are numbered as in the checkpoint: BERT's 0 is a second segment that follows the first, 1 one from elsewhere;
ALBERT's 0 is the original order of two segments, 1 the other order.
"""

from __future__ import annotations

from lit_transformers.config import Plain
from lit_transformers.exchange.mapping import (
    ACTIVATION,
    NARROWER,
    POOLER,
    POSITIVE,
    PREDICTION,
    RELATION,
    SYMBOLS,
    Architecture,
    Part,
    Setting,
    Weight,
    affine,
    position_count,
    position_table,
)

__all__ = [
    "ALBERT",
    "BERT",
    "BLOCK",
    "DISTILBERT",
    "ELECTRA",
    "ROBERTA",
    "SHARED_FIXED",
    "SHARED_REFUSED",
    "SHARED_SETTINGS",
    "embeddings",
    "layer",
    "nonlinear",
    "pooler",
    "prediction",
]

BLOCK = "network.stack.blocks.{layer}"
ENTRY = "network.stack.entry"

SHARED_FIXED: dict[str, Plain] = {
    "norm": "post",
    "positions": {"kind": "learned", "restart": "document"},
    "tokens.scaled": False,
    "mixer.bias": True,
    "embedding_norm": True,
}
SHARED_REFUSED: dict[str, Plain] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "quantization_config": None,
}
SHARED_SETTINGS = (
    Setting("hidden_size", "dim"),
    Setting("num_hidden_layers", "depth"),
    Setting("num_attention_heads", "heads"),
    Setting("intermediate_size", "feedforward.width"),
    Setting("type_vocab_size", "segments", 2, POSITIVE),
    Setting("layer_norm_eps", "norm_epsilon", 1e-12),
    Setting("initializer_range", "initial_std", 0.02),
    Setting("tie_word_embeddings", "tokens.tied", True),
)
POSITIONS = Setting("max_position_embeddings", "positions.max_length")


def nonlinear(activation: str = "gelu", dropout: float = 0.1) -> tuple[Setting, ...]:
    """Returns the settings of activation and dropout, with the values that transformers takes where none are given."""
    return (
        Setting("hidden_act", "feedforward.activation", activation, ACTIVATION),
        Setting("attention_probs_dropout_prob", "mixer.dropout", dropout),
        Setting("hidden_dropout_prob", "dropout", dropout),
    )


def embeddings(prefix: str, skipped: int = 0) -> tuple[Weight, ...]:
    """Returns the pairs of the embeddings. skipped: rows of the position table that no token reads."""
    return (
        Weight(f"{prefix}word_embeddings.weight", "network.tokens.table.weight"),
        Weight(f"{prefix}position_embeddings.weight", f"{ENTRY}.positions.weight", position_table(skipped)),
        Weight(f"{prefix}token_type_embeddings.weight", "network.segments.weight"),
        *affine(f"{prefix}LayerNorm", f"{ENTRY}.norm"),
    )


def layer(prefix: str) -> tuple[Weight, ...]:
    """Returns the pairs of a layer of BERT, which RoBERTa and ELECTRA share."""
    return (
        *affine(f"{prefix}attention.self.query", f"{BLOCK}.mixer.query"),
        *affine(f"{prefix}attention.self.key", f"{BLOCK}.mixer.key"),
        *affine(f"{prefix}attention.self.value", f"{BLOCK}.mixer.value"),
        *affine(f"{prefix}attention.output.dense", f"{BLOCK}.mixer.merge"),
        *affine(f"{prefix}attention.output.LayerNorm", f"{BLOCK}.mixer_norm"),
        *affine(f"{prefix}intermediate.dense", f"{BLOCK}.feedforward.widen"),
        *affine(f"{prefix}output.dense", f"{BLOCK}.feedforward.narrow"),
        *affine(f"{prefix}output.LayerNorm", f"{BLOCK}.feedforward_norm"),
    )


def prediction(transform: str, norm: str, softmax: str, bias: str) -> Part:
    """Returns the part that predicts symbols. bias: the other name of the softmax's bias, which old checkpoints have
    alone."""
    copies = () if bias == f"{softmax}.bias" else (bias,)
    return Part(
        PREDICTION,
        (
            *affine(transform, "network.transform.0"),
            *affine(norm, "network.transform.2"),
            Weight(f"{softmax}.weight", "network.tokens.logits.weight"),
            Weight(f"{softmax}.bias", "network.tokens.logits.bias", also=copies),
        ),
    )


def pooler(name: str) -> Part:
    """Returns the part that maps the first vector of a row."""
    return Part(POOLER, affine(name, "heads.relation.map.0"))


BERT = Architecture(
    name="bert",
    prefix="bert.",
    settings=(*SHARED_SETTINGS, *nonlinear(), POSITIONS, Setting("hidden_act", "transform", "gelu", ACTIVATION)),
    fixed=SHARED_FIXED,
    refused=SHARED_REFUSED | {"embedding_size": None},
    written={},
    symbols=SYMBOLS,
    encoder=Part("encoder", (*embeddings("bert.embeddings."), *layer("bert.encoder.layer.{layer}."))),
    heads=(
        prediction(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.decoder",
            "cls.predictions.bias",
        ),
        pooler("bert.pooler.dense"),
        Part(RELATION, affine("cls.seq_relationship", "heads.relation.map.2")),
    ),
    foreign=("classifier.", "qa_outputs."),
    classes={
        "BertForPreTraining": (PREDICTION, POOLER, RELATION),
        "BertForNextSentencePrediction": (POOLER, RELATION),
        "BertForMaskedLM": (PREDICTION,),
        "BertModel": (),
    },
)

ROBERTA = Architecture(
    name="roberta",
    prefix="roberta.",
    settings=(
        *SHARED_SETTINGS,
        *nonlinear(),
        Setting("max_position_embeddings", "positions.max_length", conversion=position_count(2)),
    ),
    fixed=SHARED_FIXED | {"transform": "gelu"},
    refused=SHARED_REFUSED | {"pad_token_id": 1},
    written={"pad_token_id": 1},
    symbols=SYMBOLS,
    encoder=Part("encoder", (*embeddings("roberta.embeddings.", 2), *layer("roberta.encoder.layer.{layer}."))),
    heads=(
        prediction("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
        pooler("roberta.pooler.dense"),
    ),
    foreign=("classifier.", "qa_outputs."),
    classes={"RobertaForMaskedLM": (PREDICTION,), "RobertaModel": ()},
)

DISTILBERT = Architecture(
    name="distilbert",
    prefix="distilbert.",
    settings=(
        Setting("dim", "dim"),
        Setting("n_layers", "depth"),
        Setting("n_heads", "heads"),
        Setting("hidden_dim", "feedforward.width"),
        Setting("activation", "feedforward.activation", "gelu", ACTIVATION),
        Setting("activation", "transform", "gelu", ACTIVATION),
        Setting("attention_dropout", "mixer.dropout", 0.1),
        Setting("dropout", "dropout", 0.1),
        Setting("initializer_range", "initial_std", 0.02),
        Setting("tie_word_embeddings", "tokens.tied", True),
        POSITIONS,
    ),
    fixed=SHARED_FIXED | {"norm_epsilon": 1e-12, "segments": 0},
    refused=SHARED_REFUSED | {"sinusoidal_pos_embds": False},
    written={},
    symbols=SYMBOLS,
    encoder=Part(
        "encoder",
        (
            *(pair for pair in embeddings("distilbert.embeddings.") if pair.ours != "network.segments.weight"),
            *affine("distilbert.transformer.layer.{layer}.attention.q_lin", f"{BLOCK}.mixer.query"),
            *affine("distilbert.transformer.layer.{layer}.attention.k_lin", f"{BLOCK}.mixer.key"),
            *affine("distilbert.transformer.layer.{layer}.attention.v_lin", f"{BLOCK}.mixer.value"),
            *affine("distilbert.transformer.layer.{layer}.attention.out_lin", f"{BLOCK}.mixer.merge"),
            *affine("distilbert.transformer.layer.{layer}.sa_layer_norm", f"{BLOCK}.mixer_norm"),
            *affine("distilbert.transformer.layer.{layer}.ffn.lin1", f"{BLOCK}.feedforward.widen"),
            *affine("distilbert.transformer.layer.{layer}.ffn.lin2", f"{BLOCK}.feedforward.narrow"),
            *affine("distilbert.transformer.layer.{layer}.output_layer_norm", f"{BLOCK}.feedforward_norm"),
        ),
    ),
    heads=(prediction("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),),
    foreign=("pre_classifier.", "classifier.", "qa_outputs."),
    classes={"DistilBertForMaskedLM": (PREDICTION,), "DistilBertModel": ()},
)

ALBERT_LAYER = "albert.encoder.albert_layer_groups.{layer}.albert_layers.0"
ALBERT = Architecture(
    name="albert",
    prefix="albert.",
    settings=(
        *SHARED_SETTINGS,
        *nonlinear("gelu_new", 0.0),
        Setting("hidden_act", "transform", "gelu_new", ACTIVATION),
        Setting("embedding_size", "embedding_dim", 128),
        Setting("num_hidden_groups", "stack.groups", 1),
        POSITIONS,
    ),
    fixed=SHARED_FIXED | {"stack": {"kind": "shared"}},
    refused=SHARED_REFUSED | {"inner_group_num": 1},
    written={"inner_group_num": 1},
    symbols=SYMBOLS,
    encoder=Part(
        "encoder",
        (
            *embeddings("albert.embeddings."),
            *affine("albert.encoder.embedding_hidden_mapping_in", f"{ENTRY}.widen"),
            *affine(f"{ALBERT_LAYER}.attention.query", f"{BLOCK}.mixer.query"),
            *affine(f"{ALBERT_LAYER}.attention.key", f"{BLOCK}.mixer.key"),
            *affine(f"{ALBERT_LAYER}.attention.value", f"{BLOCK}.mixer.value"),
            *affine(f"{ALBERT_LAYER}.attention.dense", f"{BLOCK}.mixer.merge"),
            *affine(f"{ALBERT_LAYER}.attention.LayerNorm", f"{BLOCK}.mixer_norm"),
            *affine(f"{ALBERT_LAYER}.ffn", f"{BLOCK}.feedforward.widen"),
            *affine(f"{ALBERT_LAYER}.ffn_output", f"{BLOCK}.feedforward.narrow"),
            *affine(f"{ALBERT_LAYER}.full_layer_layer_norm", f"{BLOCK}.feedforward_norm"),
        ),
    ),
    heads=(
        prediction("predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions.bias"),
        pooler("albert.pooler"),
        Part(RELATION, affine("sop_classifier.classifier", "heads.relation.map.2")),
    ),
    foreign=("classifier.", "qa_outputs."),
    classes={
        "AlbertForPreTraining": (PREDICTION, POOLER, RELATION),
        "AlbertForMaskedLM": (PREDICTION,),
        "AlbertModel": (),
    },
)

ELECTRA = Architecture(
    name="electra",
    prefix="electra.",
    settings=(
        *SHARED_SETTINGS,
        *nonlinear(),
        Setting("embedding_size", "embedding_dim", 128, NARROWER),
        POSITIONS,
    ),
    fixed=SHARED_FIXED | {"transform": "gelu"},
    refused=SHARED_REFUSED,
    written={},
    symbols=SYMBOLS,
    encoder=Part(
        "encoder",
        (
            *embeddings("electra.embeddings."),
            *affine("electra.embeddings_project", f"{ENTRY}.widen"),
            *layer("electra.encoder.layer.{layer}."),
        ),
    ),
    heads=(
        prediction(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            "generator_lm_head.bias",
        ),
    ),
    foreign=("discriminator_predictions.", "sequence_summary.", "classifier.", "qa_outputs."),
    classes={"ElectraForMaskedLM": (PREDICTION,), "ElectraModel": ()},
)
