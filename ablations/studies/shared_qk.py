"""Queries and keys that are the same (Kitaev et al. 2020, arXiv:2001.04451, section 2 and figure 3)."""

from __future__ import annotations

from ablations.ablation import Ablation, Margin, Match, Published, Source
from ablations.baselines import BITS_PER_BYTE, CHARACTERS, LAGS_IN_SEGMENTS, character_scales
from lit_transformers.encodings import XLConfig
from lit_transformers.mixers import AttentionConfig, LSHConfig

XL = XLConfig()

ABLATION = Ablation(
    question="Does attention lose anything when queries and keys are the same?",
    answer=["queries_and_keys=shared"],
    source=Source("Kitaev et al. 2020", arxiv="2001.04451", table="figure 3"),
    baseline=CHARACTERS.override({"model.positions": None, "model.mixer": AttentionConfig(encoding=XL)}),
    factors={
        "queries_and_keys": {
            "apart": {},
            "shared": {"model.mixer": LSHConfig(rounds=None, encoding=XL)},
            "shared_and_scaled": {"model.mixer": LSHConfig(rounds=None, scaled=True, encoding=XL)},
        }
    },
    design="one_factor",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("tokens"),
    published=Published(
        protocol="enwik8 and imagenet64, curves without numbers",
        metric="bits per dimension",
        claims=["Shared queries and keys do not do worse, and on enwik8 learn slightly faster."],
    ),
    scales=character_scales(LAGS_IN_SEGMENTS, Margin(0.04, "a tenth of the gain from the second lag")),
)
