"""The layer of a pretrained encoder that a classifier reads (Sun et al. 2019, arXiv:1905.05583, section 5.3.2)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Published, PublishedValue, Source
from ablations.fine_tuning import FETCH, PROBE, RATE, REVIEWS, SEEDS, SENTIMENT_NATS, WHOLE_OF_PROBE, rates, scales

ERRORS = {1: 9.81, 2: 8.66, 3: 6.83, 4: 6.41, 5: 5.70}
"""The error rates of BERT's layers 2, 4, 6, 8 and 10 of 12, by the layer of 6 at the same relative depth."""

BASELINE = PROBE.override({"data.source.corpus": "imdb", "data.source.length": 128, "data.evaluation.examples": 4000})
"""The first 126 symbols of reviews. SST-2 has too few sentences to tell its neighbouring layers apart."""

ALL_REVIEWS = {
    **WHOLE_OF_PROBE,
    **REVIEWS,
    "data.evaluation.examples": None,
    "training.steps": 2400,
    "training.schedule.warmup": 240,
}
"""Three passes of 25,000 reviews, in which the network learns too."""

ABLATION = Ablation(
    question="Which layer of a pretrained encoder should a classifier read?",
    answer=["layer 5 in place of the last"],
    source=Source("Sun et al. 2019", arxiv="1905.05583", table="4"),
    baseline=BASELINE,
    factors={
        "layer": {"6": {}, **{str(layer): {"task.layers": layer} for layer in range(1, 6)}},
        "rate": rates(BASELINE),
    },
    design="one_factor",
    seeds=SEEDS,
    metric=SENTIMENT_NATS,
    contrasts=[
        Contrast(f"layer {layer} in place of the last", f"layer={layer}", "baseline") for layer in range(5, 0, -1)
    ],
    published=Published(
        protocol="BERT-base, fine-tuned on 25,000 reviews of IMDb with one of its twelve layers; here a linear probe "
        "of the frozen MiniLM of six layers, on the first 126 symbols of 2,000 reviews",
        metric="error rate on IMDb",
        goal="minimize",
        cells=[
            PublishedValue("baseline", 5.42, note="layer 12"),
            *(PublishedValue(f"layer={layer}", error, note=f"layer {2 * layer}") for layer, error in ERRORS.items()),
        ],
    ),
    scales=scales(ALL_REVIEWS, {RATE: 2e-5}),
    preparation=FETCH,
)
