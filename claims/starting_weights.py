"""Compares three ways to choose the starting weights, for language models, string tasks and translation.

The ways are by place (``model.initial_std`` of None, see ``lit_transformers/models/initialisation.py``), 0.02
everywhere, and dim^-0.5 everywhere. The factors that might decide between them are varied: depth, norm, scaled symbols
and learning rate.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from ablations.baselines import CHARACTERS, TRANSFORMER_XL
from ablations.pairs import STRINGS, TRANSLATION
from ablations.studies.universal_depth import ABLATION as UNIVERSAL_DEPTH
from lit_transformers.config import Plain
from lit_transformers.records.measurement import SPLIT
from lit_transformers.runs import RunConfig, fit

__all__ = ["CASES", "SEEDS", "StartingWeightsCase", "compared", "configs"]

SEEDS = 2
BY_PLACE = "by place"
SHORT = {"training.steps": 500, "training.schedule.warmup": 150}
"""Changes to the translation runs: enough training for a difference between starting weights to show."""


class StartingWeightsCase(NamedTuple):
    """A baseline with the metric that is compared, and whether higher values of it are better."""

    config: RunConfig
    metric: str
    more_is_better: bool = False

    def way(self, std: float | None) -> RunConfig:
        """Returns the config with ``std`` as the standard deviation of the starting weights; None for by place."""
        return self.config.override({"model.initial_std": std, SPLIT: "validation"})


def _translation(**changes: Plain) -> StartingWeightsCase:
    return StartingWeightsCase(TRANSLATION.override(SHORT | changes), "val/nats")


STRINGS_OF_ONE_MODEL = UNIVERSAL_DEPTH.baseline
assert isinstance(STRINGS_OF_ONE_MODEL, RunConfig)
CASES = {
    "language model, post-norm": StartingWeightsCase(
        TRANSFORMER_XL.override({"training.validate_every": None}), "val/bpb"
    ),
    "language model, pre-norm": StartingWeightsCase(CHARACTERS, "val/bpb"),
    "answers to strings": StartingWeightsCase(STRINGS_OF_ONE_MODEL, "val/accuracy", True),
    "strings to strings": StartingWeightsCase(STRINGS, "val/accuracy", True),
    "strings to strings, symbols scaled": StartingWeightsCase(
        STRINGS.override({"model.tokens.scaled": True}), "val/accuracy", True
    ),
    "translation": _translation(),
    "translation, 6 layers": _translation(**{"model.depth": 6}),
    "translation, pre-norm": _translation(**{"model.norm": "pre"}),
    "translation, symbols unscaled": _translation(**{"model.tokens.scaled": False}),
    "translation, learning rate 0.005": _translation(**{"training.optimizer.learning_rate": 5e-3}),
}


def ways(case: StartingWeightsCase) -> dict[str, float | None]:
    """Returns the standard deviation of the starting weights of each way, by the way's name."""
    dim = case.config.model.dim
    return {BY_PLACE: None, "0.02": 0.02, "dim^-0.5": dim**-0.5}


def configs() -> list[RunConfig]:
    """Returns the configs of all runs, before their seeds are set."""
    return [case.way(std) for case in CASES.values() for std in ways(case).values()]


def compared(folder: Path) -> dict[str, Plain]:
    """Trains every case in every way over the seeds; returns scores and a table of means and standard deviations."""
    runs = {
        (name, way, seed): case.way(std).override({"seed": seed, "data.seed": seed})
        for name, case in CASES.items()
        for way, std in ways(case).items()
        for seed in range(SEEDS)
    }
    directories = [folder / "-".join(map(str, key)).replace(" ", "_") / "run" for key in runs]
    metrics = [CASES[name].metric for name, _, _ in runs]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        scores = dict(zip(runs, pool.map(_score, runs.values(), directories, metrics), strict=True))
    results: dict[str, Plain] = {
        name: {
            "metric": case.metric,
            "scores": {way: [scores[name, way, seed] for seed in range(SEEDS)] for way in ways(case)},
        }
        for name, case in CASES.items()
    }
    return {"table": _table(results), "scores": results, "seeds": SEEDS}


def _score(config: RunConfig, directory: Path, metric: str) -> float:
    """Trains a run with one thread and returns its metric; NaN where the run does not finish."""
    import torch

    torch.set_num_threads(1)
    record = fit(config, directory)
    if record["outcome"] != "finished":
        return float("nan")
    return float(record["metrics"][metric])


def _table(results: dict[str, Plain]) -> str:
    """Returns the results as a table in Markdown."""
    names = [BY_PLACE, "0.02", "dim^-0.5"]
    rows = [f"| Model and task | Metric | {' | '.join(names)} |", "| --- | --- | ---: | ---: | ---: |"]
    for name, result in results.items():
        arrow = "higher" if CASES[name].more_is_better else "lower"
        cells = [f"{statistics.mean(s):.3f} ± {statistics.stdev(s):.3f}" for s in result["scores"].values()]
        rows.append(f"| {name} | {result['metric'].removeprefix('val/')}, {arrow} is better | {' | '.join(cells)} |")
    return "\n".join(rows)
