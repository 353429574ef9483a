"""Objectives of an encoder-decoder (Raffel et al. 2020, arXiv:1910.10683, tables 4 to 7)."""

from __future__ import annotations

from dataclasses import replace

from ablations.ablation import Ablation, Looks, Match, Published, PublishedValue, Source
from ablations.denoising import CONTINUED_NATS, DENOISING, DENOISING_SCALES, ELEVEN_PASSES
from datamodules import (
    CausalTargetConfig,
    DeshufflingConfig,
    MASSConfig,
    PrefixTargetConfig,
    SpanCorruptionConfig,
    TokenMaskingConfig,
)

WHOLE_TARGETS = ("bert_style", "mass_style", "deshuffling", "prefix_lm")
MORE_TARGETS = (
    "The number of targets: after 900 updates a decoder that has written whole texts, or their second halves, has "
    "learned more than one that has written a sixth of them. bert_style and replace_spans hide the same share of a "
    "text, and differ in what is written alone. The source trains for 2^19 updates, and measures by fine-tuned tasks."
)

ABLATION = Ablation(
    question="Which objective teaches an encoder-decoder most for the spans of MASS, on which no arm is pretrained?",
    source=Source("Raffel et al. 2020", arxiv="1910.10683", table="4 to 7"),
    baseline=DENOISING.override(
        dict(ELEVEN_PASSES) | {"data.noise.first": SpanCorruptionConfig(mean=None), "data.noise.then": MASSConfig()}
    ),
    factors={
        "objective": {
            "replace_spans": {},
            "spans_of_3": {"data.noise.first.mean": 3.0},
            "drop_tokens": {"data.noise.first.dropped": True},
            "bert_style": {"data.noise.first": TokenMaskingConfig(replaced=0.1)},
            "mass_style": {"data.noise.first": TokenMaskingConfig()},
            "deshuffling": {"data.noise.first": DeshufflingConfig()},
            "prefix_lm": {"data.noise.first": PrefixTargetConfig()},
            "lm": {"data.noise.first": CausalTargetConfig()},
        }
    },
    seeds=3,
    metric=CONTINUED_NATS,
    match=Match("tokens"),
    published=Published(
        protocol="base encoder-decoder, 2^19 steps on C4, fine-tuned on each task by itself",
        metric="average GLUE score",
        goal="maximize",
        cells=[
            PublishedValue("objective=replace_spans", 83.28),
            PublishedValue("objective=bert_style", 82.96),
            PublishedValue("objective=mass_style", 82.32),
            PublishedValue("objective=deshuffling", 73.17),
            PublishedValue("objective=prefix_lm", 80.69),
        ],
        remarks={f"objective={name}": MORE_TARGETS for name in WHOLE_TARGETS},
    ),
    scales=DENOISING_SCALES
    | {
        "demo": replace(
            DENOISING_SCALES["demo"],
            seeds=Looks(4, 8, first_seed=1, pilot="seed 0 was a pilot, by which the recipe was chosen"),
        )
    },
)
