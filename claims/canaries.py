"""Canaries: a short fixed run of every kind of task, and the interval in which its score has stayed.

A change after which a task no longer learns moves its score out of the interval, and ``tests/test_canaries.py`` fails.
The intervals are prediction intervals for one more run: they are measured over several seeds, because another processor
rounds differently, which has the same effect as another seed.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.stats import t as student

from ablations.baselines import MASKED, SUMS, TRANSFORMER_XL
from ablations.denoising import DENOISING
from ablations.pairs import TRANSLATION
from ablations.studies.universal_depth import ABLATION as UNIVERSAL_DEPTH
from ablations.studies.xlnet_components import XLNET
from datamodules import (
    LabelledDataConfig,
    LabelledEvaluationConfig,
    MaskSpansConfig,
    NeedleConfig,
    SpanCorruptionConfig,
)
from lit_transformers.config import Plain
from lit_transformers.records.measurement import SPLIT
from lit_transformers.runs import RunConfig, fit
from lit_transformers.tasks import BiLMConfig, ClassificationConfig, ContrastiveConfig, ReplacedTokensConfig
from lit_transformers.tasks.replaced_tokens import SymbolGeneratorConfig

__all__ = ["CANARIES", "SEEDS", "Canary", "intervals", "score"]

SEEDS = 5
LEVEL = 0.01
"""With unchanged code, a canary's score falls outside of its interval on one machine in a hundred."""


@dataclass(frozen=True)
class Canary:
    """A run that takes about ten seconds of one core, and the metric of its record that is its score."""

    config: RunConfig
    metric: str


STRINGS = UNIVERSAL_DEPTH.baseline
assert isinstance(STRINGS, RunConfig)
CANARIES = {
    "language model": Canary(
        TRANSFORMER_XL.override(
            {"training.steps": 250, "training.validate_every": None, "data.evaluation.bytes": 32_768}
        ),
        "val/bpb",
    ),
    "answers to strings": Canary(
        STRINGS.override(
            {"model.depth": 2, "data.max_length": 6, "data.evaluation.lengths": (), "training.steps": 450}
        ),
        "val/accuracy",
    ),
    "classification": Canary(
        SUMS.override(
            {
                "task": ClassificationConfig(pooling="mean"),
                "data": LabelledDataConfig(
                    source=NeedleConfig(length=32, distance=8), evaluation=LabelledEvaluationConfig(examples=256)
                ),
                "training.steps": 500,
            }
        ),
        "val/nats",
    ),
    "regression": Canary(
        SUMS.override({"data.source.length": 63, "data.evaluation.examples": 256, "training.steps": 200}), "val/mse"
    ),
    "translation": Canary(
        TRANSLATION.override(
            {
                "task.metrics": (),
                "data.tokens_per_batch": 512,
                "training.steps": 250,
                "training.schedule.warmup": 150,
            }
        ),
        "val/nats",
    ),
    "masked symbols": Canary(MASKED.override({"training.steps": 200, "data.evaluation.examples": 256}), "val/nats"),
    "replaced symbols": Canary(
        MASKED.override(
            {
                "task": ReplacedTokensConfig(generator=SymbolGeneratorConfig(draws="uniform")),
                "training.steps": 300,
                "data.evaluation.examples": 256,
            }
        ),
        "val/discriminator_nats",
    ),
    "symbols in random orders": Canary(
        XLNET.override(
            {
                "task.directions": "forward",
                "data.batch_size": 32,
                "training.steps": 240,
                "data.evaluation.examples": 1024,
            }
        ),
        "val/nats",
    ),
    "symbols from one side": Canary(
        MASKED.override(
            {"model.causal": True, "task": BiLMConfig(), "training.steps": 150, "data.evaluation.examples": 256}
        ),
        "val/forward_nats",
    ),
    "contrasted n-grams": Canary(
        MASKED.override(
            {
                "task": ContrastiveConfig(),
                "data.noise": MaskSpansConfig(unchanged=0.0, replaced=0.0),
                "data.evaluation.noise": None,
                "training.steps": 350,
                "data.evaluation.examples": 256,
            }
        ),
        "val/nats",
    ),
    "corrupted spans": Canary(
        DENOISING.override({"data.noise": SpanCorruptionConfig(), "training.steps": 400}), "val/nats"
    ),
}
"""Canaries by kind of task. Their corpora are those of this Python and of installed packages, so that other versions
give other scores."""


def score(canary: Canary, seed: int, directory: Path) -> tuple[float, str]:
    """Trains the canary with one thread; returns its score and its data's fingerprint.

    Raises RuntimeError where it does not finish.
    """
    torch.set_num_threads(1)
    record = fit(canary.config.override({"seed": seed, "data.seed": seed, SPLIT: "validation"}), directory)
    if record["outcome"] != "finished":
        raise RuntimeError(f"{directory.name} {record['outcome']}: {record['reason']}")
    return float(record["metrics"][canary.metric]), str(record["data"]["fingerprint"])


def intervals(folder: Path) -> dict[str, Plain]:
    """Runs every canary over the seeds; returns its scores, their mean and the ends of the interval for one more run.

    The interval is Student's prediction interval: the mean plus and minus t(seeds - 1) s sqrt(1 + 1/seeds).
    """
    results: dict[str, Plain] = {}
    for name, canary in CANARIES.items():
        runs = [score(canary, seed, folder / name.replace(" ", "_") / f"{seed}" / "run") for seed in range(SEEDS)]
        scores = [value for value, _ in runs]
        half_width = float(student.ppf(1 - LEVEL / 2, SEEDS - 1)) * statistics.stdev(scores) * math.sqrt(1 + 1 / SEEDS)
        mean = statistics.mean(scores)
        results[name] = {
            "metric": canary.metric,
            "data": runs[0][1],
            "scores": scores,
            "mean": mean,
            "low": mean - half_width,
            "high": mean + half_width,
        }
    return {"table": _table(results), "intervals": results}


def _table(results: dict[str, Plain]) -> str:
    """Returns the intervals as a table in Markdown."""
    rows = [
        f"| {name} | {result['metric'].removeprefix('val/')} | {result['mean']:.3f} | "
        f"{result['low']:.3f} to {result['high']:.3f} |"
        for name, result in results.items()
    ]
    return "\n".join(["| Task | Score | Mean | Interval of one more run |", "| --- | --- | ---: | --- |", *rows])
