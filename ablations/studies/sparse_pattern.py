"""Strided against fixed patterns, on text and on periodic data (Child et al. 2019, arXiv:1904.10509, table 2)."""

from __future__ import annotations

from ablations.ablation import Ablation, Contrast, Match, Published, PublishedValue, Scale, Source
from ablations.baselines import BITS_PER_BYTE, CHARACTERS, CHARACTERS_GPU, CHARACTERS_PAPER
from datamodules import PeriodicConfig
from lit_transformers.encodings import RotaryConfig
from lit_transformers.mixers import AttentionConfig, SparseConfig

DATA = ("text", "periodic")
IMAGES = PeriodicConfig(width=11, height=23, period=3, levels=4)
"""Each pixel repeats one that was input two strides of 16 before its prediction: 3 rows of 11 pixels, less one."""

ABLATION = Ablation(
    question="Is it the data that decides between a strided and a fixed pattern?",
    source=Source("Child et al. 2019", arxiv="1904.10509", table="2"),
    baseline=CHARACTERS.override({"model.positions": None, "model.mixer": AttentionConfig(encoding=RotaryConfig())}),
    factors={
        "data": {"text": {}, "periodic": {"data.source": IMAGES}},
        "pattern": {
            "dense": {},
            "strided": {"model.mixer": SparseConfig(block=16, encoding=RotaryConfig())},
            "fixed": {"model.mixer": SparseConfig(pattern="fixed", block=16, summary=2, encoding=RotaryConfig())},
        },
    },
    design="product",
    seeds=3,
    metric=BITS_PER_BYTE,
    match=Match("tokens"),
    contrasts=[
        Contrast(f"strided against fixed, {data}", f"data={data} pattern=strided", f"data={data} pattern=fixed")
        for data in DATA
    ]
    + [
        Contrast(f"{pattern} against dense, {data}", f"data={data} pattern={pattern}", f"data={data} pattern=dense")
        for data in DATA
        for pattern in ("strided", "fixed")
    ],
    published=Published(
        protocol="enwik8 (12,288 bytes of context) for text, CIFAR-10 for periodic data; bits per byte",
        metric="bits per byte",
        cells=[
            PublishedValue("data=text pattern=dense", 1.00),
            PublishedValue("data=text pattern=strided", 1.13),
            PublishedValue("data=text pattern=fixed", 0.99),
            PublishedValue("data=periodic pattern=dense", 2.82, note="CIFAR-10"),
            PublishedValue("data=periodic pattern=strided", 2.80, note="CIFAR-10"),
            PublishedValue("data=periodic pattern=fixed", 2.85, note="CIFAR-10"),
        ],
        claims=["Strided wins on images and fails on text, where fixed wins."],
    ),
    scales={
        "demo": Scale(),
        "gpu": Scale(overrides=CHARACTERS_GPU),
        "paper": Scale(overrides=CHARACTERS_PAPER, seeds=1),
    },
)
