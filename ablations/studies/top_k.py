"""Keeping the best keys of every query (Zhao et al. 2019, arXiv:1912.11637)."""

from __future__ import annotations

from ablations.ablation import Ablation, Cell, Match, Published, Source
from ablations.baselines import BITS_PER_BYTE, CHARACTER_SCALES, CHARACTERS
from lit_transformers.mixers import TopKConfig

ABLATION = Ablation(
    question="How few keys can a query keep, and does keeping few help?",
    source=Source("Zhao et al. 2019", arxiv="1912.11637", table="5"),
    baseline=CHARACTERS,
    factors={
        "kept": {"all": {}} | {str(kept): {"model.mixer": TopKConfig(kept=kept)} for kept in (2, 4, 8, 16)},
    },
    design="one_factor",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("tokens"),
    published=Published(
        protocol="IWSLT French-English, numbers of the authors' later paper, which stands in their repository",
        metric="BLEU",
        cells=[
            Cell("baseline", 37.10),
            Cell("kept=16", 36.95),
            Cell("kept=8", 37.64),
            Cell("kept=4", 37.25),
            Cell("kept=2", 36.62),
        ],
    ),
    scales=CHARACTER_SCALES,
)
