"""Asks which schedule, and which average of weights, tells two encodings of positions apart soonest.

`python -m ablations run examples/less_noise.py --scale lags` trains the pairs on symbols that repeat earlier ones; the
scales `recall` and `text` do so on the other two kinds of data. `python -m benchmarks.noise` reads what came out as
seconds to a decided comparison.

On lags (64 runs, two cores, 2026-11-24) the cosine needs 1,881 s, with averaged weights 1,865 s, a linear decay
1,854 s, and a constant rate with averaged weights 1,756 s: no more apart than eight seeds can tell. Seeds differ in
when rotary positions learn the far lag, long before the rate decays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablations.ablation import Ablation, Contrast, Margin, Match, Metric, Scale
from ablations.baselines import LAGS, RECALL, RECALL_MARGIN, TEXT_MARGIN, TRANSFORMER_XL, positions
from lit_transformers.training.config import AverageConfig, ConstantConfig, LinearDecayConfig

AVERAGE: Mapping[str, Any] = {"training.average": AverageConfig(last=10, every=10)}
"""The mean of ten weights over the last hundred updates."""

TREATMENTS: Mapping[str, Mapping[str, Any]] = {
    "cosine": {},
    "linear": {"training.schedule": LinearDecayConfig(warmup=50)},
    "constant_averaged": {"training.schedule": ConstantConfig(warmup=50), **AVERAGE},
    "cosine_averaged": AVERAGE,
}

ABLATION = Ablation(
    question="Which schedule and which average of weights tell two encodings of positions apart soonest?",
    baseline=TRANSFORMER_XL,
    factors={"treatment": TREATMENTS, "positions": positions("xl", "rotary")},
    seeds=8,
    metric=Metric("test/nats", goal="minimize", label="nats per symbol"),
    match=Match("tokens"),
    contrasts=[
        Contrast(f"rotary against xl, {name}", f"treatment={name} positions=rotary", f"treatment={name} positions=xl")
        for name in TREATMENTS
    ],
    scales={
        "lags": Scale(overrides=LAGS, margin=Margin(0.02, "less than a tenth of what the lag beyond a segment tells")),
        "recall": Scale(overrides=RECALL | {"training.validate_every": None}, margin=RECALL_MARGIN),
        "text": Scale(
            overrides={
                "model.norm": "pre",
                "training.optimizer.learning_rate": 1e-2,
                "training.validate_every": None,
            },
            margin=TEXT_MARGIN,
        ),
    },
)
