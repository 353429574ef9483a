"""The loss of quantised weights, by their bits and by how many of them share a scale (Zafrir et al. 2019,
arXiv:1910.06188)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Published, Source
from ablations.compression import COMPRESSED, PACKED, SCALES
from ablations.fine_tuning import FETCH, SEEDS, SENTIMENT_NATS
from lit_transformers.compression import QuantiseWeightsConfig


def quantised(bits: int, **fields: Any) -> Mapping[str, Any]:
    """Returns the overrides of an arm whose matrices are quantised after training."""
    return {"compression": (QuantiseWeightsConfig(bits=bits, **fields),)}


ABLATION = Ablation(
    question="How many bits does a weight of a fine-tuned encoder need?",
    answer=["4 bits by channel"],
    source=Source("Zafrir et al. 2019", arxiv="1910.06188"),
    baseline=COMPRESSED,
    factors={
        "weights": {
            "float32": {},
            "8_channel": quantised(8),
            "8_tensor": quantised(8, granularity="tensor"),
            "4_channel": quantised(4),
            "4_group": quantised(4, granularity="group", group=64),
            "4_asymmetric": quantised(4, symmetric=False),
            "4_tensor": quantised(4, granularity="tensor"),
            "3_channel": quantised(3),
            "2_channel": quantised(2),
        }
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    also=[PACKED],
    contrasts=[
        Contrast("8 bits by channel", "weights=8_channel", "baseline"),
        Contrast("8 bits by tensor", "weights=8_tensor", "baseline"),
        Contrast("4 bits by channel", "weights=4_channel", "baseline"),
        Contrast("4 bits by group", "weights=4_group", "baseline"),
        Contrast("4 bits with a zero point", "weights=4_asymmetric", "baseline"),
        Contrast("4 bits by tensor in place of by channel", "weights=4_tensor", "weights=4_channel"),
        Contrast("4 bits by group in place of by channel", "weights=4_group", "weights=4_channel"),
        Contrast("levels from the smallest weight to the largest", "weights=4_asymmetric", "weights=4_channel"),
        Contrast("3 bits by channel", "weights=3_channel", "baseline"),
        Contrast("2 bits by channel", "weights=2_channel", "baseline"),
    ],
    published=Published(
        protocol="BERT with weights and activations of 8 bits, quantised in fine-tuning; here weights alone, after it",
        metric="GLUE",
        goal="maximize",
        claims=["With 8 bits BERT is 4 times smaller and loses little accuracy."],
    ),
    scales=SCALES,
    preparation=FETCH,
)
