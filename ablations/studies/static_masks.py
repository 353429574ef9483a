"""Masks that are drawn once or anew in every epoch (RoBERTa, Liu et al. 2019, arXiv:1907.11692, table 1)."""

from __future__ import annotations

from ablations.ablation import Ablation, Looks, Margin, Match, Published, PublishedValue, Scale, Source
from ablations.baselines import BERT_BASE, BOOKS_GPU, MASKED, MASKED_MARGIN, MASKED_NATS
from datamodules import TopicsConfig

ABLATION = Ablation(
    question="What is lost where the symbols that are hidden of a row are the same in many epochs?",
    source=Source("Liu et al. 2019", arxiv="1907.11692", table="1"),
    baseline=MASKED.override({"data.source": TopicsConfig(documents=1000, validation=0.5, test=0.44)}),
    factors={
        "masks": {"dynamic": {}, "ten": {"data.noise.variants": 10}, "one": {"data.noise.variants": 1}},
    },
    design="one_factor",
    seeds=3,
    metric=MASKED_NATS,
    match=Match("tokens"),
    published=Published(
        protocol="BERT-base for 40 epochs, each of ten masks four times; accuracy on MNLI-m, median of five seeds",
        metric="accuracy",
        cells=[PublishedValue("baseline", 84.0), PublishedValue("masks=ten", 84.3)],
        claims=["Dynamic masking is comparable to static masking or slightly better (section 4.1)."],
    ),
    scales={
        "demo": Scale(
            seeds=Looks(4, 8, first_seed=1, pilot="seed 0 was a pilot, by which the recipe was chosen"),
            margin=MASKED_MARGIN,
        ),
        "gpu": Scale(overrides=BOOKS_GPU, margin=Margin(0.02, "a hundredth of the loss of a piece")),
        "paper": Scale(overrides=BERT_BASE, seeds=1),
    },
)
"""The demo reads each row some forty times, and so each of ten masks four times, as BERT does."""
