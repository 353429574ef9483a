"""Transformer-XL's own ablation (Dai et al. 2019, arXiv:1901.02860, table 6)."""

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
from ablations.baselines import GPU, LAGS, TEXT, TEXT_MARGIN, TRANSFORMER_XL, WIKITEXT_103, positions

FOUR_ARMS = {
    "positions=shaw": "left to the gpu scale, for the minutes that it takes",
    "loss=half positions=xl": "left to the gpu scale, for the minutes that it takes",
    "loss=half positions=sinusoidal": "left to the gpu scale, for the minutes that it takes",
}

ABLATION = Ablation(
    question="Does segment recurrence help a language model, and does it need relative positions?",
    answer=["recurrence on against off, xl, full loss", "xl against sinusoidal, recurrence on, full loss"],
    source=Source("Dai et al. 2019", arxiv="1901.02860", table="6"),
    baseline=TRANSFORMER_XL,
    factors={
        "recurrence": {"on": {}, "off": {"model.mixer.memory": 0}},
        "positions": positions("xl", "shaw", "sinusoidal"),
        "loss": {"full": {}, "half": {"task.loss": "half"}},
    },
    design="product",
    seeds=3,
    metric=Metric("test/bpb", goal="minimize", label="bits per byte"),
    match=Match("tokens"),
    contrasts=[
        Contrast(
            f"recurrence on against off, {kind}, {loss} loss",
            f"recurrence=on positions={kind} loss={loss}",
            f"recurrence=off positions={kind} loss={loss}",
        )
        for loss in ("full", "half")
        for kind in ("xl", "shaw", "sinusoidal")
    ]
    + [
        Contrast(
            f"xl against {kind}, recurrence {recurrence}, {loss} loss",
            f"recurrence={recurrence} positions=xl loss={loss}",
            f"recurrence={recurrence} positions={kind} loss={loss}",
        )
        for loss in ("full", "half")
        for recurrence in ("on", "off")
        for kind in ("shaw", "sinusoidal")
    ],
    published=Published(
        protocol="WikiText-103, words, 128M parameters, segments of 128; each model at its best attention length",
        metric="perplexity",
        cells=[
            PublishedValue(
                "recurrence=on positions=xl loss=full", 26.77, note="attention length 500; 27.02 as trained"
            ),
            PublishedValue("recurrence=on positions=shaw loss=full", 27.94, note="attention length 256"),
            PublishedValue(
                "recurrence=on positions=xl loss=half", 28.33, note="attention length 460; 28.69 as trained"
            ),
            PublishedValue(
                "recurrence=off positions=xl loss=full", 29.02, note="attention length 260; 29.59 as trained"
            ),
            PublishedValue("recurrence=off positions=xl loss=half", 30.10, note="attention length 120"),
            PublishedValue("recurrence=off positions=shaw loss=full", 29.75, note="attention length 120"),
            PublishedValue("recurrence=off positions=shaw loss=half", 30.50, note="attention length 120"),
            PublishedValue("recurrence=off positions=sinusoidal loss=half", 30.97, note="attention length 120"),
        ],
        claims=["Recurrence and relative positions each help, and absolute positions need the half loss."],
    ),
    scales={
        "demo": Scale(
            overrides=LAGS,
            seeds=4,
            leave_out=FOUR_ARMS,
            margin=Margin(0.1, "less than a quarter of the gain from the lag beyond a segment"),
        ),
        "hour": Scale(overrides=TEXT, seeds=Looks(4, 8), leave_out=FOUR_ARMS, margin=TEXT_MARGIN),
        "gpu": Scale(overrides=GPU),
        "paper": Scale(overrides=WIKITEXT_103, seeds=1),
    },
)
