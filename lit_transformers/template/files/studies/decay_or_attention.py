"""Whether a decaying sum counts symbols as well as attention does."""

from __future__ import annotations

from my_parts import DecayConfig, MajorityConfig

from ablations.ablation import Ablation, Match, Metric
from datamodules import LabelledDataConfig, LabelledEvaluationConfig
from lit_transformers.models import LanguageModelConfig
from lit_transformers.runs import RunConfig
from lit_transformers.tasks import ClassificationConfig
from lit_transformers.training.config import AdamWConfig, TrainingConfig

ABLATION = Ablation(
    question="Does a decaying sum tell the more frequent of two symbols as well as attention does?",
    baseline=RunConfig(
        model=LanguageModelConfig(dim=32, heads=4, depth=2),
        task=ClassificationConfig(pooling="last"),
        data=LabelledDataConfig(
            source=MajorityConfig(), evaluation=LabelledEvaluationConfig(examples=512, split="test")
        ),
        training=TrainingConfig(
            steps=150, optimizer=AdamWConfig(learning_rate=3e-3), validate_every=None, device="cpu"
        ),
    ),
    factors={
        "mixer": {
            "attention": {},
            "decay4": {"model.mixer": DecayConfig(horizon=4)},
            "decay64": {"model.mixer": DecayConfig(horizon=64)},
        },
    },
    design="one_factor",
    seeds=3,
    metric=Metric("test/accuracy", goal="maximize", label="accuracy"),
    match=Match("tokens"),
)
