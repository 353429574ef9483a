"""Whether half of the feed-forward channels, and half of the heads of each layer, can be taken out of a network, and
whether importance chooses them better than chance (Molchanov et al. 2017, arXiv:1611.06440)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Published, Source
from ablations.compression import COMPRESSED, PACKED, SCALES
from ablations.fine_tuning import FETCH, SEEDS, SENTIMENT_NATS
from lit_transformers.compression import PruneHeadsConfig
from lit_transformers.compression.narrow import NarrowConfig

CHANNELS, HEADS = 1536, 12
HEAD = {"model.mixer.head_dim": 32}


def channels(kept: int, **fields: Any) -> Mapping[str, Any]:
    """Returns the overrides of an arm that keeps ``kept`` feed-forward channels of each layer, without recovery."""
    return {"model.feedforward.width": kept, "start.narrow": NarrowConfig(**fields)}


def heads(kept: int, **fields: Any) -> Mapping[str, Any]:
    """Returns the overrides of an arm that keeps ``kept`` heads of each layer, without recovery."""
    return {"model.heads": kept, **HEAD, "start.narrow": NarrowConfig(**fields)}


ABLATION = Ablation(
    question="Can half of the feed-forward channels or of the heads be taken out of a fine-tuned encoder?",
    answer=["half of the channels", "importance in place of chance for channels"],
    source=Source("Molchanov et al. 2017", arxiv="1611.06440"),
    baseline=COMPRESSED,
    factors={
        "kept": {
            "all": {},
            "channels_most": channels(3 * CHANNELS // 4),
            "channels_half": channels(CHANNELS // 2),
            "channels_half_magnitude": channels(CHANNELS // 2, score="magnitude"),
            "channels_half_random": channels(CHANNELS // 2, score="random"),
            "heads_half": heads(HEADS // 2),
            "heads_half_random": heads(HEADS // 2, score="random"),
            "heads_half_zeroed": {"compression": (PruneHeadsConfig(heads=36),)},
        }
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    also=[PACKED],
    contrasts=[
        Contrast("three quarters of the channels", "kept=channels_most", "baseline"),
        Contrast("half of the channels", "kept=channels_half", "baseline"),
        Contrast("importance in place of chance for channels", "kept=channels_half", "kept=channels_half_random"),
        Contrast("importance in place of magnitude for channels", "kept=channels_half", "kept=channels_half_magnitude"),
        Contrast("half of the heads of each layer", "kept=heads_half", "baseline"),
        Contrast("importance in place of chance for heads", "kept=heads_half", "kept=heads_half_random"),
        Contrast("as many heads of each layer in place of all layers", "kept=heads_half", "kept=heads_half_zeroed"),
    ],
    published=Published(
        protocol="Convolutional networks on birds, flowers and ImageNet, whose channels are pruned one by one with "
        "fine-tuning in between; here a Transformer's are pruned at once, without recovery",
        metric="accuracy of classification",
        goal="maximize",
        claims=["A first-order estimate of the change of the loss chooses channels better than the norm of weights."],
    ),
    scales=SCALES,
    preparation=FETCH,
)
