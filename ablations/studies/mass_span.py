"""How long the span is that a decoder writes (Song et al. 2019, arXiv:1905.02450, sections 3.3 and 4.4)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, Source
from ablations.denoising import CONTINUED_NATS, DENOISING, DENOISING_SCALES, ELEVEN_PASSES
from datamodules import MASSConfig

ABLATION = Ablation(
    question="What share of a text should be masked and written, from a symbol to all of it?",
    source=Source("Song et al. 2019", arxiv="1905.02450"),
    baseline=DENOISING.override(dict(ELEVEN_PASSES) | {"data.noise.first": MASSConfig()}),
    factors={
        "share": {
            "50": {},
            "2": {"data.noise.first.share": 0.02},
            "10": {"data.noise.first.share": 0.1},
            "30": {"data.noise.first.share": 0.3},
            "70": {"data.noise.first.share": 0.7},
            "90": {"data.noise.first.share": 0.9},
            "100": {"data.noise.first.share": 1.0},
        }
    },
    seeds=3,
    metric=CONTINUED_NATS,
    match=Match("tokens"),
    published=Published(
        protocol="6 layers of 1,024; fine-tuned to translate without and with pairs, to summarize and to answer",
        metric="BLEU, ROUGE and perplexity",
        claims=[
            "A span of one symbol is masked language modelling, one of all symbols a language model (section 3.3)."
        ],
    ),
    scales=DENOISING_SCALES,
)
