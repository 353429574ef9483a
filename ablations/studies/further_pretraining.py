"""Further pretraining on the texts of a task before fine-tuning (Sun et al. 2019, arXiv:1905.05583, section 5.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Published, PublishedValue, Source
from ablations.fine_tuning import (
    FETCH,
    FEW_LABELS,
    IMPORTED,
    MINILM_NETWORK,
    PIECES,
    REVIEWS,
    SENTIMENT_NATS,
    WHOLE_OF_FEW,
    rates,
    scales,
)
from datamodules import LabelledTrainingConfig, MaskTokensConfig, RowDataConfig, SentencesConfig
from lit_transformers.runs import RunConfig, StartConfig
from lit_transformers.tasks import MaskedLMConfig
from lit_transformers.training.config import AdamWConfig, LinearDecayConfig, TrainingConfig


def pretrained_on(corpus: str) -> Mapping[str, Any]:
    """Returns the overrides of an arm with masked language modelling on a corpus before fine-tuning."""
    return {"start.network": {"run": MASKED.override({"data.source.labelled.corpus": corpus}).to_dict()}}


MASKED = RunConfig(
    model=MINILM_NETWORK,
    task=MaskedLMConfig(),
    data=RowDataConfig(
        source=LabelledTrainingConfig(
            labelled=SentencesConfig(corpus="sst2", tokenizer=PIECES),
            held_out=(SentencesConfig(corpus="sst2", tokenizer=PIECES),),
        ),
        tokenizer=PIECES,
        length=64,
        packing="doc_sentences",
        noise=MaskTokensConfig(),
        batch_size=32,
    ),
    training=TrainingConfig(
        steps=400, optimizer=AdamWConfig(learning_rate=1e-4), schedule=LinearDecayConfig(warmup=40), device="cpu"
    ),
    start=StartConfig.from_dict({"network": IMPORTED}),
)
"""Masked language modelling from the released weights, with a new head of symbols. Held-out texts of SST-2 are
omitted."""

ABLATION = Ablation(
    question="Does further pretraining on the task's texts help a classifier with few labels?",
    answer=["further pretraining within the task"],
    source=Source("Sun et al. 2019", arxiv="1905.05583", table="6"),
    baseline=FEW_LABELS,
    factors={
        "pretraining": {
            "none": {},
            "within_task": pretrained_on("sst2"),
            "in_domain": pretrained_on("imdb"),
            "cross_domain": pretrained_on("trec"),
        },
        "rate": rates(FEW_LABELS),
    },
    design="one_factor",
    seeds=3,
    metric=SENTIMENT_NATS,
    contrasts=[
        Contrast("further pretraining within the task", "pretraining=within_task", "baseline"),
        Contrast("further pretraining within the domain", "pretraining=in_domain", "baseline"),
        Contrast("further pretraining in another domain", "pretraining=cross_domain", "baseline"),
    ],
    published=Published(
        protocol="BERT-base, 100,000 updates of masked language modelling, then 25,000 labels of IMDb; here 400 "
        "updates and 256 labels",
        metric="error rate on IMDb",
        goal="minimize",
        cells=[
            PublishedValue("baseline", 5.40),
            PublishedValue("pretraining=within_task", 4.37),
            PublishedValue("pretraining=in_domain", 4.88),
            PublishedValue("pretraining=cross_domain", 5.18),
        ],
        claims=[
            "With .4 % of the labels, further pretraining within the task lowers the error rate from 17.26 to 9.23."
        ],
    ),
    scales=scales(WHOLE_OF_FEW, REVIEWS),
    preparation=FETCH,
)
