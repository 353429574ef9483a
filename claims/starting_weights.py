"""What weights should start from: three ways side by side, for language models, strings and translation.

The ways are by place (``model.initial_std`` of None, see ``lit_transformers/initialisation.py``), 0.02 everywhere, and
dim^-0.5 everywhere. What might decide is varied: depth, norm, scaled symbols and learning rate.
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
from lit_transformers.run import RunConfig, fit

__all__ = ["CASES", "SEEDS", "Case", "compared", "configs"]

SEEDS = 2
BY_PLACE = "by place"
SHORT = {"training.steps": 500, "training.schedule.warmup": 150}
"""Translation for comparison: enough for a difference between starting weights to show."""


class Case(NamedTuple):
    """A baseline with the metric that is looked at, and whether more of it is better."""

    config: RunConfig
    metric: str
    more_is_better: bool = False

    def way(self, std: float | None) -> RunConfig:
        """The same with other starting weights."""
        return self.config.override({"model.initial_std": std})


def _translation(**changes: Plain) -> Case:
    return Case(TRANSLATION.override(SHORT | changes), "val/nats")


STRINGS_OF_ONE_MODEL = UNIVERSAL_DEPTH.baseline
assert isinstance(STRINGS_OF_ONE_MODEL, RunConfig)
CASES = {
    "language model, post-norm": Case(TRANSFORMER_XL.override({"training.validate_every": None}), "val/bpb"),
    "language model, pre-norm": Case(CHARACTERS, "val/bpb"),
    "answers to strings": Case(STRINGS_OF_ONE_MODEL, "val/accuracy", True),
    "strings to strings": Case(STRINGS, "val/accuracy", True),
    "strings to strings, symbols scaled": Case(STRINGS.override({"model.tokens.scaled": True}), "val/accuracy", True),
    "translation": _translation(),
    "translation, 6 layers": _translation(**{"model.depth": 6}),
    "translation, pre-norm": _translation(**{"model.norm": "pre"}),
    "translation, symbols unscaled": _translation(**{"model.tokens.scaled": False}),
    "translation, learning rate 0.005": _translation(**{"training.optimizer.learning_rate": 5e-3}),
}


def ways(case: Case) -> dict[str, float | None]:
    """Standard deviations by the names of the ways."""
    dim = case.config.model.dim
    return {BY_PLACE: None, "0.02": 0.02, "dim^-0.5": dim**-0.5}


def configs() -> list[RunConfig]:
    """Of all runs but for their seeds."""
    return [case.way(std) for case in CASES.values() for std in ways(case).values()]


def compared(folder: Path) -> dict[str, Plain]:
    """Every case in every way over the seeds: scores, and a table of their means and standard deviations."""
    wanted = {
        (name, way, seed): case.way(std).override({"seed": seed, "data.seed": seed})
        for name, case in CASES.items()
        for way, std in ways(case).items()
        for seed in range(SEEDS)
    }
    places = [folder / "-".join(map(str, key)).replace(" ", "_") / "run" for key in wanted]
    metrics = [CASES[name].metric for name, _, _ in wanted]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        scores = dict(zip(wanted, pool.map(_score, wanted.values(), places, metrics), strict=True))
    found: dict[str, Plain] = {
        name: {
            "metric": case.metric,
            "scores": {way: [scores[name, way, seed] for seed in range(SEEDS)] for way in ways(case)},
        }
        for name, case in CASES.items()
    }
    return {"table": _table(found), "scores": found, "seeds": SEEDS}


def _score(config: RunConfig, place: Path, metric: str) -> float:
    """What a run scores, by one thread."""
    import torch

    torch.set_num_threads(1)
    record = fit(config, place)
    if record["outcome"] != "finished":
        return float("nan")
    return float(record["metrics"][metric])


def _table(found: dict[str, Plain]) -> str:
    names = [BY_PLACE, "0.02", "dim^-0.5"]
    rows = [f"| Model and task | Metric | {' | '.join(names)} |", "| --- | --- | ---: | ---: | ---: |"]
    for name, one in found.items():
        arrow = "higher" if CASES[name].more_is_better else "lower"
        cells = [f"{statistics.mean(s):.3f} ± {statistics.stdev(s):.3f}" for s in one["scores"].values()]
        rows.append(f"| {name} | {one['metric'].removeprefix('val/')}, {arrow} is better | {' | '.join(cells)} |")
    return "\n".join(rows)
