"""Lite Transformer, pruned and quantised (Wu et al. 2020, arXiv:2004.11886, abstract: 18.2 times)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ablations.ablation import Ablation, Contrast, Looks, Margin, Published, Scale, Source
from ablations.compression import PACKED
from ablations.pairs import BLEU, MULTI30K, TRANSLATION, WMT14, in_self_attention
from lit_transformers.compression import (
    CompressionConfig,
    PruneWeightsConfig,
    QuantiseWeightsConfig,
    ShareValuesConfig,
)
from lit_transformers.mixers import ConvolutionConfig, LSRAConfig
from lit_transformers.runs import RunConfig

LITE = TRANSLATION.override(in_self_attention(LSRAConfig(convolution=ConvolutionConfig(kernel=7))))
"""The translator of the demo of ``lite_translation`` with long-short range attention."""
EIGHT_BITS = QuantiseWeightsConfig(bits=8, granularity="tensor")
SIXTEEN_VALUES = ShareValuesConfig(bits=4)


def packed(scale: Mapping[str, Any] = MappingProxyType({})) -> RunConfig:
    """Returns the run of no steps that measures a translator which was trained, and then trained further with half of
    the updates at half of the rate. scale: overrides of all these runs."""
    trained = LITE.override(scale)
    steps, rate = trained.training.steps // 2, trained.training.optimizer.learning_rate / 2
    again = {"training.steps": steps, "training.schedule.warmup": steps // 20, "training.optimizer.learning_rate": rate}
    further = trained.override({**again, "training.average": None, "start.network": {"run": trained.to_dict()}})
    nothing = {"training.steps": 0, "training.schedule.warmup": 0, "training.average": None}
    return trained.override({**nothing, "start.network": {"run": further.to_dict()}})


def pruned(sparsity: float, *after: CompressionConfig, **fields: Any) -> Mapping[str, Any]:
    """Returns the overrides of an arm that prunes all matrices, embeddings included, along a cubic in the first half of
    the further updates, and recovers in the second half. after: the compressions that follow, of the remaining
    weights."""
    pruning = PruneWeightsConfig(sparsity=sparsity, begin=0.0, end=0.5, **fields)
    return {"start.network.run.compression": (pruning,), "compression": after}


def larger(scale: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the overrides of the baseline for a scale of translation."""
    run = packed(scale)
    return {**scale, "training": run.training, "start": run.start}


ABLATION = Ablation(
    question="Does Lite Transformer keep its BLEU when it is pruned and quantised to a packed file 18 times smaller?",
    answer=["90 % of the weights pruned and 16 shared values"],
    source=Source("Wu et al. 2020", arxiv="2004.11886"),
    baseline=packed(),
    factors={
        "compressed": {
            "no": {},
            "8_bits": {"compression": (EIGHT_BITS,)},
            "90": pruned(0.9),
            "85_8_bits": pruned(0.85, EIGHT_BITS),
            "90_8_bits": pruned(0.9, EIGHT_BITS),
            "90_16_values": pruned(0.9, SIXTEEN_VALUES),
            "90_16_values_random": pruned(0.9, SIXTEEN_VALUES, score="random"),
        }
    },
    design="one_factor",
    seeds=Looks(4, 8),
    metric=replace(BLEU, margin=Margin(0.3, "the loss of BLEU at which the paper computes 2.5 times less")),
    also=[PACKED],
    contrasts=[
        Contrast("8 bits", "compressed=8_bits", "baseline"),
        Contrast("90 % of the weights pruned", "compressed=90", "baseline"),
        Contrast("85 % of the weights pruned and 8 bits", "compressed=85_8_bits", "baseline"),
        Contrast("90 % of the weights pruned and 8 bits", "compressed=90_8_bits", "baseline"),
        Contrast("90 % of the weights pruned and 16 shared values", "compressed=90_16_values", "baseline"),
        Contrast("magnitude in place of chance", "compressed=90_16_values", "compressed=90_16_values_random"),
    ],
    published=Published(
        protocol="the authors' Lite Transformer, pruned and with weights of 8 bits",
        metric="BLEU",
        claims=[
            "Pruning and quantisation compress Lite Transformer by 18.2 times; the abstract does not say against what.",
            "Here it is 4 bytes for each parameter over the bytes of the packed checkpoint, with tokenizer and config.",
            "In the demo, whose tensors are small, codes and vectors take so much that 18 times need fewer bits.",
        ],
    ),
    scales={
        "demo": Scale(),
        "gpu": Scale(overrides=larger(MULTI30K)),
        "paper": Scale(overrides=larger(WMT14), seeds=1),
    },
)
