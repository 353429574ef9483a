"""The loss without one layer of a fine-tuned encoder, by which layer it is, and without every other layer, also where
training has skipped layers at random (LayerDrop, Fan et al. 2019, arXiv:1909.11556)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Published, Source
from ablations.compression import COMPRESSED, PACKED, SCALES
from ablations.fine_tuning import FETCH, SEEDS, SENTIMENT_NATS
from lit_transformers.stacks import SequentialConfig

DEPTH = 6
LAYER_DROP = {"start.network.run.model.stack": SequentialConfig(layer_drop=0.2)}
"""Overrides of an arm whose dense network was trained with LayerDrop, at the rate of the paper."""


def without(*layers: int) -> dict[str, object]:
    """Returns the overrides of an arm whose network lacks layers, counted from 1."""
    kept = tuple(layer for layer in range(1, DEPTH + 1) if layer not in layers)
    return {"model.depth": len(kept), "start.layers": kept}


ABLATION = Ablation(
    question="Which layer of a fine-tuned encoder can be dropped?",
    answer=["without layer 3", "without layer 6"],
    source=Source("Fan et al. 2019", arxiv="1909.11556"),
    baseline=COMPRESSED,
    factors={
        "dropped": {
            "none": {},
            **{str(layer): without(layer) for layer in range(1, DEPTH + 1)},
            "2_4_6": without(2, 4, 6),
            "none_layer_drop": LAYER_DROP,
            "2_4_6_layer_drop": {**LAYER_DROP, **without(2, 4, 6)},
        }
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    also=[PACKED],
    contrasts=[
        *(Contrast(f"without layer {layer}", f"dropped={layer}", "baseline") for layer in range(1, DEPTH + 1)),
        Contrast("without every other layer", "dropped=2_4_6", "baseline"),
        Contrast("LayerDrop in training", "dropped=none_layer_drop", "baseline"),
        Contrast("LayerDrop, without every other layer", "dropped=2_4_6_layer_drop", "dropped=2_4_6"),
    ],
    published=Published(
        protocol="RoBERTa on MNLI and SST-2, trained with LayerDrop and without every other layer afterwards",
        metric="accuracy on MNLI",
        goal="maximize",
        claims=["Networks of any depth can be taken from one that was trained with LayerDrop, without fine-tuning."],
    ),
    scales=SCALES,
    preparation=FETCH,
)
