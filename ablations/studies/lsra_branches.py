"""Attention for distant tokens, convolution for near ones (LSRA; Wu et al. 2020, arXiv:2004.11886)."""

from __future__ import annotations

from ablations.ablation import Ablation, Margin, Match, Published, Source
from ablations.baselines import BITS_PER_BYTE, CHARACTERS, LAGS_IN_SEGMENTS, character_scales, lags
from lit_transformers.encodings import XLConfig
from lit_transformers.mixers import ConvolutionConfig, LSRAConfig

KERNELS = (3, 7, 15, 31)
"""The kernel sizes of each quarter of the layers; the authors use 3, 7, 15, 31, 31, 31 over six."""
LIGHT = ConvolutionConfig(kernel=KERNELS)

ABLATION = Ablation(
    question="Is half attention and half convolution better than either alone, at equal FLOPs?",
    answer=["branches=attention", "branches=convolution"],
    source=Source("Wu et al. 2020", arxiv="2004.11886", table="2"),
    baseline=CHARACTERS.override(
        {
            "model.depth": 4,
            "model.positions": None,
            "model.mixer": LSRAConfig(convolution=LIGHT, encoding=XLConfig()),
            "model.feedforward.width": 256,
        }
    ),
    factors={
        "branches": {
            "both": {},
            "both_dynamic": {"model.mixer.convolution.dynamic": True},
            "attention": {"model.mixer.branches": "attention", "model.mixer.convolution": ConvolutionConfig()},
            "convolution": {"model.mixer.branches": "convolution", "model.mixer.encoding": None},
        }
    },
    design="one_factor",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("flops", free="model.feedforward.width"),
    published=Published(
        protocol="WMT14 English-French, 527M multiply-adds for 30 tokens; the authors' released models",
        metric="BLEU",
        claims=["39.6 BLEU at 527M, 39.1 at 360M, 35.3 at 90M multiply-adds with both branches."],
    ),
    scales=character_scales(
        dict(LAGS_IN_SEGMENTS) | {"data.source": lags(2, 24), "model.mixer.convolution.kernel": (3, 3, 5, 5)},
        Margin(0.04, "a tenth of the gain from the second lag, which is farther than all four convolutions reach"),
    ),
)
