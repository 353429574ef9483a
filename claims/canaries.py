"""Canaries: a short fixed run of every kind of task, and the interval its score has stayed in.

A change that costs a task its learning moves a score out of its interval, and ``tests/test_canaries.py`` fails. The
intervals hold what one more run would score: they are measured over several seeds, because another processor rounds
differently and so is like another seed.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import t as student

from ablations.baselines import SUMS, TRANSFORMER_XL
from ablations.pairs import TRANSLATION
from ablations.studies.universal_depth import ABLATION as UNIVERSAL_DEPTH
from datamodules import LabelledDataConfig, LabelledEvaluationConfig, NeedleConfig
from lit_transformers.config import Plain
from lit_transformers.run import RunConfig, fit
from lit_transformers.tasks import ClassificationConfig

__all__ = ["CANARIES", "SEEDS", "Canary", "intervals", "score"]

SEEDS = 5
LEVEL = 0.01
"""A canary of unchanged code falls outside of its interval once in a hundred machines."""


@dataclass(frozen=True)
class Canary:
    """A run of about half a minute of one core, and the metric of its record that is looked at."""

    config: RunConfig
    metric: str


STRINGS = UNIVERSAL_DEPTH.baseline
assert isinstance(STRINGS, RunConfig)
CANARIES = {
    "language model": Canary(
        TRANSFORMER_XL.override({"training.steps": 700, "training.validate_every": None}), "val/bpb"
    ),
    "answers to strings": Canary(STRINGS.override({"training.steps": 700}), "val/accuracy"),
    "classification": Canary(
        SUMS.override(
            {
                "task": ClassificationConfig(pooling="mean"),
                "data": LabelledDataConfig(
                    source=NeedleConfig(length=64, distance=16), evaluation=LabelledEvaluationConfig(examples=512)
                ),
            }
        ),
        "val/nats",
    ),
    "regression": Canary(SUMS, "val/mse"),
    "translation": Canary(TRANSLATION.override({"training.steps": 500}), "val/nats"),
}
"""By kind of task. Corpora are those of this Python and of installed packages: other versions have other scores."""


def score(canary: Canary, seed: int, directory: Path) -> tuple[float, str]:
    """Trains the canary, and returns its score and the fingerprint of its data."""
    record = fit(canary.config.override({"seed": seed, "data.seed": seed}), directory)
    if record["outcome"] != "finished":
        raise RuntimeError(f"{directory.name} {record['outcome']}: {record['reason']}")
    return float(record["metrics"][canary.metric]), str(record["data"]["fingerprint"])


def intervals(folder: Path) -> dict[str, Plain]:
    """For every canary its scores by seed, their mean, and the ends of the interval for one more run.

    The interval is Student's prediction interval: mean and t(seeds - 1) s sqrt(1 + 1/seeds) to both sides.
    """
    found: dict[str, Plain] = {}
    for name, canary in CANARIES.items():
        runs = [score(canary, seed, folder / name.replace(" ", "_") / f"{seed}" / "run") for seed in range(SEEDS)]
        scores = [value for value, _ in runs]
        reach = float(student.ppf(1 - LEVEL / 2, SEEDS - 1)) * statistics.stdev(scores) * math.sqrt(1 + 1 / SEEDS)
        mean = statistics.mean(scores)
        found[name] = {
            "metric": canary.metric,
            "data": runs[0][1],
            "scores": scores,
            "mean": mean,
            "low": mean - reach,
            "high": mean + reach,
        }
    return {"table": _table(found), "intervals": found}


def _table(found: dict[str, Plain]) -> str:
    rows = [
        f"| {name} | {one['metric'].removeprefix('val/')} | {one['mean']:.3f} | {one['low']:.3f} to {one['high']:.3f} |"
        for name, one in found.items()
    ]
    return "\n".join(["| Task | Score | Mean | Interval of one more run |", "| --- | --- | ---: | --- |", *rows])
