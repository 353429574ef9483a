"""Encoders with decoders on strings longer than those of training (Dehghani et al. 2019, arXiv:1807.03819, table 4)."""

from __future__ import annotations

from ablations.ablation import Ablation, Cell, Contrast, Metric, Published, Source
from ablations.pairs import STRINGS, STRINGS_SCALES
from datamodules import AdditionConfig, ReverseConfig
from lit_transformers.mixers import BiLSTMConfig, LSTMConfig
from lit_transformers.stacks import HaltingConfig, SequentialConfig

KINDS = ("copy", "reverse", "addition")
PUBLISHED = {
    "lstm": {"copy": 0.45, "reverse": 0.66, "addition": 0.08},
    "transformer": {"copy": 0.53, "reverse": 0.13, "addition": 0.07},
    "universal": {"copy": 0.91, "reverse": 0.96, "addition": 0.34},
}

ABLATION = Ablation(
    question="Does a Universal Transformer carry copying, reversing and adding to longer strings than a plain one?",
    source=Source("Dehghani et al. 2019", arxiv="1807.03819", table="4"),
    baseline=STRINGS,
    factors={
        "strings": {
            "copy": {},
            "reverse": {"data.source.generator": ReverseConfig()},
            "addition": {"data.source.generator": AdditionConfig()},
        },
        "model": {
            "universal": {},
            "universal_halting": {"model.stack.halting": HaltingConfig()},
            "transformer": {"model.stack": SequentialConfig()},
            "lstm": {
                "model.stack": SequentialConfig(),
                "model.mixer": BiLSTMConfig(),
                "model.decoder_mixer": LSTMConfig(),
                "model.positions": None,
            },
        },
    },
    design="product",
    seeds=3,
    metric=Metric("val/accuracy", goal="maximize", label="symbols of the answer"),
    contrasts=[
        Contrast(
            f"universal against {model}, {kind}", f"strings={kind} model=universal", f"strings={kind} model={model}"
        )
        for kind in KINDS
        for model in ("transformer", "lstm", "universal_halting")
    ],
    published=Published(
        protocol="trained on strings of 40 symbols, tested on 400; the answer's symbols one by one",
        metric="symbol accuracy",
        cells=[
            Cell(f"strings={kind} model={model}", value)
            for model, values in PUBLISHED.items()
            for kind, value in values.items()
        ],
        claims=["Whole strings: universal 0.35, 0.46 and 0.02; Transformer 0.03, 0.06 and 0; LSTM 0.09, 0.11 and 0."],
    ),
    scales=STRINGS_SCALES,
)
