"""Synthetic attention in place of dot products (Tay et al. 2020, arXiv:2005.00743, table 2)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, PublishedValue, Source
from ablations.baselines import CHARACTERS, NATS_PER_SYMBOL, RECALL, RECALL_MARGIN, character_scales
from lit_transformers.mixers import SynthesizerConfig
from lit_transformers.mixers.synthesizer.logits import Member

MEMBERS: dict[str, tuple[Member, ...]] = {
    "fixed_random": ("fixed_random",),
    "random": ("random",),
    "factorised_random": ("factorised_random",),
    "dense": ("dense",),
    "factorised_dense": ("factorised_dense",),
    "random+dense": ("random", "dense"),
    "random+dot_product": ("random", "dot_product"),
    "dense+dot_product": ("dense", "dot_product"),
}

CELLS = [
    PublishedValue("baseline", 27.67),
    PublishedValue("logits=fixed_random", 23.89),
    PublishedValue("logits=random", 27.27),
    PublishedValue("logits=dense", 27.43),
    PublishedValue("logits=random+dense", 27.68),
    PublishedValue("logits=random+dot_product", 28.47),
]

ABLATION = Ablation(
    question="Can weights that are learned, or made from each token alone, replace dot products?",
    source=Source("Tay et al. 2020", arxiv="2005.00743", table="2"),
    baseline=CHARACTERS,
    factors={
        "logits": {"dot_product": {}}
        | {name: {"model.mixer": SynthesizerConfig(members=members)} for name, members in MEMBERS.items()},
    },
    design="one_factor",
    seeds=3,
    metric=NATS_PER_SYMBOL,
    match=Match("tokens"),
    published=Published(
        protocol="WMT14 English-German, base size; higher is better there, lower here",
        metric="BLEU",
        cells=CELLS,
    ),
    scales=character_scales(RECALL, RECALL_MARGIN),
)
