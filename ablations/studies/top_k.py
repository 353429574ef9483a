"""The number of keys that each query keeps in a language model (Zhao et al. 2019, arXiv:1912.11637)."""

from __future__ import annotations

from ablations.ablation import Ablation, Margin, Match, Published, PublishedValue, Source
from ablations.baselines import BITS_PER_BYTE, CHARACTERS, LAGS_IN_SEGMENTS, character_scales
from lit_transformers.encodings import XLConfig
from lit_transformers.mixers import AttentionConfig, TopKConfig

XL = XLConfig()

ABLATION = Ablation(
    question="How few keys can a query keep, and does keeping few help?",
    source=Source("Zhao et al. 2019", arxiv="1912.11637", table="5"),
    baseline=CHARACTERS.override({"model.positions": None, "model.mixer": AttentionConfig(encoding=XL)}),
    factors={
        "kept": {"all": {}}
        | {str(kept): {"model.mixer": TopKConfig(kept=kept, encoding=XL)} for kept in (2, 4, 8, 16)},
    },
    design="one_factor",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("tokens"),
    published=Published(
        protocol="IWSLT French-English, numbers of the authors' later paper, which stands in their repository",
        metric="BLEU",
        cells=[
            PublishedValue("baseline", 37.10),
            PublishedValue("kept=16", 36.95),
            PublishedValue("kept=8", 37.64),
            PublishedValue("kept=4", 37.25),
            PublishedValue("kept=2", 36.62),
        ],
    ),
    scales=character_scales(
        dict(LAGS_IN_SEGMENTS) | {"training.steps": 500},
        Margin(0.04, "a tenth of the gain from the second lag, which a single key of each head holds"),
    ),
)
