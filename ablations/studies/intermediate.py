"""An intermediate task between pretraining and a task with few labels (STILTs, Phang et al. 2018, arXiv:1811.01088)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Margin, Metric, Published, Source
from ablations.fine_tuning import FETCH, SEEDS, TUNED, WHOLE, rates, scales

FEW: Mapping[str, Any] = {
    "data.source.corpus": "trec",
    "data.source.length": 48,
    "data.source.examples": 256,
    "training.steps": 48,
    "training.schedule.warmup": 5,
}
"""Overrides of TUNED: the six kinds of questions of TREC, with few labels."""


def after(corpus: str) -> Mapping[str, Any]:
    """Returns the overrides of an arm that is fine-tuned on another corpus first."""
    return {"start.network": {"run": TUNED.override({"data.source.corpus": corpus}).to_dict()}}


BASELINE = TUNED.override(FEW)

ABLATION = Ablation(
    question="Does an intermediate task with more labels help a task with few labels?",
    answer=["sentiment before kinds of questions"],
    source=Source("Phang et al. 2018", arxiv="1811.01088", table="1"),
    baseline=BASELINE,
    factors={
        "first": {"released": {}, "sentiment": after("sst2"), "acceptability": after("cola")},
        "rate": rates(BASELINE),
    },
    design="one_factor",
    seeds=SEEDS,
    metric=Metric(
        "val/nats",
        goal="minimize",
        label="nats per question",
        margin=Margin(0.03, "a sixtieth of the loss of guessing one of six kinds"),
    ),
    contrasts=[
        Contrast("sentiment before kinds of questions", "first=sentiment", "baseline"),
        Contrast("acceptability before kinds of questions", "first=acceptability", "baseline"),
    ],
    published=Published(
        protocol="BERT-large on MNLI and other large tasks, then on the tasks of GLUE",
        metric="mean score of GLUE",
        goal="maximize",
        claims=["Tasks with few labels gain most, and some intermediate tasks are harmful."],
    ),
    scales=scales(WHOLE),
    preparation=FETCH,
)
