"""Window sizes that change over the layers (Beltagy et al. 2020, arXiv:2004.05150, table 4)."""

from __future__ import annotations

from ablations.ablation import Ablation, Looks, Margin, Match, Published, PublishedValue, Source
from ablations.baselines import BITS_PER_BYTE, CHARACTERS, LAGS_IN_SEGMENTS, RELATIVE, RELATIVE_TEXT, character_scales
from lit_transformers.mixers import WindowConfig

PILOT = (
    "the first plan (seeds 0 to 7) had 2,000 updates, after which two of eight runs with equal windows were "
    "still learning the far lag"
)

ABLATION = Ablation(
    question="Should windows be narrow in lower layers and wide in upper ones, at the same mean cost?",
    source=Source("Beltagy et al. 2020", arxiv="2004.05150", table="4"),
    baseline=CHARACTERS.override({"model.depth": 4, "model.mixer": WindowConfig(window=64, smallest=4)}),
    factors={
        "schedule": {
            "increasing": {},
            "fixed": {"model.mixer.schedule": "fixed"},
            "decreasing": {"model.mixer.schedule": "decreasing"},
        }
    },
    design="one_factor",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("tokens"),
    published=Published(
        protocol="text8 development set, 12 layers, windows from 32 to 512 or 230 everywhere, after phase 1",
        metric="bits per character",
        claims=["By equal factors, as here, windows from 32 to 512 over 12 layers have a mean of 182, not of 230."],
        cells=[
            PublishedValue("baseline", 1.21),
            PublishedValue("schedule=fixed", 1.23),
            PublishedValue("schedule=decreasing", 1.24),
        ],
    ),
    scales=character_scales(
        {**LAGS_IN_SEGMENTS, **RELATIVE, "model.mixer.window": 32, "model.mixer.smallest": 2, "training.steps": 3000},
        Margin(0.04, "a tenth of the gain from the second lag, which all three schedules reach in several layers"),
        RELATIVE_TEXT,
        Looks(4, 8, first_seed=8, pilot=PILOT),
    ),
)
