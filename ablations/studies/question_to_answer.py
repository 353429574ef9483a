"""How much of an answer is lost on the path from a question to it, if a retriever finds the passages of a reader. This
study reproduces no paper: its path is that of DrQA (Chen et al. 2017, arXiv:1704.00051), with two towers as in DPR
(Karpukhin et al. 2020, arXiv:2004.04906)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ablations.ablation import Ablation, Contrast, Margin, Metric, Scale
from ablations.fine_tuning import FETCH, READER, READER_F1, SEEDS, THREE_PASSES, after

RANKED = "xquad_ranked/minilm.en.json"
"""The file of passages that two towers of the released MiniLM rank for each question, below LIT_DATA."""
ON_GPU: Mapping[str, Any] = {
    **after(READER.override(THREE_PASSES)),
    "training.device": "cuda",
    "training.precision": "bf16",
}
"""Overrides for readers of three passes."""


def of_retriever(best: int | None) -> Mapping[str, Any]:
    """Returns the overrides of an arm that reads the passages ranked first. best: their number; None: all."""
    return {"data.source.retrieved": RANKED, "data.source.best": best}


ABLATION = Ablation(
    question="How much does a reader lose if a retriever finds its passages?",
    answer=["the first passage in place of the right one", "five passages in place of the first"],
    baseline=READER.override(after(READER)),
    factors={
        "passages": {"right": {}, "first": of_retriever(1), "first_five": of_retriever(5), "all": of_retriever(None)},
    },
    design="one_factor",
    seeds=SEEDS,
    metric=replace(READER_F1, margin=Margin(1.0, "a third of the margin between readers: all arms have one reader")),
    also=[Metric("val/exact_match", goal="maximize", label="answers that match exactly")],
    contrasts=[
        Contrast("the first passage in place of the right one", "passages=first", "baseline"),
        Contrast("five passages in place of the first", "passages=first_five", "passages=first"),
        Contrast("all passages in place of five", "passages=all", "passages=first_five"),
    ],
    scales={
        "demo": Scale(leave_out={"passages=all": "240 passages for each question take an hour"}),
        "hour": Scale(),
        "gpu": Scale(overrides=ON_GPU),
        "paper": Scale(overrides=ON_GPU),
    },
    preparation=f'{FETCH}; python -m ablations.retrieved_passages "$LIT_DATA/{RANKED}"',
)
"""All arms read the same trained readers and answer the same questions. The answer is the span with the largest sum of
two logits over all passages. The passages are the 240 of English xquad, those of training included."""
