"""Functions that compress old memory (Rae et al. 2019, arXiv:1911.05507, table 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Looks, Margin, Match, Published, PublishedValue, Scale, Source
from ablations.baselines import (
    BITS_PER_BYTE,
    ENWIK8,
    GPU,
    LAGS,
    MEMORY,
    TEXT,
    TEXT_MARGIN,
    TRANSFORMER_XL,
    lags,
    without,
)
from lit_transformers.encodings import XLConfig
from lit_transformers.mixers import AttentionConfig, CompressiveConfig

XL = XLConfig()
COMPRESSED = CompressiveConfig(encoding=XL, memory=32, compressed_memory=32, rate=3)
FUNCTIONS: Mapping[str, Mapping[str, Any]] = {
    "convolution_auto_encoding": {"model.mixer.auxiliary": "auto_encoding"},
    "convolution_through_time": {"model.mixer.auxiliary": "none"},
    "dilated": {"model.mixer.function": "dilated"},
    "mean": {"model.mixer.function": "mean", "model.mixer.auxiliary": "none"},
    "max": {"model.mixer.function": "max", "model.mixer.auxiliary": "none"},
    "most_used": {"model.mixer.function": "most_used", "model.mixer.auxiliary": "none"},
    "no_compression": {"model.mixer": AttentionConfig(encoding=XL, memory=32)},
    "longer_memory": {"model.mixer": AttentionConfig(encoding=XL, memory=64)},
}

PILOT = "the first plan (seeds 0 to 7) had a rate of 6e-3, at which one of eight runs had not learned the near lag"

ABLATION = Ablation(
    question="Which compression of old memory serves a language model best, and is it better than forgetting?",
    source=Source("Rae et al. 2019", arxiv="1911.05507", table="5"),
    baseline=TRANSFORMER_XL.override({"model.mixer": COMPRESSED, "training.validate_every": None}),
    factors={"compression": {"convolution": {}, **FUNCTIONS}},
    design="one_factor",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("tokens"),
    published=Published(
        protocol="enwik8, 24 layers, rate 3; convolution and dilated with attention reconstruction",
        metric="bits per character",
        cells=[
            PublishedValue("baseline", 0.973),
            PublishedValue("compression=convolution_auto_encoding", 0.984),
            PublishedValue("compression=convolution_through_time", 0.996),
            PublishedValue("compression=dilated", 0.977),
            PublishedValue("compression=mean", 0.982),
            PublishedValue("compression=max", 0.986),
            PublishedValue("compression=most_used", 0.980),
        ],
        claims=["Transformer-XL has 18.3 perplexity on WikiText-103, the Compressive Transformer 17.1."],
        remarks={
            "compression=convolution_auto_encoding": (
                "The instrument: auto-encoding keeps what symbols were, the baseline's loss what attention has read of "
                "them. Here nothing makes attention read a far symbol before it has learned the lag, so a function "
                "that need not keep it may lose it; text has something to read at every distance. Both recover little "
                "of what the far lag is worth, and a memory that holds it most."
            ),
            "compression=convolution_through_time": (
                "Both the implementation and the instrument: while gradients are on, all slots are compressed again in "
                "every segment, so that the gradient of each prediction reaches the function at once; in the source it "
                "has to come back through the segments between. And one far symbol is all that there is to keep, "
                "which the task tells the function, and the loss of attention does not before the lag is learned."
            ),
        },
    ),
    scales={
        "demo": Scale(
            overrides=dict(LAGS)
            | {
                # With two layers, states of remembered symbols reach the far lag, compressed or not. Pilots: after 500
                # updates no function carries it; at a rate of 6e-3 one of eight runs had not learned the near lag.
                "model.depth": 1,
                "data.source": lags(8, 56),
                "training.steps": 1500,
                "training.optimizer.learning_rate": 3e-3,
            },
            seeds=Looks(4, 8, 16, first_seed=8, pilot=PILOT),
            margin=Margin(0.07, "a tenth of the gain from the second lag, which lies in what was compressed"),
        ),
        "hour": Scale(overrides=without(MEMORY, TEXT), seeds=Looks(4, 8), margin=TEXT_MARGIN),
        "gpu": Scale(overrides=dict(GPU) | {"training.validate_every": None}),
        "paper": Scale(overrides=dict(ENWIK8) | {"model.depth": 24, "model.dim": 1024}, seeds=1),
    },
)
