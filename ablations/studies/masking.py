"""How many symbols to hide, and behind which ones (Devlin et al. 2019, arXiv:1810.04805, appendix C.2; SpanBERT,
arXiv:1907.10529)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Looks, Margin, Match, Published, Scale, Source
from ablations.baselines import BERT_BASE, BOOKS_GPU, MASKED, MASKED_MARGIN, MASKED_NATS
from datamodules import MaskSpansConfig

NOISES: Mapping[str, Mapping[str, Any]] = {
    "all_masked": {"data.noise.unchanged": 0.0, "data.noise.replaced": 0.0},
    "rate_5": {"data.noise.rate": 0.05},
    "rate_30": {"data.noise.rate": 0.3},
    "rate_50": {"data.noise.rate": 0.5},
    "rate_80": {"data.noise.rate": 0.8},
    "spans": {"data.noise": MaskSpansConfig()},
    "whole_words": {"data.noise.whole_words": True},
}
"""All arms see [MASK] in training, because they are measured on symbols behind it. Networks that were trained without
it can only be compared by tasks that build on them."""

ABLATION = Ablation(
    question="How many symbols should be hidden, behind what, and one by one or in spans?",
    source=Source("Devlin et al. 2019", arxiv="1810.04805", table="8"),
    baseline=MASKED,
    factors={"noise": {"80_10_10": {}, **NOISES}},
    design="one_factor",
    seeds=3,
    metric=MASKED_NATS,
    match=Match("tokens"),
    published=Published(
        protocol="BERT-base fine-tuned on MNLI and on named entities, and used as features for the latter",
        metric="accuracy and F1",
        claims=[
            "Fine-tuning hardly depends on the strategy; features suffer where all is behind [MASK] (appendix C.2)."
        ],
    ),
    scales={
        "demo": Scale(
            seeds=Looks(8, 16, first_seed=4, pilot="seeds 0 to 3 were a pilot"),
            margin=MASKED_MARGIN,
            leave_out={"noise=whole_words": "each word is one symbol there"},
        ),
        "gpu": Scale(overrides=BOOKS_GPU, margin=Margin(0.02, "a hundredth of the loss of a piece")),
        "paper": Scale(overrides=BERT_BASE, seeds=1),
    },
)
