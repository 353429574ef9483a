"""The parts of XLNet, taken away one by one (Yang et al. 2019, arXiv:1906.08237, table 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Looks, Margin, Match, Published, PublishedValue, Scale, Source
from ablations.baselines import BERT_BASE, BOOKS_GPU, MASKED, MASKED_MARGIN, MASKED_NATS
from datamodules import MaskSpansConfig, MaskTokensConfig
from lit_transformers.encodings import XLConfig
from lit_transformers.mixers import AttentionConfig
from lit_transformers.tasks import PermutationLMConfig

ALL_HIDDEN: Mapping[str, Any] = {"unchanged": 0.0, "replaced": 0.0}

XLNET = MASKED.override(
    {
        "model.positions": None,
        "model.mixer": AttentionConfig(encoding=XLConfig(biases="per_layer"), memory=9),
        "model.query_stream": "learned",
        "task": PermutationLMConfig(measured="none", segment_length=9, directions="both"),
        "data.length": 18,
        "data.batch_size": 64,
        "data.noise": MaskSpansConfig(rate=1 / 6, longest=5, **ALL_HIDDEN),
    }
)
"""A small XLNet that predicts a sixth of the symbols of a row, in spans. It is measured as a masked language model is:
single symbols, each from those that are not predicted.

A row of the demo is two sentences, each a segment, so that memory alone carries the order of sentences, and tells more
of their topic.
"""

COMPONENTS: Mapping[str, Mapping[str, Any]] = {
    "denoising": {"task.objective": "denoising", "task.measured": None},
    "k7": {"data.noise.rate": 1 / 7},
    "no_memory": {"model.mixer.memory": 0},
    "no_spans": {"data.noise": MaskTokensConfig(rate=1 / 6, **ALL_HIDDEN)},
    "one_direction": {"task.directions": "forward"},
    "strict_order": {"task.order": "all"},
    "no_order": {"task.order": "none"},
}
"""The last two are ours: an order of all symbols, also of those that are not predicted, as in the paper's equations and
not in its code; and no order at all, so that two streams do the same as masked language modelling."""

ABLATION = Ablation(
    question="What is each part of XLNet worth: an order of what is predicted, memory, spans, and both directions?",
    source=Source("Yang et al. 2019", arxiv="1906.08237", table="6"),
    baseline=XLNET,
    factors={"component": {"xlnet": {}, **COMPONENTS}},
    design="one_factor",
    seeds=3,
    metric=MASKED_NATS,
    match=Match("tokens"),
    published=Published(
        protocol="12 layers of 768, books and Wikipedia, fine-tuned on RACE; the baseline predicts a sixth (K = 6)",
        metric="accuracy",
        cells=[
            PublishedValue("baseline", 66.66),
            PublishedValue("component=denoising", 65.03, note="DAE + Transformer-XL"),
            PublishedValue("component=k7", 66.05),
            PublishedValue("component=no_memory", 65.55),
            PublishedValue("component=no_spans", 65.95),
            PublishedValue("component=one_direction", 66.34, note="without bidirectional data"),
        ],
        claims=[
            "With next-sentence prediction 66.76.",
            "On SQuAD 2.0 (F1), MNLI, SST-2 the baseline has 80.98, 85.63 and 93.35, denoising 79.56, 84.88 and 92.60.",
        ],
    ),
    scales={
        "demo": Scale(seeds=Looks(4, 8), margin=MASKED_MARGIN),
        "gpu": Scale(
            overrides=dict(BOOKS_GPU)
            | {"data.length": 256, "data.batch_size": 128, "task.segment_length": 128, "model.mixer.memory": 96},
            margin=Margin(0.02, "a hundredth of the loss of a piece"),
        ),
        "paper": Scale(
            overrides=dict(BERT_BASE)
            | {"data.length": 1024, "data.batch_size": 128, "task.segment_length": 512, "model.mixer.memory": 384},
            seeds=1,
        ),
    },
)
