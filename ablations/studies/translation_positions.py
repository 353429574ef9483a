"""Encodings of positions in translation (Shaw et al. 2018, arXiv:1803.02155, tables 2 and 3)."""

from __future__ import annotations

from typing import Any

from ablations.ablation import Ablation, Contrast, Match, Published, PublishedValue, Source
from ablations.baselines import leaving
from ablations.pairs import BLEU, TRANSLATION, TRANSLATION_SCALES
from lit_transformers.encodings import ShawConfig
from lit_transformers.encodings.positions import LearnedConfig


def relative(encoding: ShawConfig) -> dict[str, Any]:
    """Returns overrides with relative positions in both self-attentions in place of added positions."""
    return {
        "model.positions": None,
        "model.mixer.encoding": encoding,
        "model.decoder_mixer.encoding": encoding,
    }


ABLATION = Ablation(
    question="Do distances serve a translator better than positions, how far must they reach, and where do they enter?",
    answer=[
        "distances up to 16 against sinusoids",
        "distances up to 4 against 16",
        "keys alone against both tables",
        "values alone against both tables",
    ],
    source=Source("Shaw et al. 2018", arxiv="1803.02155", table="1 to 3"),
    baseline=TRANSLATION,
    factors={
        "positions": {
            "sinusoidal": {},
            "learned": {"model.positions": LearnedConfig(restart="document", max_length=1024)},
            "none": {"model.positions": None},
            **{f"shaw_{k}": relative(ShawConfig(distance=k)) for k in (0, 1, 2, 4, 16)},
            "shaw_16_keys": relative(ShawConfig(distance=16, values=False)),
            "shaw_16_values": relative(ShawConfig(distance=16, keys=False)),
        }
    },
    design="one_factor",
    seeds=3,
    metric=BLEU,
    match=Match("tokens"),
    contrasts=[
        Contrast("distances up to 16 against sinusoids", "positions=shaw_16", "baseline"),
        Contrast("learned against sinusoids", "positions=learned", "baseline"),
        Contrast("no positions against sinusoids", "positions=none", "baseline"),
        *(
            Contrast(f"distances up to {k} against 16", f"positions=shaw_{k}", "positions=shaw_16")
            for k in (0, 1, 2, 4)
        ),
        Contrast("keys alone against both tables", "positions=shaw_16_keys", "positions=shaw_16"),
        Contrast("values alone against both tables", "positions=shaw_16_values", "positions=shaw_16"),
    ],
    published=Published(
        protocol="WMT14 English-German, newstest2013 (development), base model",
        metric="BLEU",
        cells=[
            PublishedValue("positions=shaw_0", 12.5),
            PublishedValue("positions=shaw_1", 25.5),
            PublishedValue("positions=shaw_2", 25.8),
            PublishedValue("positions=shaw_4", 25.9),
            PublishedValue("positions=shaw_16", 25.8),
            PublishedValue("positions=shaw_16_keys", 25.8),
            PublishedValue("positions=shaw_16_values", 25.3),
        ],
        claims=["Relative against sinusoidal positions on newstest2014: 26.8 against 26.5, the base model (table 1)."],
    ),
    scales=leaving(
        TRANSLATION_SCALES, demo=dict.fromkeys(("positions=shaw_1", "positions=shaw_2"), "left to the larger scales")
    ),
)
