"""Memory that is longer in evaluation than in training (Dai et al. 2019, arXiv:1901.02860, table 6 and section 4.2)."""

from __future__ import annotations

from ablations.ablation import (
    Ablation,
    Contrast,
    Looks,
    Margin,
    Match,
    Metric,
    Published,
    PublishedValue,
    Scale,
    Source,
)
from ablations.baselines import GPU, LAGS, TEXT, TEXT_MARGIN, TRANSFORMER_XL, WIKITEXT_103, lags, positions

ENCODINGS = ("xl", "shaw", "learned_relative", "rotary", "sinusoidal")
MEMORIES = ("x2", "x4", "x8")


def evaluated(memory: int) -> dict[str, object]:
    """Returns overrides that evaluate with a memory of this many tokens, independent of training."""
    return {"task.evaluation": {"mixer.memory": memory}}


PILOT = (
    "the first plan (seeds 0 to 7) decided eight of twelve comparisons, the second (seeds 8 to 23) eleven; "
    "each plan has an error of 5 %"
)

ABLATION = Ablation(
    question="Which positions gain when memory grows after training?",
    answer=[f"memory x2 against x1, {kind}" for kind in ENCODINGS],
    source=Source("Dai et al. 2019", arxiv="1901.02860", table="6"),
    baseline=TRANSFORMER_XL.override({"training.validate_every": None}),
    factors={
        "positions": positions(*ENCODINGS),
        "memory": {"x1": {}, "x2": evaluated(64), "x4": evaluated(128), "x8": evaluated(256)},
    },
    design="product",
    seeds=3,
    metric=Metric("test/bpb", goal="minimize", label="bits per byte"),
    match=Match("tokens"),
    effects=[],
    contrasts=[
        Contrast(
            f"memory {memory} against x1, {kind}",
            f"positions={kind} memory={memory}",
            f"positions={kind} memory=x1",
        )
        for kind in ENCODINGS
        for memory in MEMORIES
    ],
    published=Published(
        protocol="WikiText-103, words, 128M parameters, trained on segments and memory of 128, measured with more",
        metric="perplexity",
        cells=[
            PublishedValue("positions=xl memory=x1", 27.02, note="as trained"),
            PublishedValue("positions=xl memory=x4", 26.77, note="best, at attention length 500"),
            PublishedValue("positions=shaw memory=x1", 27.94, note="best, at attention length 256: more does not help"),
        ],
        claims=["Only Transformer-XL's encoding improves with an attention longer than in training."],
        remarks={
            "memory x4 against x1, xl": (
                "The scale: the source measures with about twice the attention of training, 500 for 256, and here four "
                "times the memory are three times the distances that training has shown. With twice the memory nearly "
                "all seeds gain here, too; with four times a few of them keep that gain, and the others give weight to "
                "distances that they have never seen, each to another one. Shaw's clipped distances have no such "
                "places, and gain."
            ),
        },
    ),
    scales={
        "demo": Scale(
            overrides=dict(LAGS) | {"model.depth": 1, "data.source": lags(8, 40)},
            seeds=Looks(8, 24, 48, first_seed=24, pilot=PILOT),
            leave_out={"positions=learned_relative": "left to gpu"},
            margin=Margin(0.07, "a quarter of the gain of half of the positions once memory reaches the second lag"),
        ),
        "hour": Scale(
            overrides=dict(TEXT) | {"model.mixer.memory": 32},
            seeds=Looks(4, 8),
            leave_out={"memory=x2": "between x1 and x4", "positions=learned_relative": "left to gpu"},
            margin=TEXT_MARGIN,
        ),
        "gpu": Scale(overrides=dict(GPU) | {"model.mixer.memory": 32, "training.validate_every": None}),
        "paper": Scale(
            overrides=dict(WIKITEXT_103) | {"model.mixer.memory": 32, "training.validate_every": None}, seeds=1
        ),
    },
)
