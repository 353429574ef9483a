"""Synthetic attention in translation (Tay et al. 2020, arXiv:2005.00743, table 2)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, Source
from ablations.pairs import BLEU, TRANSLATION, TRANSLATION_SCALES, in_self_attention
from ablations.studies.synthesizer import CELLS, MEMBERS
from lit_transformers.mixers import SynthesizerConfig

ABLATION = Ablation(
    question="Can learned or synthesised weights replace dot products in a translator's self-attention?",
    source=Source("Tay et al. 2020", arxiv="2005.00743", table="2"),
    baseline=TRANSLATION.override({"task.decoding.cache": False}),
    factors={
        "logits": {"dot_product": {}}
        | {name: in_self_attention(SynthesizerConfig(members=members)) for name, members in MEMBERS.items()},
    },
    design="one_factor",
    seeds=3,
    metric=BLEU,
    match=Match("tokens"),
    published=Published(
        protocol="WMT14 English-German, newstest2014, base size",
        metric="BLEU",
        cells=CELLS,
    ),
    scales=TRANSLATION_SCALES,
)
