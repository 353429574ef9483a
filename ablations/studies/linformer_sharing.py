"""Shared projections, and kinds of projections (Wang et al. 2020, arXiv:2006.04768, section 4 and table 2)."""

from __future__ import annotations

from ablations.ablation import Ablation, Looks, Match, Published, Scale, Source
from ablations.baselines import SQUARED_ERROR, SUMS, SUMS_GPU, SUMS_MARGIN
from lit_transformers.mixers import LinformerConfig

ABLATION = Ablation(
    question="May heads, keys and values, or all layers share one projection, and must it be learned?",
    source=Source("Wang et al. 2020", arxiv="2006.04768", table="2"),
    baseline=SUMS.override({"model.mixer": LinformerConfig(rank=4), "data.source.length": 63, "training.steps": 1000}),
    factors={
        "projection": {
            "own": {},
            "of_heads": {"model.mixer.sharing": "heads"},
            "of_keys_and_values": {"model.mixer.sharing": "key_value"},
            "of_layers": {"model.mixer.sharing": "layers"},
            "frozen": {"model.mixer.frozen": True},
            "mean": {"model.mixer.projection": "mean"},
            "max": {"model.mixer.projection": "max"},
            "convolution": {"model.mixer.projection": "convolution"},
        }
    },
    design="one_factor",
    seeds=3,
    metric=SQUARED_ERROR,
    match=Match("tokens"),
    published=Published(
        protocol="mean accuracy of SST-2, IMDB, QNLI and QQP, k = 256 on 512 tokens",
        metric="accuracy",
        claims=["No sharing 92.08, keys and values 92.03, all layers 92.30: sharing costs nothing."],
    ),
    scales={
        "demo": Scale(seeds=Looks(4, 8), margin=SUMS_MARGIN),
        "gpu": Scale(overrides=dict(SUMS_GPU) | {"model.mixer.rank": 128}),
        "paper": Scale(
            overrides=dict(SUMS_GPU)
            | {"model.depth": 12, "model.dim": 768, "model.heads": 12, "model.mixer.rank": 256},
            seeds=1,
        ),
    },
)
