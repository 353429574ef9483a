"""The loss of pruned weights, by their share and by the score that chooses them (Han et al. 2015, arXiv:1506.02626)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Published, Source
from ablations.compression import COMPRESSED, PACKED, SCALES
from ablations.fine_tuning import FETCH, SEEDS, SENTIMENT_NATS
from lit_transformers.compression import PruneWeightsConfig


def pruned(sparsity: float, **fields: Any) -> Mapping[str, Any]:
    """Returns the overrides of an arm whose layers are pruned after training, without recovery."""
    return {"compression": (PruneWeightsConfig(parameters=("layers",), sparsity=sparsity, **fields),)}


ABLATION = Ablation(
    question="How many weights of the layers of a fine-tuned encoder can be zero?",
    answer=["half of the weights", "magnitude in place of chance"],
    source=Source("Han et al. 2015", arxiv="1506.02626"),
    baseline=COMPRESSED,
    factors={
        "pruned": {
            "none": {},
            "half": pruned(0.5),
            "half_of_all": pruned(0.5, scope="all"),
            "half_random": pruned(0.5, score="random"),
            "two_of_four": pruned(0.5, pattern="2:4"),
            "seven_tenths": pruned(0.7),
            "nine_tenths": pruned(0.9),
        }
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    also=[PACKED],
    contrasts=[
        Contrast("half of the weights", "pruned=half", "baseline"),
        Contrast("magnitude in place of chance", "pruned=half", "pruned=half_random"),
        Contrast("magnitudes of all matrices in place of each", "pruned=half_of_all", "pruned=half"),
        Contrast("two of each four weights in place of half of all", "pruned=two_of_four", "pruned=half"),
        Contrast("seven tenths of the weights", "pruned=seven_tenths", "baseline"),
        Contrast("nine tenths of the weights", "pruned=nine_tenths", "baseline"),
    ],
    published=Published(
        protocol="AlexNet on ImageNet, pruned by magnitude and trained again; here nothing is trained again",
        metric="top-1 error on ImageNet",
        goal="minimize",
        claims=["AlexNet keeps its accuracy with a ninth of its weights, if it is trained again after pruning."],
    ),
    scales=SCALES,
    preparation=FETCH,
)
