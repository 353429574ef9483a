"""Encoder-decoders on strings longer than those of training (Dehghani et al. 2019, arXiv:1807.03819, table 4)."""

from __future__ import annotations

from ablations.ablation import Ablation, Metric, Published, Source
from ablations.pairs import STRINGS, STRINGS_SCALES
from ablations.studies.universal_depth import CELLS, CONTRASTS
from datamodules import AdditionConfig, ReverseConfig
from lit_transformers.mixers import BiLSTMConfig, LSTMConfig
from lit_transformers.stacks import HaltingConfig, SequentialConfig

ABLATION = Ablation(
    question="Does a Universal Transformer carry copying, reversing and adding to longer strings than a plain one?",
    answer=[f"universal against transformer, {kind}" for kind in ("copy", "reverse", "addition")],
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
    metric=Metric("test/accuracy", goal="maximize", label="symbols of the answer"),
    contrasts=CONTRASTS,
    published=Published(
        protocol="trained on strings of 40 symbols, tested on 400; the answer's symbols one by one",
        metric="symbol accuracy",
        goal="maximize",
        cells=CELLS,
        claims=["Whole strings: universal 0.35, 0.46 and 0.02; Transformer 0.03, 0.06 and 0; LSTM 0.09, 0.11 and 0."],
    ),
    scales=STRINGS_SCALES,
)
