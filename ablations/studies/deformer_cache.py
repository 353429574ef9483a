"""The precision in which states of passages are kept for a reader with lower layers apart (DeFormer, Cao et al. 2020,
arXiv:2005.00697, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ablations.ablation import Ablation, Contrast, Margin, Metric, Published, Scale, Source
from ablations.fine_tuning import FETCH, READER, READER_F1, SEEDS, SIX_LANGUAGES_ON_GPU, after

APART = READER.override({"model.apart": 3})
"""The reader whose states of passages are kept."""
ON_GPU: Mapping[str, Any] = {**SIX_LANGUAGES_ON_GPU, **after(APART.override(SIX_LANGUAGES_ON_GPU))}
"""Overrides for readers of six languages."""

ABLATION = Ablation(
    question="How much do answers lose if states of passages are kept in fewer bits?",
    answer=["eight bits"],
    source=Source("Cao et al. 2020", arxiv="2005.00697"),
    baseline=APART.override(after(APART)),
    factors={
        "states": {
            "float32": {},
            "bfloat16": {"model.passage_states": "bfloat16"},
            "int8": {"model.passage_states": "int8"},
        }
    },
    design="one_factor",
    seeds=SEEDS,
    metric=replace(READER_F1, margin=Margin(1.0, "a third of the margin of readers that are trained apart")),
    also=[
        Metric("val/exact_match", goal="maximize", label="answers that match exactly"),
        Metric("val/nats", goal="minimize", label="nats of the span of the answer"),
        Metric("measured/passage_bytes", goal="minimize", label="bytes of the states of a passage", compare="ratio"),
    ],
    contrasts=[
        Contrast("sixteen bits", "states=bfloat16", "baseline"),
        Contrast("eight bits", "states=int8", "baseline"),
    ],
    published=Published(
        protocol="BERT-base on SQuAD 1.1; here MiniLM with three of six layers apart on xquad, cross-validated by "
        "passage, and states of passages in fewer bits",
        metric="F1 on SQuAD 1.1",
        goal="maximize",
        claims=["With 9 of 12 layers apart F1 is 87.00, as against 88.34 of the full network."],
    ),
    scales={"demo": Scale(), "gpu": Scale(overrides=ON_GPU), "paper": Scale(overrides=ON_GPU)},
    preparation=FETCH,
)
"""All arms read the same trained readers. With five of six layers apart they stay below the floor after one pass.
bfloat16 rounds each number; int8 has a scale for each channel of each window."""
