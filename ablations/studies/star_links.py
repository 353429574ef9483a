"""Ring and radial links of the Star-Transformer (Guo et al. 2019, arXiv:1902.09113, section 5.1 and table 7)."""

from __future__ import annotations

from ablations.ablation import Ablation, Looks, Match, Published, Scale, Source
from ablations.baselines import SQUARED_ERROR, SUMS, SUMS_GPU, SUMS_MARGIN
from lit_transformers.mixers import AttentionConfig, StarConfig

ABLATION = Ablation(
    question="Does a star need its ring, its centre, or both, to bring far positions together?",
    source=Source("Guo et al. 2019", arxiv="1902.09113", table="7"),
    baseline=SUMS.override(
        {"model.depth": 1, "model.mixer": StarConfig(), "data.source.length": 31, "training.steps": 1000}
    ),
    factors={
        "links": {
            "ring+radial": {},
            "radial": {"model.mixer.ring": False},
            "ring": {"model.mixer.radial": False},
            "all_pairs": {"model.mixer": AttentionConfig()},
        }
    },
    design="one_factor",
    seeds=3,
    metric=SQUARED_ERROR,
    match=Match("tokens"),
    published=Published(
        protocol="masked summation of 10 vectors among 200; a figure, whose numbers are not available",
        metric="mean squared error",
        claims=["Without radial links far positions are not summed; without the ring local order is lost."],
    ),
    scales={
        "demo": Scale(seeds=Looks(4, 8), margin=SUMS_MARGIN),
        "gpu": Scale(overrides=SUMS_GPU),
        "paper": Scale(overrides=dict(SUMS_GPU) | {"data.source.length": 200}, seeds=1),
    },
)
