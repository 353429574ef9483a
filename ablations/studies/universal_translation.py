"""Translation with layers that share their weights in depth (Dehghani et al. 2019, arXiv:1807.03819, table 7)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, PublishedValue, Source
from ablations.pairs import BLEU, TRANSLATION, TRANSLATION_SCALES
from lit_transformers.stacks import HaltingConfig, SharedConfig, UniversalConfig

ABLATION = Ablation(
    question="At equal parameters, does a translator gain where one wide block is applied again and again?",
    answer=["stack=universal"],
    source=Source("Dehghani et al. 2019", arxiv="1807.03819", table="7"),
    baseline=TRANSLATION,
    factors={
        "stack": {
            "sequential": {},
            "universal": {"model.stack": UniversalConfig()},
            "universal_halting": {"model.stack": UniversalConfig(halting=HaltingConfig())},
            "shared": {"model.stack": SharedConfig()},
        }
    },
    design="one_factor",
    seeds=3,
    metric=BLEU,
    match=Match("parameters", free="model.feedforward.width", tolerance=0.02),
    published=Published(
        protocol="WMT14 English-German, newstest2014, base size, no halting, feed-forward transitions",
        metric="BLEU",
        cells=[PublishedValue("baseline", 28.0), PublishedValue("stack=universal", 28.9)],
        claims=["The small Universal Transformer: 26.8."],
    ),
    scales=TRANSLATION_SCALES,
)
