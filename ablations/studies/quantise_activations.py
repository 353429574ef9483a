"""The loss of quantised inputs of linear maps, by the scales that they share, next to quantised weights alone (Zafrir
et al. 2019, arXiv:1910.06188)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Published, Scale, Source
from ablations.compression import COMPRESSED, PACKED, SINGLE
from ablations.fine_tuning import FETCH, SEEDS, SENTIMENT_NATS
from lit_transformers.compression import QuantiseActivationsConfig, QuantiseWeightsConfig

WEIGHTS = QuantiseWeightsConfig(bits=8)


def quantised(**fields: Any) -> Mapping[str, Any]:
    """Returns the overrides of an arm with weights of 8 bits whose inputs are quantised."""
    return {"compression": (WEIGHTS, QuantiseActivationsConfig(**fields))}


ABLATION = Ablation(
    question="Which scales of activations does an encoder of 8 bits need?",
    answer=["inputs of 8 bits, by vector"],
    source=Source("Zafrir et al. 2019", arxiv="1910.06188"),
    baseline=COMPRESSED,
    factors={
        "numbers": {
            "float32": {},
            "bf16": {"training.precision": "bf16"},
            "weights_8": {"compression": (WEIGHTS,)},
            "dynamic_row_8": quantised(),
            "dynamic_tensor_8": quantised(by="tensor"),
            "static_tensor_8": quantised(scales="static", by="tensor"),
            "dynamic_row_4": quantised(bits=4),
        }
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    also=[PACKED],
    contrasts=[
        Contrast("bfloat16", "numbers=bf16", "baseline"),
        Contrast("weights of 8 bits", "numbers=weights_8", "baseline"),
        Contrast("inputs of 8 bits, by vector", "numbers=dynamic_row_8", "numbers=weights_8"),
        Contrast("weights and inputs of 8 bits", "numbers=dynamic_row_8", "baseline"),
        Contrast(
            "a scale for each tensor in place of each vector", "numbers=dynamic_tensor_8", "numbers=dynamic_row_8"
        ),
        Contrast("static scales in place of dynamic ones", "numbers=static_tensor_8", "numbers=dynamic_tensor_8"),
        Contrast("inputs of 4 bits, by vector", "numbers=dynamic_row_4", "numbers=weights_8"),
    ],
    published=Published(
        protocol="BERT with weights and activations of 8 bits, quantised in fine-tuning, with static scales of "
        "activations; here after it",
        metric="GLUE",
        goal="maximize",
        claims=["With 8 bits BERT is 4 times smaller and loses little accuracy."],
    ),
    scales={"demo": Scale(), "gpu": Scale(overrides=SINGLE), "paper": Scale(overrides=SINGLE, seeds=1)},
    preparation=FETCH,
)
