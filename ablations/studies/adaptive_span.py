"""Heads that learn how far back to look (Sukhbaatar et al. 2019, arXiv:1905.07799, tables 1 to 3)."""

from __future__ import annotations

from ablations.ablation import Ablation, Looks, Margin, Match, Published, PublishedValue, Scale, Source
from ablations.baselines import (
    BITS_PER_BYTE,
    CHARACTERS,
    CHARACTERS_GPU,
    CHARACTERS_PAPER,
    LAGS_IN_SEGMENTS,
    RELATIVE,
    RELATIVE_TEXT,
    character_scales,
)
from lit_transformers.mixers import AdaptiveSpanConfig

FIXED = {"model.mixer.learns": "fixed", "model.mixer.penalty": 0.0}

PILOT = "the first plan (seeds 0 to 7) had another penalty, at which spans closed before a head had learned the far lag"

ABLATION = Ablation(
    question="Do spans that heads learn lose anything against a full span, and what do they save?",
    answer=["span=full"],
    source=Source("Sukhbaatar et al. 2019", arxiv="1905.07799", table="3"),
    baseline=CHARACTERS.override({"model.mixer": AdaptiveSpanConfig(span=256, ramp=16, penalty=2e-5)}),
    factors={
        "span": {
            "adaptive": {},
            "dynamic": {"model.mixer.learns": "dynamic"},
            "without_penalty": {"model.mixer.penalty": 0.0},
            "one_per_layer": {"model.mixer.share": "layer"},
            "full": FIXED | {"model.mixer.initial": 1.0},
            "short": FIXED | {"model.mixer.initial": 0.0},
        }
    },
    design="one_factor",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("tokens"),
    published=Published(
        protocol="text8 development set, spans of up to 1,024; the average span is 123 adaptive and 149 dynamic",
        metric="bits per character",
        cells=[PublishedValue("baseline", 1.08), PublishedValue("span=dynamic", 1.08)],
        claims=[
            "Most heads of lower layers keep a short span, some of upper ones a long one: an average of 314 of 8,192."
        ],
    ),
    scales=character_scales(
        {
            **LAGS_IN_SEGMENTS,
            **RELATIVE,
            "model.mixer.span": 64,
            "model.mixer.ramp": 8,
            # Pilots: spans that start closed never open to a lone lag beyond their ramp. With a larger penalty they
            # close before a head has learned the far lag, at 5e-4 in five of seven runs, at 2e-5 in one of eight.
            "model.mixer.initial": 0.9,
            "model.mixer.penalty": 2e-6,
        },
        Margin(0.04, "a tenth of the gain from the second lag, three times as far as the ramp reaches"),
        RELATIVE_TEXT,
        Looks(4, 8, 16, first_seed=8, pilot=PILOT),
    )
    | {
        "gpu": Scale(
            overrides=dict(CHARACTERS_GPU)
            | {"model.mixer.span": 1024, "model.mixer.ramp": 32, "model.mixer.penalty": 2e-6}
        ),
        "paper": Scale(
            overrides=dict(CHARACTERS_PAPER)
            | {"model.mixer.span": 2048, "model.mixer.ramp": 32, "model.mixer.penalty": 2e-6},
            seeds=1,
        ),
    },
)
