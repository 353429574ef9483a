"""Fewer keys in lower layers with three masks (Wang et al. 2020, arXiv:2002.06170)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, PublishedValue, Source
from ablations.baselines import BITS_PER_BYTE, CHARACTER_SCALES, CHARACTERS
from lit_transformers.mixers import DietConfig

ABLATION = Ablation(
    question="How much of full attention survives a diet of a few keys per layer?",
    source=Source("Wang et al. 2020", arxiv="2002.06170", table="1"),
    baseline=CHARACTERS,
    factors={
        "mask": {
            "full": {},
            "dilated": {"model.mixer": DietConfig()},
            "dilated_memory": {"model.mixer": DietConfig(pattern="dilated_memory")},
            "cascade": {"model.mixer": DietConfig(pattern="cascade")},
        }
    },
    design="one_factor",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("tokens"),
    published=Published(
        protocol="Penn Treebank, words, 3 layers, test perplexity printed by the authors' scripts",
        metric="perplexity",
        cells=[
            PublishedValue("baseline", 103.72),
            PublishedValue("mask=dilated", 110.92),
            PublishedValue("mask=dilated_memory", 110.98),
            PublishedValue("mask=cascade", 105.27),
        ],
    ),
    scales=CHARACTER_SCALES,
)
