"""How sparse attention weights should be (Correia et al. 2019, arXiv:1909.00015, table 1)."""

from __future__ import annotations

from ablations.ablation import Ablation, Margin, Match, Published, PublishedValue, Source
from ablations.baselines import BITS_PER_BYTE, CHARACTERS, LAGS_IN_SEGMENTS, character_scales
from lit_transformers.encodings import XLConfig
from lit_transformers.mixers import EntmaxConfig

ABLATION = Ablation(
    question="Do exact zeros among attention weights help, and should heads learn how many?",
    source=Source("Correia et al. 2019", arxiv="1909.00015", table="1"),
    baseline=CHARACTERS.override(
        {"model.positions": None, "model.mixer": EntmaxConfig(alpha=1.0, encoding=XLConfig())}
    ),
    factors={
        "alpha": {
            "1": {},
            "1.5": {"model.mixer.alpha": 1.5},
            "2": {"model.mixer.alpha": 2.0},
            "learned": {"model.mixer.alpha": "learned"},
        }
    },
    design="one_factor",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("tokens"),
    published=Published(
        protocol="WMT14 English-German, base size, all attention of the model",
        metric="BLEU",
        cells=[
            PublishedValue("baseline", 26.02),
            PublishedValue("alpha=1.5", 25.89),
            PublishedValue("alpha=learned", 26.93),
        ],
    ),
    scales=character_scales(
        dict(LAGS_IN_SEGMENTS) | {"training.steps": 500},
        Margin(0.04, "a tenth of the gain from the second lag, which a single key of each head holds"),
    ),
)
