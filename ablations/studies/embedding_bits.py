"""The loss of quantised tables of embeddings with a scale for each row; layers keep float32 (Zafrir et al. 2019,
arXiv:1910.06188)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Published, Source
from ablations.compression import COMPRESSED, PACKED, SCALES
from ablations.fine_tuning import FETCH, SEEDS, SENTIMENT_NATS
from lit_transformers.compression import QuantiseWeightsConfig


def quantised(bits: int) -> Mapping[str, Any]:
    """Returns the overrides of an arm whose tables of symbols, positions and segments are quantised by row."""
    return {"compression": (QuantiseWeightsConfig(bits=bits, parameters=("embeddings",)),)}


ABLATION = Ablation(
    question="How many bits does an embedding of a fine-tuned encoder need?",
    answer=["4 bits"],
    source=Source("Zafrir et al. 2019", arxiv="1910.06188"),
    baseline=COMPRESSED,
    factors={"embeddings": {"float32": {}, **{str(bits): quantised(bits) for bits in (8, 4, 3, 2)}}},
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    also=[PACKED],
    contrasts=[Contrast(f"{bits} bits", f"embeddings={bits}", "baseline") for bits in (8, 4, 3, 2)],
    published=Published(
        protocol="BERT with embeddings, weights and activations of 8 bits, quantised in fine-tuning; here embeddings "
        "alone, after it",
        metric="GLUE",
        goal="maximize",
        claims=["With 8 bits BERT is 4 times smaller and loses little accuracy."],
    ),
    scales=SCALES,
    preparation=FETCH,
)
