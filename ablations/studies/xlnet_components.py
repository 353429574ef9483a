"""The parts of XLNet, taken away one by one (Yang et al. 2019, arXiv:1906.08237, table 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Looks, Margin, Match, Published, PublishedValue, Scale, Source
from ablations.baselines import BERT_BASE, BOOKS_GPU, MASKED, MASKED_MARGIN, MASKED_NATS
from datamodules import MaskSpansConfig, MaskTokensConfig
from lit_transformers.encodings import XLConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.tasks import MaskedLMConfig, PermutationLMConfig

ALL_HIDDEN: Mapping[str, Any] = {"kept": 0.0, "replaced": 0.0}

XLNET = MASKED.override(
    {
        "model.positions": None,
        "model.mixer": AttentionConfig(encoding=XLConfig(biases="per_layer")),
        "model.query_stream": "learned",
        "task": PermutationLMConfig(measured="none"),
        "data.noise": MaskSpansConfig(rate=1 / 6, longest=5, **ALL_HIDDEN),
    }
)
"""A small XLNet that predicts a sixth of the symbols of a row, in spans. It is measured as a masked language model is:
single symbols, each from those that are not predicted."""

COMPONENTS: Mapping[str, Mapping[str, Any]] = {
    "denoising": {"task": MaskedLMConfig(), "model.query_stream": "none"},
    "k7": {"data.noise.rate": 1 / 7},
    "no_spans": {"data.noise": MaskTokensConfig(rate=1 / 6, **ALL_HIDDEN)},
    "strict_order": {"task.order": "all"},
    "no_order": {"task.order": "none"},
}

ABLATION = Ablation(
    question="What is each part of XLNet worth: an order of what is predicted, spans, and how much is predicted?",
    source=Source("Yang et al. 2019", arxiv="1906.08237", table="6"),
    baseline=XLNET,
    factors={"component": {"xlnet": {}, **COMPONENTS}},
    design="one_factor",
    seeds=3,
    metric=MASKED_NATS,
    match=Match("tokens"),
    published=Published(
        protocol="12 layers of 768, BookCorpus and Wikipedia, fine-tuned on RACE; the baseline predicts a sixth (K = 6)",
        metric="accuracy",
        cells=[
            PublishedValue("baseline", 66.66),
            PublishedValue("component=denoising", 65.03, note="DAE + Transformer-XL"),
            PublishedValue("component=k7", 66.05),
            PublishedValue("component=no_spans", 65.95),
        ],
        claims=[
            "Without memory 65.55, without bidirectional data 66.34, with next sentences 66.76.",
            "On SQuAD 2.0 (F1), MNLI and SST-2 the baseline has 80.98, 85.63 and 93.35, denoising 79.56, 84.88 and 92.60.",
        ],
    ),
    scales={
        "demo": Scale(seeds=Looks(4, 8), margin=MASKED_MARGIN),
        "gpu": Scale(overrides=BOOKS_GPU, margin=Margin(0.02, "a hundredth of the loss of a piece")),
        "paper": Scale(overrides=BERT_BASE, seeds=1),
    },
)
