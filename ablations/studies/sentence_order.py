"""Next sentences or their order (ALBERT, Lan et al. 2020, arXiv:1909.11942, table 5): how each teaches the other."""

from __future__ import annotations

from ablations.ablation import (
    Ablation,
    Contrast,
    Looks,
    Margin,
    Match,
    Metric,
    Published,
    PublishedValue,
    Scale,
    Source,
)
from ablations.baselines import BERT_BASE, BOOKS_GPU, MASKED

ORDER, NEXT = "order by order", "next sentence by next sentence"
ORDER_BY_NEXT, NEXT_BY_ORDER = "order by next sentence", "next sentence by order"
ORDER_BY_NONE, NEXT_BY_NONE = "order by symbols alone", "next sentence by symbols alone"
PAIRS = {"data.packing": "segment_pair"}

ABLATION = Ablation(
    question="What does a network that learned which segment is next know of their order, and the other way round?",
    answer=["order, learned from next sentences", "next sentences, learned from order"],
    source=Source("Lan et al. 2020", arxiv="1909.11942", table="5"),
    baseline=MASKED.override(
        PAIRS | {"model.segments": 2, "data.relation": "sentence_order", "training.steps": 1200},
    ),
    design="explicit",
    arms={
        ORDER: {},
        NEXT_BY_ORDER: {"data.evaluation.relation": "next_sentence"},
        NEXT: {"data.relation": "next_sentence"},
        ORDER_BY_NEXT: {"data.relation": "next_sentence", "data.evaluation.relation": "sentence_order"},
        ORDER_BY_NONE: {"task.detach_relation": True},
        NEXT_BY_NONE: {"data.relation": "next_sentence", "task.detach_relation": True},
    },
    seeds=3,
    metric=Metric(
        "test/relation_accuracy",
        goal="maximize",
        label="accuracy of the relation",
        margin=Margin(0.03, "three pairs in a hundred"),
    ),
    match=Match("tokens"),
    contrasts=[
        Contrast("order, learned from next sentences", ORDER_BY_NEXT, ORDER),
        Contrast("next sentences, learned from order", NEXT_BY_ORDER, NEXT),
        Contrast("order, learned from symbols alone", ORDER_BY_NONE, ORDER),
        Contrast("next sentences, learned from symbols alone", NEXT_BY_NONE, NEXT),
        Contrast("order, from next sentences against from symbols", ORDER_BY_NEXT, ORDER_BY_NONE),
    ],
    published=Published(
        protocol="ALBERT-base over Wikipedia and books, measured on both tasks; how without a head, it does not say. "
        "Here a head reads the first vector, and its loss does not reach the network",
        metric="accuracy",
        cells=[
            PublishedValue(ORDER, 0.865),
            PublishedValue(NEXT_BY_ORDER, 0.789),
            PublishedValue(NEXT, 0.905),
            PublishedValue(ORDER_BY_NEXT, 0.520),
            PublishedValue(ORDER_BY_NONE, 0.533),
            PublishedValue(NEXT_BY_NONE, 0.524),
        ],
        claims=["The loss of next sentences says no more of order than a guess (section 4.6)."],
    ),
    scales={
        "demo": Scale(seeds=Looks(4, 8, first_seed=1, pilot="seed 0 was a pilot, by which the recipe was chosen")),
        "gpu": Scale(overrides=dict(BOOKS_GPU) | PAIRS),
        "paper": Scale(overrides=dict(BERT_BASE) | PAIRS, seeds=1),
    },
)
"""All arms are trained by hidden symbols too. Each relation's head calls it 0 where the second segment follows the
first, so that a head of one relation can be measured on the other."""
