"""The learning rate of fine-tuning, and forgetting (Sun et al. 2019, arXiv:1905.05583, section 5.3.3)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Margin, Published, Retention, Scale, Source
from ablations.baselines import without
from ablations.fine_tuning import FETCH, RECIPROCAL_RANK, RETRIEVAL, SEEDS, SENTIMENT_NATS, TUNED, WHOLE

RATES = {"2e-5": 2e-5, "5e-5": 5e-5, "4e-4": 4e-4}

ABLATION = Ablation(
    question="Which learning rate of fine-tuning learns sentiment, and how much retrieval does each rate forget?",
    answer=["a rate of 4e-4 in place of 1e-4"],
    source=Source("Sun et al. 2019", arxiv="1905.05583"),
    baseline=TUNED,
    factors={
        "rate": {"1e-4": {}, **{name: {"training.optimizer.learning_rate": rate} for name, rate in RATES.items()}}
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    contrasts=[Contrast(f"a rate of {name} in place of 1e-4", f"rate={name}", "baseline") for name in RATES],
    retention={
        "retrieval": Retention(
            run=RETRIEVAL,
            metric=RECIPROCAL_RANK,
            limit=Margin(0.5, "about half of the questions rank their paragraph at another place"),
        )
    },
    published=Published(
        protocol="BERT-base on 25,000 reviews of IMDb",
        metric="error rate on IMDb",
        goal="minimize",
        claims=["With a rate of 4e-4 the training does not converge; a rate of 2e-5 overcomes forgetting."],
    ),
    scales={
        "demo": Scale(),
        "gpu": Scale(overrides=without("training.optimizer.learning_rate", WHOLE)),
        "paper": Scale(
            overrides=without("training.optimizer.learning_rate", WHOLE)
            | {"data.source.corpus": "imdb", "data.source.length": 512},
            seeds=1,
        ),
    },
    preparation=FETCH,
)
