"""The pooling of an encoder's vectors for a classifier (Sun et al. 2019, arXiv:1905.05583, section 5.3.2)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Published, Source
from ablations.fine_tuning import FETCH, PROBE, REVIEWS, SEEDS, SENTIMENT_NATS, WHOLE_OF_PROBE, rates, scales

LAST_FOUR = (-4, -3, -2, -1)

BASELINE = PROBE.override({"data.source.examples": 512, "data.source.subset": "by_seed"})

ABLATION = Ablation(
    question="Which pooling of a pretrained encoder should a classifier with few labels read?",
    answer=["the first token in place of the mean"],
    source=Source("Sun et al. 2019", arxiv="1905.05583", table="4"),
    baseline=BASELINE,
    factors={
        "vector": {
            "mean": {},
            "first": {"task.pooling": "first"},
            "max": {"task.pooling": "max"},
            "attention": {"task.pooling": "attention"},
            "last_four": {"task.combined_layers": LAST_FOUR},
            "mean_of_last_four": {"task.combined_layers": LAST_FOUR, "task.layer_combination": "mean"},
            "max_of_last_four": {"task.combined_layers": LAST_FOUR, "task.layer_combination": "max"},
            "mix_of_last_four": {"task.combined_layers": LAST_FOUR, "task.layer_combination": "scalar_mix"},
        },
        "rate": rates(BASELINE),
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    contrasts=[
        Contrast("the first token in place of the mean", "vector=first", "baseline"),
        Contrast("the max in place of the mean", "vector=max", "baseline"),
        Contrast("attention in place of the mean", "vector=attention", "baseline"),
        Contrast("the last four layers in place of the last", "vector=last_four", "baseline"),
        Contrast("the mean of four layers in place of the last", "vector=mean_of_last_four", "baseline"),
        Contrast("the max of four layers in place of the last", "vector=max_of_last_four", "baseline"),
        Contrast("a learned mix of four layers in place of the last", "vector=mix_of_last_four", "baseline"),
    ],
    published=Published(
        protocol="BERT-base, fine-tuned on 25,000 reviews of IMDb, pooled by the first token",
        metric="error rate on IMDb",
        goal="minimize",
        claims=[
            "The first four layers concatenated have an error rate of 8.69, all layers concatenated 5.44, the max of "
            "the last four 5.42, the last layer alone 5.42.",
        ],
    ),
    scales=scales(WHOLE_OF_PROBE, REVIEWS),
    preparation=FETCH,
)
