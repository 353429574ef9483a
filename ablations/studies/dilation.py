"""Dilated windows in upper layers (Beltagy et al. 2020, arXiv:2004.05150, table 4)."""

from __future__ import annotations

from ablations.ablation import Ablation, Margin, Match, Published, PublishedValue, Source
from ablations.baselines import BITS_PER_BYTE, CHARACTERS, LAGS_IN_SEGMENTS, RELATIVE, RELATIVE_TEXT, character_scales
from lit_transformers.mixers import WindowConfig

UPPER = (1, 1, 2, 4)
"""Dilation of each quarter of the layers; the paper's are 1, 1, 2, 3, 4 over twelve, with none in the lower half."""

ABLATION = Ablation(
    question="Does dilating the windows of upper layers help, and is it better done in a few heads?",
    source=Source("Beltagy et al. 2020", arxiv="2004.05150", table="4"),
    baseline=CHARACTERS.override({"model.depth": 4, "model.mixer": WindowConfig(window=16)}),
    factors={
        "dilation": {
            "none": {},
            "some_heads": {"model.mixer.dilation": UPPER, "model.mixer.dilated_heads": 2},
            "all_heads": {"model.mixer.dilation": UPPER},
        }
    },
    design="one_factor",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("tokens"),
    published=Published(
        protocol="text8 development set, 12 layers, windows from 32 to 512, after phase 1 (150K steps)",
        metric="bits per character",
        cells=[PublishedValue("baseline", 1.21), PublishedValue("dilation=some_heads", 1.20, note="two heads")],
    ),
    scales=character_scales(
        {**LAGS_IN_SEGMENTS, **RELATIVE, "model.mixer.window": 4},
        Margin(0.04, "a tenth of the gain from the second lag, which four windows of 4 reach only with dilation"),
        RELATIVE_TEXT,
    ),
)
