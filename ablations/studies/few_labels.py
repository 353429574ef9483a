"""The number of labels that a classifier on a pretrained encoder needs. This study reproduces no paper."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Scale
from ablations.fine_tuning import FETCH, OTHER_RATES, PROBE, SEEDS, SENTIMENT_NATS, rates

NUMBERS = (512, 128, 64, 32, 16)

BASELINE = PROBE.override(
    {"data.source.examples": NUMBERS[0], "data.source.subset": "by_seed", "data.source.balanced": True}
)

ABLATION = Ablation(
    question="How much does a classifier on a pretrained encoder lose with fewer labels?",
    answer=["128 labels in place of 512"],
    baseline=BASELINE,
    factors={
        "labels": {
            "512": {},
            **{str(number): {"data.source.examples": number} for number in NUMBERS[1:]},
            "512_unbalanced": {"data.source.balanced": False},
        },
        "rate": rates(BASELINE),
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    contrasts=[
        *(Contrast(f"{number} labels in place of 512", f"labels={number}", "baseline") for number in NUMBERS[1:]),
        Contrast("labels at random in place of equal numbers of each class", "labels=512_unbalanced", "baseline"),
    ],
    scales={
        "demo": Scale(),
        "gpu": Scale(
            leave_out=OTHER_RATES,
            overrides={
                "training.groups": (),
                "training.cache_features": False,
                "training.optimizer.learning_rate": 5e-5,
            },
        ),
        "paper": Scale(leave_out=OTHER_RATES, seeds=16),
    },
    preparation=FETCH,
)
