"""Translation with reversible layers (Kitaev et al. 2020, arXiv:2001.04451, table 4)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, PublishedValue, Source
from ablations.pairs import BLEU, TRANSLATION, TRANSLATION_SCALES
from lit_transformers.stacks import ReversibleConfig

ABLATION = Ablation(
    question="Does a translator of reversible layers translate as well, and what memory does it save?",
    source=Source("Kitaev et al. 2020", arxiv="2001.04451", table="4"),
    baseline=TRANSLATION.override({"model.norm": "pre", "training.optimizer.learning_rate": 4e-3}),
    factors={"stack": {"residual": {}, "reversible": {"model.stack": ReversibleConfig()}}},
    design="one_factor",
    seeds=3,
    metric=BLEU,
    match=Match("tokens"),
    published=Published(
        protocol="WMT14 English-German, newstest2014, base size, 100K steps; the residual model is Vaswani et al.'s",
        metric="BLEU",
        cells=[PublishedValue("baseline", 27.3), PublishedValue("stack=reversible", 27.6)],
        claims=["After 500K steps without sharing 28.0; big after 300K 29.1."],
    ),
    scales=TRANSLATION_SCALES,
)
