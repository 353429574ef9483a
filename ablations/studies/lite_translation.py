"""Lite Transformer in translation, at equal multiply-adds (Wu et al. 2020, arXiv:2004.11886, tables 1 and 2)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, PublishedValue, Source
from ablations.baselines import leaving
from ablations.pairs import BLEU, TRANSLATION, TRANSLATION_SCALES, in_self_attention
from lit_transformers.mixers import ConvolutionConfig, LSRAConfig

LIGHT = ConvolutionConfig(kernel=7)
LSRA = LSRAConfig(convolution=LIGHT)
FLAT = {"demo": 96, "gpu": 144, "paper": 704}
"""Model dims, by scale, at which equal multiply-adds leave feed-forward layers hardly wider than the model."""

ABLATION = Ablation(
    question="At equal multiply-adds, does a translator gain by leaving what is near to convolutions?",
    answer=["layers=lsra"],
    source=Source("Wu et al. 2020", arxiv="2004.11886", table="1 and 2"),
    baseline=TRANSLATION,
    factors={
        "layers": {
            "attention": {},
            "lsra": in_self_attention(LSRA),
            **{f"lsra_flat_{dim}": in_self_attention(LSRA) | {"model.dim": dim} for dim in FLAT.values()},
            "convolution": in_self_attention(LSRAConfig(branches="convolution", convolution=LIGHT)),
        }
    },
    design="one_factor",
    seeds=3,
    metric=BLEU,
    match=Match("flops", free="model.feedforward.width", tolerance=0.02),
    published=Published(
        protocol="WMT14 English-French at 527M and 90M multiply-adds for 30 tokens; the authors' released models",
        metric="BLEU",
        cells=[
            PublishedValue("baseline", 38.4, "527M multiply-adds"),
            *(PublishedValue(f"layers=lsra_flat_{dim}", 39.6, "527M multiply-adds") for dim in FLAT.values()),
        ],
        claims=[
            "1.2 BLEU above a Transformer under 500M multiply-adds, 1.7 under 100M.",
            "Lite Transformer: 39.6, 39.1 and 35.3 BLEU at 527M, 360M and 90M multiply-adds.",
            "Summarization of CNN and Daily Mail: the same ROUGE with 2.5 times fewer (see docstring_summaries).",
            "lsra_flat_* spend on width what their hidden layers save, as the paper's flat feed-forward does.",
        ],
    ),
    scales=leaving(
        TRANSLATION_SCALES,
        **{
            scale: {
                f"layers=lsra_flat_{dim}": f"the width for the {other} scale"
                for other, dim in FLAT.items()
                if other != scale
            }
            for scale in FLAT
        },
    ),
)
