"""The layer of a pretrained encoder that a classifier reads (Sun et al. 2019, arXiv:1905.05583, section 5.3.2)."""

from __future__ import annotations

from ablations.ablation import Ablation, Published, PublishedValue, Source
from ablations.fine_tuning import FETCH, PROBE, RATE, REVIEWS, SENTIMENT_NATS, WHOLE_OF_PROBE, rates, scales

ERRORS = {1: 9.81, 2: 8.66, 3: 6.83, 4: 6.41, 5: 5.70}
"""The error rates of BERT's layers 2, 4, 6, 8 and 10 of 12, by the layer of 6 at the same relative depth."""

ABLATION = Ablation(
    question="Which layer of a pretrained encoder should a classifier read?",
    answer=["layer=5"],
    source=Source("Sun et al. 2019", arxiv="1905.05583", table="4"),
    baseline=PROBE,
    factors={
        "layer": {"6": {}, **{str(layer): {"task.layers": layer} for layer in range(1, 6)}},
        "rate": rates(PROBE),
    },
    design="one_factor",
    seeds=3,
    metric=SENTIMENT_NATS,
    published=Published(
        protocol="BERT-base, fine-tuned on 25,000 reviews of IMDb with one of its twelve layers; here a linear probe "
        "of the frozen MiniLM of six layers, on 2,000 sentences of SST-2",
        metric="error rate on IMDb",
        goal="minimize",
        cells=[
            PublishedValue("baseline", 5.42, note="layer 12"),
            *(PublishedValue(f"layer={layer}", error, note=f"layer {2 * layer}") for layer, error in ERRORS.items()),
        ],
    ),
    scales=scales(WHOLE_OF_PROBE, {**REVIEWS, RATE: 2e-5}),
    preparation=FETCH,
)
