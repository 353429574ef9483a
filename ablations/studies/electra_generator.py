"""How good a generator should be (ELECTRA, Clark et al. 2020, arXiv:2003.10555, section 3.2 and figure 3)."""

from __future__ import annotations

from ablations.ablation import Ablation, Looks, Match, Published, Scale, Source
from ablations.baselines import ELECTRA, ELECTRA_BASE, ELECTRA_GPU, PAIRS_ACCURACY

ABLATION = Ablation(
    question="How wide should the generator be whose draws a discriminator is trained to notice?",
    source=Source("Clark et al. 2020", arxiv="2003.10555", table="figure 3"),
    baseline=ELECTRA,
    factors={
        "generator": {
            "quarter": {},
            "sixteenth": {"task.generator.width": 1 / 16},
            "half": {"task.generator.width": 0.5},
            "full": {"task.generator.width": 1.0},
            "itself": {"task.generator.width": None, "task.generator.tie": "all"},
            "uniform": {"task.generator.draws": "uniform"},
        },
    },
    design="one_factor",
    seeds=3,
    metric=PAIRS_ACCURACY,
    match=Match("tokens"),
    published=Published(
        protocol="small and base discriminators, 500,000 updates, fine-tuned on GLUE",
        metric="GLUE score",
        goal="maximize",
        claims=[
            "Generators of a quarter to a half of the discriminator's size are best (figure 3).",
            "Equal sizes with all weights tied gain little over tied embeddings: 84.4 to 84.3 (section 3.2).",
        ],
    ),
    scales={
        "demo": Scale(seeds=Looks(4, 8, first_seed=1, pilot="seed 0 was a pilot, by which the recipe was chosen")),
        "gpu": Scale(overrides=ELECTRA_GPU),
        "paper": Scale(overrides=ELECTRA_BASE, seeds=1),
    },
)
