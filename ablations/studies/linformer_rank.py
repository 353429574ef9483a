"""The rank of projected keys and values (Wang et al. 2020, arXiv:2006.04768, table 2 and figure 3)."""

from __future__ import annotations

from ablations.ablation import Ablation, Looks, Match, Published, PublishedValue, Scale, Source
from ablations.baselines import SQUARED_ERROR, SUMS, SUMS_GPU, SUMS_MARGIN
from lit_transformers.mixers import LinformerConfig

ABLATION = Ablation(
    question="Of how low a rank may keys and values be before an encoder suffers?",
    source=Source("Wang et al. 2020", arxiv="2006.04768", table="2"),
    baseline=SUMS.override({"data.source.length": 63, "training.steps": 1000}),
    factors={
        "rank": {"full": {}} | {str(rank): {"model.mixer": LinformerConfig(rank=rank)} for rank in (1, 4, 16, 64)},
    },
    design="one_factor",
    seeds=5,
    metric=SQUARED_ERROR,
    match=Match("tokens"),
    published=Published(
        protocol="mean accuracy of SST-2, IMDB, QNLI and QQP after pre-training on 512 tokens; full is RoBERTa-base",
        metric="accuracy",
        cells=[PublishedValue("baseline", 92.25)],
        claims=["k = 128: 91.75; k = 256: 92.08. The k projection costs half a point at most."],
    ),
    scales={
        "demo": Scale(seeds=Looks(4, 8), margin=SUMS_MARGIN),
        "gpu": Scale(overrides=SUMS_GPU),
        "paper": Scale(overrides=dict(SUMS_GPU) | {"model.depth": 12, "model.dim": 768, "model.heads": 12}, seeds=1),
    },
)
