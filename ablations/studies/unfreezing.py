"""Gradual unfreezing, layer by layer from the top (Howard and Ruder 2018, arXiv:1801.06146, section 3.3)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Published, Scale, Source
from ablations.fine_tuning import FETCH, OTHER_RATES, SEEDS, SENTIMENT_NATS, TUNED, WHOLE, rates
from lit_transformers.training.config import SlantedTriangularConfig
from lit_transformers.training.groups import ParameterGroupConfig, UnfreezingConfig

DECAYED = (ParameterGroupConfig(parameters=("network",), layer_decay=1 / 2.6),)
"""The learning rate of each layer is 1 / 2.6 of the rate of the layer above (section 3.2)."""

ABLATION = Ablation(
    question="Should the layers of a pretrained encoder be unfrozen one after another?",
    answer=["unfreezing in place of all at once"],
    source=Source("Howard and Ruder 2018", arxiv="1801.06146"),
    baseline=TUNED,
    factors={
        "layers": {
            "all_at_once": {},
            "unfrozen": {"training.unfreezing": UnfreezingConfig(every=8)},
            "slower_below": {"training.groups": DECAYED},
            "slanted": {"training.schedule": SlantedTriangularConfig()},
            "ulmfit": {
                "training.unfreezing": UnfreezingConfig(every=8),
                "training.groups": DECAYED,
                "training.schedule": SlantedTriangularConfig(),
            },
        },
        "rate": rates(TUNED),
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    contrasts=[
        Contrast("unfreezing in place of all at once", "layers=unfrozen", "baseline"),
        Contrast("slower layers below in place of one rate", "layers=slower_below", "baseline"),
        Contrast("slanted triangular rates in place of linear ones", "layers=slanted", "baseline"),
        Contrast("all three of ULMFiT in place of none", "layers=ulmfit", "baseline"),
    ],
    published=Published(
        protocol="an LSTM language model, fine-tuned on reviews of IMDb and other texts, one more layer in each epoch",
        metric="error rate on IMDb",
        goal="minimize",
        claims=[
            "The source fine-tunes with all three. Two cores cannot decide layer-wise decay: decays differ by at most "
            ".13 points (Sun et al. 2019, arXiv:1905.05583, table 5)."
        ],
    ),
    scales={
        "demo": Scale(),
        "gpu": Scale(
            overrides=WHOLE,
            leave_out={
                **OTHER_RATES,
                "layers=slanted": "the demo shows the same schedule",
                "layers=ulmfit": "the demo shows the same unfreezing",
            },
        ),
        "paper": Scale(
            leave_out=OTHER_RATES,
            overrides=dict(WHOLE) | {"data.source.corpus": "imdb", "data.source.length": 512},
            seeds=1,
        ),
    },
    preparation=FETCH,
)
