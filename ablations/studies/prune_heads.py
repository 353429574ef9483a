"""Whether half of the attention heads can be pruned, and whether importance chooses them better than chance (Michel et
al. 2019, arXiv:1905.10650)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Published, Source
from ablations.compression import COMPRESSED, PACKED, SCALES
from ablations.fine_tuning import FETCH, SEEDS, SENTIMENT_NATS
from lit_transformers.compression import PruneHeadsConfig


def pruned(heads: int, **fields: Any) -> Mapping[str, Any]:
    """Returns the overrides of an arm some of whose 72 heads are pruned after training, without recovery."""
    return {"compression": (PruneHeadsConfig(heads=heads, **fields),)}


ABLATION = Ablation(
    question="Can half of the attention heads of a fine-tuned encoder be pruned?",
    answer=["half of the heads", "importance in place of chance"],
    source=Source("Michel et al. 2019", arxiv="1905.10650"),
    baseline=COMPRESSED,
    factors={
        "heads": {
            "all": {},
            "quarter": pruned(18),
            "half": pruned(36),
            "half_random": pruned(36, score="random"),
            "half_magnitude": pruned(36, score="magnitude"),
            "three_quarters": pruned(54),
        }
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    also=[PACKED],
    contrasts=[
        Contrast("a quarter of the heads", "heads=quarter", "baseline"),
        Contrast("half of the heads", "heads=half", "baseline"),
        Contrast("importance in place of chance", "heads=half", "heads=half_random"),
        Contrast("importance in place of magnitude", "heads=half", "heads=half_magnitude"),
        Contrast("three quarters of the heads", "heads=three_quarters", "baseline"),
    ],
    published=Published(
        protocol="BERT-base on MNLI, whose heads are pruned in the order of their importance, without recovery",
        metric="accuracy on MNLI",
        goal="maximize",
        claims=["Up to 40 % of the heads of BERT can be pruned without a noticeable loss."],
    ),
    scales=SCALES,
    preparation=FETCH,
)
