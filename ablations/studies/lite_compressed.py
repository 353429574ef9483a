"""Lite Transformer, pruned and quantised (Wu et al. 2020, arXiv:2004.11886, section 5: 18.2 times smaller)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ablations.ablation import Ablation, Contrast, Margin, Published, Scale, Source
from ablations.compression import PACKED
from ablations.pairs import BLEU, MULTI30K, TRANSLATION, WMT14, in_self_attention
from lit_transformers.compression import PruneWeightsConfig, QuantiseWeightsConfig
from lit_transformers.mixers import ConvolutionConfig, LSRAConfig

LITE = TRANSLATION.override(in_self_attention(LSRAConfig(convolution=ConvolutionConfig(kernel=7))))
"""The translator of the demo of ``lite_translation`` with long-short range attention."""
SECOND: Mapping[str, Any] = {"training.optimizer.learning_rate": 4e-3, "training.schedule.warmup": 100}
"""How a network that starts from the trained one learns further."""


def after(dense: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the overrides of a run that trains the translator further, which had these overrides."""
    return {**dense, "start": {"network": {"run": LITE.override(dense).to_dict()}}}


def pruned(sparsity: float, bits: int | None = 8) -> Mapping[str, Any]:
    """Returns the overrides of an arm that prunes all matrices, embeddings included, along a cubic in the first half of
    its updates, recovers in the second, and quantises them at the end. bits: None for float32."""
    pruning = PruneWeightsConfig(sparsity=sparsity, begin=0.0, end=0.5)
    quantising = () if bits is None else (QuantiseWeightsConfig(bits=bits),)
    return {"compression": (pruning, *quantising)}


ABLATION = Ablation(
    question="Does Lite Transformer keep its BLEU when it is pruned and quantised to a packed file 18 times smaller?",
    answer=["85 % of the weights pruned and 8 bits", "8 bits"],
    source=Source("Wu et al. 2020", arxiv="2004.11886"),
    baseline=LITE.override({**after({}), **SECOND}),
    factors={
        "compressed": {
            "no": {},
            "8_bits": {"compression": (QuantiseWeightsConfig(bits=8),)},
            "85": pruned(0.85, bits=None),
            "80_8_bits": pruned(0.80),
            "85_8_bits": pruned(0.85),
            "90_8_bits": pruned(0.90),
            "85_8_bits_random": {
                "compression": (
                    PruneWeightsConfig(sparsity=0.85, begin=0.0, end=0.5, score="random"),
                    QuantiseWeightsConfig(bits=8),
                )
            },
        }
    },
    design="one_factor",
    seeds=4,
    metric=replace(BLEU, margin=Margin(0.3, "the loss of BLEU that the paper calls negligible")),
    also=[PACKED],
    contrasts=[
        Contrast("8 bits", "compressed=8_bits", "baseline"),
        Contrast("85 % of the weights pruned", "compressed=85", "baseline"),
        Contrast("80 % of the weights pruned and 8 bits", "compressed=80_8_bits", "baseline"),
        Contrast("85 % of the weights pruned and 8 bits", "compressed=85_8_bits", "baseline"),
        Contrast("90 % of the weights pruned and 8 bits", "compressed=90_8_bits", "baseline"),
        Contrast("magnitude in place of chance", "compressed=85_8_bits", "compressed=85_8_bits_random"),
    ],
    published=Published(
        protocol="the authors' Lite Transformer on WMT14 English-French, pruned by magnitude, with 8 bits by k-means",
        metric="BLEU",
        claims=[
            "Pruned and quantised, Lite Transformer is 18.2 times smaller than its float32 weights.",
            "Here 4 bytes for each parameter, over the bytes of the packed checkpoint, are to stand next to it.",
        ],
    ),
    scales={
        "demo": Scale(),
        "gpu": Scale(overrides={**MULTI30K, **after(MULTI30K)}),
        "paper": Scale(overrides={**WMT14, **after(WMT14)}, seeds=1),
    },
)
