"""Searches a recipe for small encoders that are read at one token.

`python -m ablations tune examples/encoder_recipe.py --trials 8` gives both norms the same number of trials.
What an arm states is not searched: strings that never come twice need no dropout. Six trials (2026-11-25) found nothing
better than the baseline, and norms that differ by .004 (-.069 to .076).
"""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Scale
from ablations.baselines import SQUARED_ERROR, SUMS

ABLATION = Ablation(
    question="With which norm and rate does a small encoder learn to sum the marked values of a row soonest?",
    baseline=SUMS,
    factors={"norm": {"pre": {}, "post": {"model.norm": "post", "model.dropout": 0.0}}},
    design="one_factor",
    seeds=2,
    metric=SQUARED_ERROR,
    match=Match("tokens"),
    scales={"demo": Scale()},
)
