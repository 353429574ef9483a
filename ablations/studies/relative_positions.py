"""All encodings of positions in one language model (arXiv:1901.02860, table 7, and arXiv:1803.02155)."""

from __future__ import annotations

from ablations.ablation import Ablation, Looks, Margin, Match, Metric, Published, PublishedValue, Scale, Source
from ablations.baselines import ENWIK8, GPU, LAGS, POSITIONS, TEXT, TEXT_MARGIN, TRANSFORMER_XL, positions
from lit_transformers.encodings import ShawConfig

SELDOM = {"positions=shaw_keys_only": "left to gpu", "positions=learned_per_layer": "left to gpu"}

PILOT = "the first plan (seeds 0 to 7) left comparisons open that more seeds would decide"

ABLATION = Ablation(
    question="Which encoding of positions serves a recurrent language model best?",
    source=Source("Dai et al. 2019; Shaw et al. 2018", arxiv="1901.02860", table="7"),
    baseline=TRANSFORMER_XL,
    factors={
        "positions": positions("xl")
        | {"shaw_keys_only": {"model.mixer.encoding": ShawConfig(distance=64, values=False)}}
        | {kind: overrides for kind, overrides in POSITIONS.items() if kind != "xl"},
    },
    design="one_factor",
    seeds=3,
    metric=Metric("test/bpb", goal="minimize", label="bits per byte"),
    match=Match("tokens"),
    published=Published(
        protocol="One Billion Word, words, 20 layers, about 300M parameters",
        metric="perplexity",
        cells=[
            PublishedValue("baseline", 25.2, note="the encoding of Transformer-XL"),
            PublishedValue("positions=shaw", 25.7, note="the encoding of Shaw et al."),
        ],
        claims=[
            "Shaw et al. (arXiv:1803.02155, table 3, translation): keys and values 25.8 BLEU, keys alone 25.8, "
            "values alone 25.3, neither 12.5.",
        ],
        remarks={
            "positions=shaw": "The scale: the source's gap is two percent of perplexity. Of lags both encodings know "
            "all that can be known, so nothing is left that one could be better at; text, at the scale hour, can tell.",
        },
    ),
    scales={
        "demo": Scale(
            overrides=LAGS,
            seeds=Looks(4, 8, 16, first_seed=8, pilot=PILOT),
            leave_out=SELDOM,
            margin=Margin(0.03, "less than a tenth of the gain from the lag beyond a segment"),
        ),
        "hour": Scale(overrides=TEXT, seeds=Looks(4, 8), leave_out=SELDOM, margin=TEXT_MARGIN),
        "gpu": Scale(overrides=GPU),
        "paper": Scale(overrides=ENWIK8, seeds=1),
    },
)
