"""Rounds of hashing in training and in evaluation (Kitaev et al. 2020, arXiv:2001.04451, table 2)."""

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
from ablations.baselines import TRANSFORMER_XL
from datamodules import DuplicationConfig, GeneratedDataConfig, StringEvaluationConfig
from lit_transformers.encodings.positions import LearnedConfig
from lit_transformers.mixers import LSHConfig
from lit_transformers.models import LanguageModelConfig
from lit_transformers.runs import RunConfig
from lit_transformers.tasks import StringsConfig

PUBLISHED = {
    "full": (1.0, 0.948, 0.925, 0.769, 0.525),
    "lsh4": (0.008, 1.0, 0.999, 0.994, 0.919),
    "lsh2": (0.008, 1.0, 0.999, 0.981, 0.868),
    "lsh1": (0.008, 0.999, 0.996, 0.948, 0.779),
}
"""Published accuracies. Rows: as trained; columns: evaluated with full attention, then with 8, 4, 2 and 1 rounds."""
MEASURED = {"full": None, "lsh8": 8, "lsh4": 4, "lsh2": 2, "lsh1": 1}


def measured(rounds: int | None) -> dict[str, object]:
    """Returns overrides that evaluate with this number of rounds, however many in training; None for full attention."""
    return {"task.evaluation": {"mixer.rounds": rounds}}


ABLATION = Ablation(
    question="How many rounds of hashing does a model need, in training and when it is measured?",
    answer=["8 rounds against 1, trained full", "trained lsh1 against full, 1 round"],
    source=Source("Kitaev et al. 2020", arxiv="2001.04451", table="2"),
    baseline=RunConfig(
        model=LanguageModelConfig(
            dim=64,
            heads=4,
            depth=1,
            norm="pre",
            positions=LearnedConfig(),
            mixer=LSHConfig(rounds=None, chunk_length=8),
        ),
        task=StringsConfig(evaluation={"mixer.rounds": None}),
        data=GeneratedDataConfig(
            generator=DuplicationConfig(alphabet=31),
            max_length=63,
            batch_size=32,
            evaluation=StringEvaluationConfig(split="test"),
        ),
        training=TRANSFORMER_XL.training.override({"steps": 900, "validate_every": None}),
    ),
    factors={
        "trained": {"full": {}} | {f"lsh{rounds}": {"model.mixer.rounds": rounds} for rounds in (4, 2, 1)},
        "measured": {"full": {}} | {name: measured(rounds) for name, rounds in MEASURED.items() if rounds},
    },
    design="product",
    seeds=5,
    metric=Metric("test/accuracy", goal="maximize", label="symbols of the second word"),
    match=Match("tokens"),
    contrasts=[
        Contrast(
            f"8 rounds against 1, trained {name}", f"trained={name} measured=lsh8", f"trained={name} measured=lsh1"
        )
        for name in PUBLISHED
    ]
    + [
        Contrast(f"trained {name} against full, 1 round", f"trained={name} measured=lsh1", "trained=full measured=lsh1")
        for name in PUBLISHED
        if name != "full"
    ],
    published=Published(
        protocol="0w0w with w of 511 symbols out of 127, one layer, dim 256, 4 heads, 150K steps",
        metric="symbol accuracy",
        goal="maximize",
        cells=[
            PublishedValue(f"trained={trained} measured={name}", value)
            for trained, values in PUBLISHED.items()
            for name, value in zip(MEASURED, values, strict=True)
        ],
        claims=["What is trained with hashing fails with full attention; more rounds than in training help."],
    ),
    scales={
        "demo": Scale(
            overrides={"data.max_length": 31, "training.steps": 1400, "training.optimizer.learning_rate": 3e-3},
            seeds=Looks(4, 8),
            margin=Margin(0.02, "a quarter of the least that eight rounds gain over one in the source"),
        ),
        "gpu": Scale(
            overrides={
                "model.dim": 256,
                "model.mixer.chunk_length": 32,
                "data.max_length": 255,
                "data.generator.alphabet": 127,
                "data.batch_size": 64,
                "training.steps": 20_000,
                "training.optimizer.learning_rate": 1e-3,
                "training.schedule.warmup": 500,
                "training.device": "cuda",
            }
        ),
        "paper": Scale(
            overrides={
                "model.dim": 256,
                "model.mixer.chunk_length": 64,
                "data.max_length": 511,
                "data.generator.alphabet": 127,
                "data.batch_size": 64,
                "training.steps": 150_000,
                "training.optimizer.learning_rate": 1e-3,
                "training.schedule.warmup": 1000,
                "training.device": "cuda",
            },
            seeds=1,
        ),
    },
)
