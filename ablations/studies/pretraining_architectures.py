"""Encoders and decoders that share their layers, pretrained on damaged texts (Raffel et al. 2020, arXiv:1910.10683,
table 2)."""

from __future__ import annotations

from dataclasses import replace

from ablations.ablation import Ablation, Looks, Match, Published, PublishedValue, Source
from ablations.denoising import CONTINUED_NATS, DENOISING, DENOISING_SCALES

ABLATION = Ablation(
    question="What does an encoder-decoder lose whose stacks share their layers?",
    source=Source("Raffel et al. 2020", arxiv="1910.10683", table="2"),
    baseline=DENOISING,
    factors={"architecture": {"encoder_decoder": {}, "shared": {"model.shared_stacks": True}}},
    seeds=3,
    metric=CONTINUED_NATS,
    match=Match("tokens"),
    published=Published(
        protocol="base size, pretrained by denoising for 2^19 steps on C4, fine-tuned on each task by itself",
        metric="GLUE average",
        goal="maximize",
        cells=[
            PublishedValue("architecture=encoder_decoder", 83.28),
            PublishedValue("architecture=shared", 82.81),
        ],
        claims=[
            "On SQuAD and SuperGLUE an encoder-decoder has 80.88 and 71.36, with shared layers 80.63 and 70.73.",
            "By the same objective a decoder has 74.70 on GLUE, and one that sees both sides of its source 81.82.",
        ],
    ),
    scales=DENOISING_SCALES
    | {"demo": replace(DENOISING_SCALES["demo"], seeds=Looks(4, 8, first_seed=2, pilot="seeds 0 and 1 were a pilot"))},
)
"""Texts are infilled, where the paper writes the missing spans alone: of these a short run learns too little to
continue a text better than bigrams do. The decoder and the prefix language model of the table are left out: they read a
source and its target as one row, of which data of damaged texts make a pair, and an arm with other data would compare
more than the architecture."""
