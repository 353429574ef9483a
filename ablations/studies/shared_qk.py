"""Queries and keys that are the same (Kitaev et al. 2020, arXiv:2001.04451, section 2 and figure 3)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, Source
from ablations.baselines import BITS_PER_BYTE, CHARACTER_SCALES, CHARACTERS
from lit_transformers.mixers import LSHConfig

ABLATION = Ablation(
    question="Does attention lose anything when queries and keys are the same?",
    source=Source("Kitaev et al. 2020", arxiv="2001.04451", table="figure 3"),
    baseline=CHARACTERS,
    factors={
        "queries_and_keys": {
            "apart": {},
            "shared": {"model.mixer": LSHConfig(rounds=None)},
            "shared_and_scaled": {"model.mixer": LSHConfig(rounds=None, scaled=True)},
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
    scales=CHARACTER_SCALES,
)
