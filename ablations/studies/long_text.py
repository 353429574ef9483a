"""The part of a long text that a classifier reads (Sun et al. 2019, arXiv:1905.05583, section 5.3.1)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Margin, Metric, Published, PublishedValue, Source
from ablations.fine_tuning import FETCH, PROBE, SEEDS, WHOLE_OF_PROBE, rates, scales

PIECES = 4

BASELINE = PROBE.override(
    {
        "data.source.corpus": "imdb",
        "data.source.length": 96,
        "data.source.shortest": 200,
        "data.source.examples": 1000,
        "data.evaluation.examples": 500,
    }
)

ABLATION = Ablation(
    question="Which part of a long review should a classifier read?",
    answer=["the tail in place of the head", "head and tail in place of the head"],
    source=Source("Sun et al. 2019", arxiv="1905.05583", table="2"),
    baseline=BASELINE,
    factors={
        "part": {
            "head": {},
            "tail": {"data.source.keep": "tail"},
            "head_tail": {"data.source.keep": "head_tail"},
            "pieces_mean": {"data.source.pieces": PIECES},
            "pieces_max": {"data.source.pieces": PIECES, "task.piece_pooling": "max"},
            "pieces_attention": {"data.source.pieces": PIECES, "task.piece_pooling": "attention"},
        },
        "rate": rates(BASELINE),
    },
    design="one_factor",
    seeds=SEEDS,
    metric=Metric(
        "val/nats",
        goal="minimize",
        label="nats per review",
        margin=Margin(0.01, "a seventieth of the loss of guessing one of two classes"),
    ),
    contrasts=[
        Contrast("the tail in place of the head", "part=tail", "baseline"),
        Contrast("head and tail in place of the head", "part=head_tail", "baseline"),
        Contrast("the mean of four pieces in place of the head", "part=pieces_mean", "baseline"),
        Contrast("the max of four pieces in place of the mean", "part=pieces_max", "part=pieces_mean"),
        Contrast("attention over four pieces in place of the mean", "part=pieces_attention", "part=pieces_mean"),
    ],
    published=Published(
        protocol="BERT-base, fine-tuned on 25,000 reviews of IMDb in rows of 510 symbols; here the frozen MiniLM, and "
        "rows of 94 symbols of reviews with at least 200 words",
        metric="error rate on IMDb",
        goal="minimize",
        cells=[
            PublishedValue("baseline", 5.63),
            PublishedValue("part=tail", 5.44),
            PublishedValue("part=head_tail", 5.42, note="128 from the beginning, 382 from the end"),
            PublishedValue("part=pieces_mean", 5.89),
            PublishedValue("part=pieces_max", 5.71),
            PublishedValue("part=pieces_attention", 5.49),
        ],
    ),
    scales=scales(
        dict(WHOLE_OF_PROBE) | {"data.evaluation.examples": None},
        {"data.source.length": 512, "data.source.shortest": 1},
    ),
    preparation=FETCH,
)
