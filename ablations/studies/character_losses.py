"""The auxiliary losses of the character transformer (Al-Rfou et al. 2018, arXiv:1808.04444, table 4)."""

from __future__ import annotations

from ablations.ablation import Ablation, Match, Metric, Published, PublishedValue, Scale, Source
from ablations.baselines import ENWIK8, GPU, TRANSFORMER_XL
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.mixers import AttentionConfig

ABLATION = Ablation(
    question="Which of the three auxiliary losses does a deep character transformer need?",
    source=Source("Al-Rfou et al. 2018", arxiv="1808.04444", table="4"),
    baseline=TRANSFORMER_XL.override(
        {
            "model.depth": 6,
            "model.mixer": AttentionConfig(),
            "model.positions": LearnedConfig(per_layer=True),
            "task.intermediate": True,
            "task.future": [0.5],
            "data.evaluation.stride": 8,
            "data.evaluation.bytes": 65_536,
            "training.steps": 800,
            "training.optimizer.learning_rate": 1e-3,
        }
    ),
    factors={
        "positions": {"all": {}, "last": {"task.loss": "last"}},
        "intermediate_layers": {"on": {}, "off": {"task.intermediate": False}},
        "next_but_one": {"on": {}, "off": {"task.future": []}},
    },
    design="leave_one_out",
    seeds=3,
    metric=Metric("test/bpb", goal="minimize", label="bits per byte"),
    match=Match("tokens"),
    published=Published(
        protocol="text8 development set, 64 layers, segments of 512, slide by one",
        metric="bits per character",
        cells=[
            PublishedValue("all", 1.062),
            PublishedValue("without positions", 2.482, note="without multiple positions"),
            PublishedValue("without intermediate_layers", 1.158, note="without losses of intermediate layers"),
        ],
        claims=["Multiple positions matter most, then the losses of intermediate layers."],
    ),
    scales={
        "demo": Scale(),
        "gpu": Scale(
            overrides={path: value for path, value in GPU.items() if path != "model.mixer.memory"}
            | {"model.depth": 16, "data.evaluation.stride": 16}
        ),
        "paper": Scale(
            overrides={path: value for path, value in ENWIK8.items() if path != "model.mixer.memory"}
            | {"model.depth": 64, "data.evaluation.stride": 1},
            seeds=1,
        ),
    },
)
