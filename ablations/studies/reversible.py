"""Reversible layers (Kitaev et al. 2020, arXiv:2001.04451, section 3, figure 3 and table 4)."""

from __future__ import annotations

from ablations.ablation import Ablation, Margin, Match, Published, Source
from ablations.baselines import (
    BITS_PER_BYTE,
    CHARACTERS,
    LAGS_IN_SEGMENTS,
    RELATIVE,
    RELATIVE_TEXT,
    character_scales,
    leaving,
)
from lit_transformers.stacks import ReversibleConfig

ABLATION = Ablation(
    question="Do reversible layers learn as well as residual ones, and what do they save?",
    answer=["stack"],
    source=Source("Kitaev et al. 2020", arxiv="2001.04451", table="4 and figure 3"),
    baseline=CHARACTERS,
    factors={
        "stack": {
            "residual": {},
            "reversible": {"model.stack": ReversibleConfig()},
        },
        "depth": {"shallow": {}, "8": {"model.depth": 8}, "16": {"model.depth": 16}},
    },
    design="product",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("tokens"),
    published=Published(
        protocol="enwik8 and imagenet64, curves without numbers; WMT14 English-German",
        metric="bits per dimension",
        claims=[
            "Reversible and plain layers learn alike (figure 3).",
            "Translation: a reversible base Transformer has 27.6 BLEU after 100K steps, the original 27.3.",
            "Peak memory of activations does not grow with depth; see cost and measured/peak_memory_bytes.",
        ],
    ),
    scales=leaving(
        character_scales(
            {**LAGS_IN_SEGMENTS, **RELATIVE},
            Margin(0.04, "a tenth of the gain from the second lag"),
            RELATIVE_TEXT,
        ),
        demo={"depth=16": "left to the larger scales"},
        hour={"depth=16": "left to the gpu and paper scales", "depth=8": "left to the gpu and paper scales"},
        gpu={"depth=8": "the value of this scale's baseline"},
        paper={"depth=8": "less than this scale's baseline has"},
    ),
)
