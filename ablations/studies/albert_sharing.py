"""Shared layers and narrow embeddings (Lan et al. 2020, arXiv:1909.11942, tables 3 and 4)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Looks, Margin, Match, Published, PublishedValue, Scale, Source
from ablations.baselines import BERT_BASE, BOOKS_GPU, MASKED, MASKED_MARGIN, MASKED_NATS
from lit_transformers.stacks import SharedConfig

WIDE = {"model.embedding_dim": None}

ABLATION = Ablation(
    question="What do shared layers and embeddings narrower than the layers cost, and what do they save?",
    answer=["all shared against nothing, narrow", "narrow against wide, all"],
    source=Source("Lan et al. 2020", arxiv="1909.11942", table="3 and 4"),
    baseline=MASKED.override(
        {"model.depth": 4, "model.stack": SharedConfig(), "model.embedding_dim": 16, "model.transform": "gelu"}
    ),
    factors={
        "embeddings": {"narrow": {}, "wide": WIDE},
        "shared": {
            "all": {},
            "mixer": {"model.stack.share": "mixer"},
            "feedforward": {"model.stack.share": "feedforward"},
            "none": {"model.stack": "sequential"},
        },
    },
    seeds=3,
    metric=MASKED_NATS,
    match=Match("tokens"),
    contrasts=[
        *(
            Contrast(f"{shared} shared against nothing, {width}", f"embeddings={width} shared={shared}", reference)
            for width in ("narrow", "wide")
            for reference in (f"embeddings={width} shared=none",)
            for shared in ("all", "mixer", "feedforward")
        ),
        *(
            Contrast(
                f"narrow against wide, {shared}",
                f"embeddings=narrow shared={shared}",
                f"embeddings=wide shared={shared}",
            )
            for shared in ("all", "none")
        ),
    ],
    effects=[],
    published=Published(
        protocol="base size, embeddings of 128 and 768; mean of SQuAD 1.1 and 2.0, MNLI, SST-2 and RACE",
        metric="average accuracy",
        goal="maximize",
        cells=[
            PublishedValue("embeddings=narrow shared=all", 80.1),
            PublishedValue("embeddings=narrow shared=mixer", 81.7),
            PublishedValue("embeddings=narrow shared=feedforward", 80.2),
            PublishedValue("embeddings=narrow shared=none", 81.6),
            PublishedValue("embeddings=wide shared=all", 79.8),
            PublishedValue("embeddings=wide shared=mixer", 81.6),
            PublishedValue("embeddings=wide shared=feedforward", 79.5),
            PublishedValue("embeddings=wide shared=none", 82.3),
        ],
    ),
    scales={
        "demo": Scale(seeds=Looks(4, 8), margin=MASKED_MARGIN),
        "gpu": Scale(
            overrides=dict(BOOKS_GPU) | {"model.embedding_dim": 64},
            margin=Margin(0.02, "a hundredth of the loss of a piece"),
        ),
        "paper": Scale(overrides=dict(BERT_BASE) | {"model.embedding_dim": 128}, seeds=1),
    },
)
