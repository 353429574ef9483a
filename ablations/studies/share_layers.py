"""Layers that share weights after training, as their mean or as one of them, against fewer layers (Lan et al. 2020,
arXiv:1909.11942; Dehghani et al. 2019, arXiv:1807.03819, share weights from the start)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Match, Published, Scale, Source
from ablations.compression import DENSE
from ablations.fine_tuning import FETCH, SEEDS, SENTIMENT_NATS, WHOLE
from lit_transformers.stacks import SharedConfig

SIX: Mapping[str, Any] = {"run": DENSE.to_dict()}
"""The source of all arms: the fine-tuned network of six layers."""


def shared(layers: int, share: str = "mean") -> Mapping[str, Any]:
    """Returns the overrides of an arm in which every ``layers`` successive layers share weights, which are then
    trained."""
    return {"model.stack": SharedConfig(groups=6 // layers), "start.share": share}


def kept(*layers: int) -> Mapping[str, Any]:
    """Returns the overrides of an arm that keeps these layers."""
    return {"model.depth": len(layers), "start.layers": layers}


LARGER: Mapping[str, Any] = {**WHOLE, "start.network": {"run": DENSE.override(WHOLE).to_dict()}}
"""Overrides of the baseline: all networks have had three passes of all sentences on a GPU, twice."""

ABLATION = Ablation(
    question="Do layers that share weights after training keep more than fewer layers of the same size?",
    answer=[f"runs of {number} shared layers in place of fewer layers" for number in (2, 3, 6)],
    source=Source("Lan et al. 2020", arxiv="1909.11942", table="4"),
    baseline=DENSE.override(
        {"training.steps": 80, "training.schedule.warmup": 8, "start": {"network": SIX, "heads": "network"}}
    ),
    factors={
        "layers": {
            "six": {},
            "mean_of_2": shared(2),
            "mean_of_3": shared(3),
            "mean_of_6": shared(6),
            "first_of_2": shared(2, "first"),
            "first_of_6": shared(6, "first"),
            "three": kept(2, 4, 6),
            "two": kept(3, 6),
            "one": kept(6),
        }
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    match=Match("flops", free="training.steps"),
    contrasts=[
        *(
            Contrast(f"runs of {number} shared layers in place of fewer layers", f"layers=mean_of_{number}", fewer)
            for number, fewer in ((2, "layers=three"), (3, "layers=two"), (6, "layers=one"))
        ),
        *(
            Contrast(
                f"the mean of {number} layers in place of the first",
                f"layers=mean_of_{number}",
                f"layers=first_of_{number}",
            )
            for number in (2, 6)
        ),
        *(Contrast(f"runs of {number} shared layers", f"layers=mean_of_{number}", "baseline") for number in (2, 3, 6)),
    ],
    published=Published(
        protocol="ALBERT-base, whose 12 layers share their weights from the start; mean of five tasks; here MiniLM, "
        "whose layers share the mean of their weights after fine-tuning and learn further at equal compute",
        metric="average accuracy",
        goal="maximize",
        claims=["Shared from the start, 12 layers lose 1.5 points with narrow embeddings and 2.5 with wide ones."],
    ),
    scales={"demo": Scale(), "gpu": Scale(overrides=LARGER), "paper": Scale(overrides=LARGER, seeds=1)},
    preparation=FETCH,
)
