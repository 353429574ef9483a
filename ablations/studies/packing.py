"""Contents of rows (RoBERTa, Liu et al. 2019, arXiv:1907.11692, table 2): segments, sentences, one document or more."""

from __future__ import annotations

from ablations.ablation import Ablation, Looks, Margin, Published, PublishedValue, Scale, Source
from ablations.baselines import BERT_BASE, BOOKS_GPU, MASKED, MASKED_MARGIN, MASKED_NATS

ONE_DOCUMENT = {"data.packing": "doc_sentences"}
PAIRS = {"data.relation": "next_sentence", "data.evaluation.relation": "none"}

ABLATION = Ablation(
    question="Should rows be pairs with a loss of next sentences, or full, and of one document or of several?",
    source=Source("Liu et al. 2019", arxiv="1907.11692", table="2"),
    baseline=MASKED.override({"model.segments": 2, "data.evaluation.packing": "doc_sentences"}),
    factors={
        "packing": {
            "doc_sentences": {},
            "full_sentences": {"data.packing": "full_sentences"},
            "segment_pair": {"data.packing": "segment_pair", **PAIRS},
            "segment_pair_alone": {"data.packing": "segment_pair"},
            "sentence_pair": {"data.packing": "sentence_pair", **PAIRS},
        },
    },
    design="one_factor",
    seeds=3,
    metric=MASKED_NATS,
    published=Published(
        protocol="BERT-base, median of five seeds; the pairs with the loss of next sentences; accuracy on MNLI-m",
        metric="accuracy",
        cells=[
            PublishedValue("baseline", 84.7),
            PublishedValue("packing=full_sentences", 84.7),
            PublishedValue("packing=segment_pair", 84.0),
            PublishedValue("packing=sentence_pair", 82.9),
        ],
        claims=["Pairs of single sentences hurt, for nothing far away can be learned (section 4.2)."],
    ),
    scales={
        "demo": Scale(
            seeds=Looks(4, 8, first_seed=1, pilot="seed 0 was a pilot, by which the recipe was chosen"),
            margin=MASKED_MARGIN,
        ),
        "gpu": Scale(
            overrides=dict(BOOKS_GPU) | ONE_DOCUMENT, margin=Margin(0.02, "a hundredth of the loss of a piece")
        ),
        "paper": Scale(overrides=dict(BERT_BASE) | ONE_DOCUMENT, seeds=1),
    },
)
"""All arms are measured on rows of one document, without a relation. Each has as many rows a batch: those of
sentence_pair are short, and RoBERTa has more of them."""
