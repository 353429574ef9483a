"""Feed-forwards computed in pieces along time (Kitaev et al. 2020, arXiv:2001.04451, section 3)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Metric, Published, Source
from ablations.baselines import CHARACTER_SCALES, CHARACTERS

ABLATION = Ablation(
    question="How much memory does a feed-forward computed in pieces save, and does it change the result?",
    source=Source("Kitaev et al. 2020", arxiv="2001.04451", table="1"),
    baseline=CHARACTERS.override({"model.feedforward.width": 2048, "training.steps": 100}),
    factors={
        "chunks": {"1": {}} | {str(chunks): {"model.feedforward.chunks": chunks} for chunks in (4, 16)},
    },
    design="one_factor",
    seeds=3,
    metric=Metric("measured/peak_memory_bytes", goal="minimize", label="peak memory, bytes", compare="ratio"),
    match=Match("tokens"),
    published=Published(
        protocol="complexity per layer: with c chunks the feed-forward holds a c-th of its hidden layer",
        metric="peak memory",
        goal="minimize",
        claims=["Chunking changes memory alone; test/bpb of the arms' records is the same to rounding."],
    ),
    scales=CHARACTER_SCALES,
)
