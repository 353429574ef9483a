"""Searches a recipe for small encoder-decoders that copy and reverse strings.

`python -m ablations tune examples/strings_recipe.py --trials 8` gives both norms the same number of trials.
Four trials each (2026-11-25) found nothing better than the baseline.
"""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Metric, Scale
from ablations.pairs import STRINGS, STRINGS_SCALES
from datamodules import ReverseConfig

ABLATION = Ablation(
    question="With which norm and rate does a small encoder-decoder reverse words longer than it was trained on?",
    baseline=STRINGS.override({"data.source.generator": ReverseConfig()}),
    factors={"norm": {"post": {}, "pre": {"model.norm": "pre"}}},
    design="one_factor",
    seeds=2,
    metric=Metric("test/accuracy", goal="maximize", label="symbols of the answer"),
    match=Match("tokens"),
    scales={"demo": Scale(overrides=STRINGS_SCALES["demo"].overrides)},
)
