"""Adapters in place of full fine-tuning (Houlsby et al. 2019, arXiv:1902.00751)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Published, Retention, Source
from ablations.fine_tuning import FETCH, RECIPROCAL_RANK, RETRIEVAL, SEEDS, SENTIMENT_NATS, TUNED, WHOLE, rates, scales
from lit_transformers.adapters import (
    AdapterConfig,
    BottleneckConfig,
    DoRAConfig,
    IA3Config,
    LowRankConfig,
    ParallelAdapterConfig,
)
from lit_transformers.training.groups import ParameterGroupConfig

AROUND = (ParameterGroupConfig(parameters=("network",), frozen=True), ParameterGroupConfig(parameters=("adapters",)))
"""Freezes the network except its adapters."""


def adapted(adapter: AdapterConfig) -> Mapping[str, Any]:
    """Returns the overrides of an arm that trains an adapter of the frozen network, with ten times the learning
    rate."""
    return {"model.adapter": adapter, "training.groups": AROUND, "training.optimizer.learning_rate": 1e-3}


ABLATION = Ablation(
    question="How much does a classifier lose, and how much less does it forget, if only adapters learn?",
    answer=["bottlenecks in place of the network", "low rank in place of the network"],
    source=Source("Houlsby et al. 2019", arxiv="1902.00751", table="1"),
    baseline=TUNED,
    factors={
        "learning": {
            "network": {},
            "bottleneck": adapted(BottleneckConfig(width=8)),
            "parallel": adapted(ParallelAdapterConfig(width=16)),
            "low_rank": adapted(LowRankConfig(rank=12)),
            "dora": adapted(DoRAConfig(rank=12, maps=("query", "value"))),
            "ia3": adapted(IA3Config()),
            "head": {
                "training.groups": (ParameterGroupConfig(parameters=("network",), frozen=True),),
                "training.optimizer.learning_rate": 1e-2,
            },
        },
        "rate": rates(TUNED),
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    contrasts=[
        Contrast("bottlenecks in place of the network", "learning=bottleneck", "baseline"),
        Contrast("parallel adapters in place of the network", "learning=parallel", "baseline"),
        Contrast("low rank in place of the network", "learning=low_rank", "baseline"),
        Contrast("DoRA in place of the network", "learning=dora", "baseline"),
        Contrast("IA3 in place of the network", "learning=ia3", "baseline"),
        Contrast("the head alone in place of the network", "learning=head", "baseline"),
        Contrast("low rank in place of bottlenecks", "learning=low_rank", "learning=bottleneck"),
        Contrast("DoRA in place of low rank", "learning=dora", "learning=low_rank"),
    ],
    retention={"retrieval": Retention(run=RETRIEVAL, metric=RECIPROCAL_RANK)},
    published=Published(
        protocol="BERT-large on the tasks of GLUE",
        metric="mean score of GLUE",
        goal="maximize",
        claims=["Adapters with a few per cent of the parameters nearly reach the score of full fine-tuning."],
    ),
    scales=scales(WHOLE),
    preparation=FETCH,
)
"""Bottlenecks of width 8, parallel adapters of width 16, and low rank and DoRA of rank 12 have similar numbers of
weights: 76 to 115 thousand. IA3 has fewer by its definition. VeRA is no arm: with as many weights, its matrices would
take more FLOPs than the network. All arms read the same rows equally often; compute is equal except for the backward
pass of frozen weights."""
