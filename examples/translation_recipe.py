"""Searches the recipe that the studies of translation share.

`python -m ablations tune examples/translation_recipe.py --trials 8` gives both norms the same number of trials.
"""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Scale
from ablations.pairs import BLEU, TRANSLATION

ABLATION = Ablation(
    question="With which norm and rate does a small translator learn most in two minutes?",
    baseline=TRANSLATION,
    factors={
        "norm": {"post": {}, "pre": {"model.norm": "pre"}},
    },
    design="one_factor",
    seeds=2,
    metric=BLEU,
    match=Match("tokens"),
    scales={"demo": Scale()},
)
