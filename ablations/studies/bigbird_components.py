"""Random, window and global blocks, each alone and together (Zaheer et al. 2020, arXiv:2007.14062, table 1)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Looks, Match, Published, PublishedValue, Scale, Source
from ablations.baselines import SQUARED_ERROR, SUMS, SUMS_GPU, SUMS_MARGIN
from lit_transformers.mixers import AttentionConfig, BigBirdConfig

WITHOUT_GLOBAL = {"model.mixer.global_blocks": "none"}

SHORT = {"data.source.length": 63, "model.mixer.block": 4, "training.steps": 500}
"""Overrides of the demo: 16 blocks, of which two layers bring 14 to the first token by random and window blocks, 10 by
random blocks alone, 3 by windows alone, and all by global ones. The sum of missing blocks cannot be known."""

ABLATION = Ablation(
    question="Which of BigBird's random, window and global blocks does an encoder need?",
    answer=["random blocks added to both", "random and window against random", "global blocks added to both"],
    source=Source("Zaheer et al. 2020", arxiv="2007.14062", table="1"),
    baseline=SUMS.override({"model.mixer": BigBirdConfig(block=16, random=1)}),
    factors={
        "blocks": {
            "random+window+global": {},
            "random+window": WITHOUT_GLOBAL,
            "random": WITHOUT_GLOBAL | {"model.mixer.window": 0},
            "window": WITHOUT_GLOBAL | {"model.mixer.random": 0},
            "window+global": {"model.mixer.random": 0},
            "all": {"model.mixer": AttentionConfig()},
        }
    },
    design="one_factor",
    seeds=3,
    metric=SQUARED_ERROR,
    match=Match("tokens"),
    contrasts=[
        Contrast("random against all pairs", "blocks=random", "blocks=all"),
        Contrast("window against all pairs", "blocks=window", "blocks=all"),
        Contrast("random and window against all pairs", "blocks=random+window", "blocks=all"),
        Contrast("random and window against random", "blocks=random+window", "blocks=random"),
        Contrast("random and window against window", "blocks=random+window", "blocks=window"),
        Contrast("global blocks added to both", "baseline", "blocks=random+window"),
        Contrast("random blocks added to both", "baseline", "blocks=window+global"),
        Contrast("all three against all pairs", "baseline", "blocks=all"),
    ],
    published=Published(
        protocol="masked language modelling on 512 tokens, BERT-base size; accuracy, where more is better",
        metric="MLM accuracy",
        goal="maximize",
        cells=[
            PublishedValue("blocks=all", 64.2, note="BERT-base"),
            PublishedValue("blocks=random", 60.1),
            PublishedValue("blocks=window", 58.3),
            PublishedValue("blocks=random+window", 62.7),
        ],
        claims=["Global tokens are what closes the gap to full attention (section 2)."],
    ),
    scales={
        "demo": Scale(overrides=SHORT, seeds=Looks(4, 8), margin=SUMS_MARGIN),
        "gpu": Scale(overrides=dict(SUMS_GPU) | {"model.mixer.block": 32, "model.mixer.random": 3}),
        "paper": Scale(overrides=dict(SUMS_GPU) | {"model.depth": 12, "model.dim": 768, "model.heads": 12}, seeds=1),
    },
)
