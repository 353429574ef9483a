"""Multi-task training before one of the tasks (Sun et al. 2019, arXiv:1905.05583, section 5.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Published, PublishedValue, Source
from ablations.fine_tuning import (
    FETCH,
    FEW_LABELS,
    PIECES,
    REVIEWS,
    SEEDS,
    SENTIMENT_NATS,
    TUNED,
    WHOLE_OF_FEW,
    rates,
    scales,
)
from datamodules import MixedDataConfig, ProportionalConfig, SentencesConfig, SourceSamplingConfig, UniformConfig
from lit_transformers.tasks import ClassificationConfig, MultiTaskConfig

TASKS = ("cola", "sst2", "trec")


def together(sampling: SourceSamplingConfig) -> Mapping[str, Any]:
    """Returns the overrides of an arm that learns three tasks at once, and then sentiment from the same network."""
    head = ClassificationConfig(pooling="mean", dropout=0.1)
    first = TUNED.override(
        {
            "task": MultiTaskConfig(tasks=dict.fromkeys(TASKS, head)),
            "data": MixedDataConfig(
                sources={
                    name: SentencesConfig(
                        corpus=name,  # type: ignore[arg-type]
                        tokenizer=PIECES,
                        length=64,
                        examples=256 if name == "sst2" else 1000,
                        balanced=name == "sst2",
                        subset="by_seed",
                    )
                    for name in TASKS
                },
                sampling=sampling,
                batch_size=32,
            ),
            "training.steps": 90,
            "training.schedule.warmup": 9,
        }
    )
    return {"start.network": {"run": first.to_dict()}}


ABLATION = Ablation(
    question="Does multi-task training first help a task with few labels?",
    answer=["three tasks before one"],
    source=Source("Sun et al. 2019", arxiv="1905.05583", table="8"),
    baseline=FEW_LABELS,
    factors={
        "first": {"released": {}, "three_tasks": together(UniformConfig()), "as_large": together(ProportionalConfig())},
        "rate": rates(FEW_LABELS),
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    contrasts=[
        Contrast("three tasks before one", "first=three_tasks", "baseline"),
        Contrast("batches in proportion to labels in place of equal numbers", "first=as_large", "first=three_tasks"),
    ],
    published=Published(
        protocol="BERT-base on four classification tasks together, then on IMDb alone",
        metric="error rate on IMDb",
        goal="minimize",
        cells=[PublishedValue("baseline", 5.40), PublishedValue("first=three_tasks", 5.36)],
        remarks={
            "three tasks before one": "Two cores cannot decide a gain as small as the source's; this study shows "
            "the gain or loss with few labels."
        },
    ),
    scales=scales(WHOLE_OF_FEW, REVIEWS),
    preparation=FETCH,
)
