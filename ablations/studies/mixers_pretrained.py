"""Every bidirectional mixer by masked language modelling. This study reproduces no paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Looks, Margin, Match, Scale
from ablations.baselines import BERT_BASE, BOOKS_GPU, MASKED, MASKED_MARGIN, MASKED_NATS
from lit_transformers.mixers import (
    BigBirdConfig,
    ConvolutionConfig,
    EntmaxConfig,
    LinearConfig,
    LinformerConfig,
    LocalConfig,
    LSHConfig,
    LSRAConfig,
    StarConfig,
    SynthesizerConfig,
    TopKConfig,
    WindowConfig,
)

MIXERS: Mapping[str, Mapping[str, Any]] = {
    name: {"model.mixer": mixer}
    for name, mixer in {
        "local": LocalConfig(block=16),
        "window": WindowConfig(window=8),
        "big_bird": BigBirdConfig(block=8, random=1),
        "lsh": LSHConfig(chunk_length=16),
        "linformer": LinformerConfig(rank=16),
        "linear": LinearConfig(),
        "synthesizer": SynthesizerConfig(members=("random", "dense")),
        "top_k": TopKConfig(kept=8),
        "entmax": EntmaxConfig(),
        "convolution": ConvolutionConfig(kernel=17),
        "lsra": LSRAConfig(convolution=ConvolutionConfig(kernel=7)),
        "star": StarConfig(),
    }.items()
}

ABLATION = Ablation(
    question="At equal parameters and tokens, which mixer learns most of hidden words from both of their sides?",
    baseline=MASKED.override({"model.feedforward.width": 256}),
    factors={"mixer": {"attention": {}, **MIXERS}},
    design="one_factor",
    seeds=3,
    metric=MASKED_NATS,
    match=Match("parameters", free="model.feedforward.width"),
    scales={
        "demo": Scale(seeds=Looks(4, 8), margin=MASKED_MARGIN),
        "gpu": Scale(overrides=BOOKS_GPU, margin=Margin(0.02, "a hundredth of the loss of a piece")),
        "paper": Scale(overrides=BERT_BASE, seeds=1),
    },
)
