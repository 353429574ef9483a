"""The variations of the Transformer's base model (Vaswani et al. 2017, arXiv:1706.03762, table 3).

The paper changes only the channels of queries and keys; here ``head_dim`` changes those of the values too.
"""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Published, PublishedValue, Source
from ablations.baselines import leaving
from ablations.pairs import BLEU, TRANSLATION, TRANSLATION_SCALES
from lit_transformers.encodings.positions import LearnedConfig

SAME, OTHER, LATER = (
    "the value of this scale's baseline",
    "too far from this scale's baseline",
    "left to the larger scales",
)
LEFT_OUT = {
    "demo": dict.fromkeys(("heads=4", "d_k=16", "depth=2", "dim=64", "width=256"), SAME)
    | dict.fromkeys(("heads=32", "dim=192", "dim=256", "dim=1024", "width=1024", "width=4096"), OTHER)
    | dict.fromkeys(("heads=8", "d_k=32", "depth=4", "depth=8", "dim=96", "width=512"), LATER)
    | dict.fromkeys(("dropout=0.2", "smoothing=0.2"), LATER),
    "gpu": dict.fromkeys(("heads=8", "d_k=16", "depth=4", "width=256"), SAME)
    | dict.fromkeys(("dim=32", "dim=96", "dim=1024", "width=4096"), OTHER),
    "paper": dict.fromkeys(("heads=8",), SAME)
    | dict.fromkeys(("d_k=4", "depth=1", "dim=32", "dim=64", "dim=96", "dim=192"), OTHER)
    | dict.fromkeys(("width=128", "width=256", "width=512"), OTHER),
}


def head_dim(channels: int) -> dict[str, int]:
    """Returns overrides that set the channels of a head in all three mixers."""
    return {f"model.{mixer}.head_dim": channels for mixer in ("mixer", "decoder_mixer", "cross_mixer")}


ABLATION = Ablation(
    question="Which of the Transformer's sizes and regularisers does translation depend on?",
    source=Source("Vaswani et al. 2017", arxiv="1706.03762", table="3"),
    baseline=TRANSLATION,
    factors={
        "heads": {"base": {}} | {str(heads): {"model.heads": heads} for heads in (1, 4, 8, 16, 32)},
        "d_k": {"dim/heads": {}} | {str(channels): head_dim(channels) for channels in (4, 16, 32)},
        "depth": {"base": {}} | {str(depth): {"model.depth": depth} for depth in (1, 2, 4, 8)},
        "dim": {"base": {}} | {str(dim): {"model.dim": dim} for dim in (32, 64, 96, 192, 256, 1024)},
        "width": {"base": {}}
        | {str(width): {"model.feedforward.width": width} for width in (128, 256, 512, 1024, 4096)},
        "dropout": {"0.1": {}, "0": {"model.dropout": 0.0}, "0.2": {"model.dropout": 0.2}},
        "smoothing": {"0.1": {}, "0": {"task.label_smoothing": 0.0}, "0.2": {"task.label_smoothing": 0.2}},
        "positions": {
            "sinusoidal": {},
            "learned": {"model.positions": LearnedConfig(restart="document", max_length=1024)},
        },
    },
    design="one_factor",
    seeds=3,
    metric=BLEU,
    match=Match("tokens"),
    published=Published(
        protocol="WMT14 English-German, newstest2013 (development), base model, averaged checkpoints, beam of 4",
        metric="BLEU",
        cells=[
            PublishedValue("baseline", 25.8),
            PublishedValue("heads=1", 24.9),
            PublishedValue("heads=4", 25.5),
            PublishedValue("heads=16", 25.8),
            PublishedValue("heads=32", 25.4),
            PublishedValue("d_k=16", 25.1),
            PublishedValue("d_k=32", 25.4),
            PublishedValue("depth=2", 23.7),
            PublishedValue("depth=4", 25.3),
            PublishedValue("depth=8", 25.5),
            PublishedValue("dim=256", 24.5),
            PublishedValue("dim=1024", 26.0),
            PublishedValue("width=1024", 25.4),
            PublishedValue("width=4096", 26.2),
            PublishedValue("dropout=0", 24.6),
            PublishedValue("dropout=0.2", 25.5),
            PublishedValue("smoothing=0", 25.3),
            PublishedValue("smoothing=0.2", 25.7),
            PublishedValue("positions=learned", 25.7),
        ],
    ),
    scales=leaving(TRANSLATION_SCALES, **LEFT_OUT),
)
