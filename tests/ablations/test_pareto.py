"""Tuning for quality and cost: the front of every arm is trained over the study's seeds and reported."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from rich.console import Console
from standin.tuned import RunConfig, fit

from ablations.options import request_of
from ablations.pareto import train_front, with_objectives
from ablations.plan import make_plan
from ablations.training import LaunchSettings
from ablations.tuning import PreparedTuning, prepare
from lit_transformers.config import ConfigError
from sweeps.tuning.tune import SPLIT, FrontPoint, TuningResult

STUDY = """
from ablations.ablation import Ablation, Metric
from standin.tuned import RunConfig

ABLATION = Ablation(
    question="Does recurrence help?",
    baseline=RunConfig(),
    factors={"recurrence": {"on": {}, "off": {"model.mixer.memory": 0}}},
    seeds=2,
    metric=Metric("val/bpb", goal="minimize"),
)
"""
RATE, STEPS = "training.optimizer.learning_rate", "training.steps"


@pytest.fixture
def tuning(tmp_path: Path) -> PreparedTuning:
    (tmp_path / "recurrence.py").write_text(STUDY)
    prepared = prepare(str(tmp_path / "recurrence.py"), request_of("demo", None, None, None), tmp_path / "runs")
    return with_objectives(prepared, "val/bpb, cost/train_flops")


def test_objectives_are_the_metric_and_costs_of_its_runs(tuning: PreparedTuning) -> None:
    assert tuning.goal.costs == ("train_flops",)
    for text, reason in (
        ("val/nats,cost/tokens", "the first one is the study's metric, val/bpb, not 'val/nats'"),
        ("val/bpb", "a front needs a cost next to the metric; add cost/"),
        ("val/bpb,cost/flops", "no cost of its runs is called 'cost/flops'; did you mean cost/"),
    ):
        with pytest.raises(ConfigError, match=f"--objectives: {reason}"):
            with_objectives(tuning, text)


def test_all_of_a_front_is_trained_over_the_seeds_and_reported(
    tuning: PreparedTuning, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs that are there are read. The cheaper config of the second arm is beaten by one of the first."""
    fronts = {"on": [(1e-3, 30), (3e-3, 60)], "off": [(1e-4, 30)]}
    results = []
    for arm, planned in zip(tuning.arms, tuning.planned.plan.arms, strict=True):
        points = fronts[planned.name.removeprefix("recurrence=")]
        front = [FrontPoint({RATE: rate, STEPS: steps}, 1.0, (600.0 * steps,)) for rate, steps in points]
        results.append(TuningResult(arm.name, front[0].values, 1.0, "key", 4, 0, 0, 2400, tuple(front)))
        for point in front:
            tuned = {arm.name: {**point.values, SPLIT: "test"}}
            plan = make_plan("recurrence", tuning.ablation, tuning.request, tuned, tmp_path / "runs")
            [planned_arm] = [one for one in plan.plan.arms if one.name == arm.name]
            for run in planned_arm.runs:
                fit(RunConfig.from_dict(plan.configs[run.key]), tmp_path / "runs" / run.key)
    rows = train_front(tuning, results, tmp_path / "runs", LaunchSettings(workers=1), Console(width=100))
    assert len(rows) == 6 and all(row.value is not None for row in rows)
    [path] = (tmp_path / "runs").glob("studies/recurrence_pareto/front.csv")
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    measured = [(row["arm"], row["seeds"], float(row["cost/train_flops"]), row["on the front of all"]) for row in table]
    assert sorted(measured) == [
        ("recurrence=off", "2", 18_000.0, "False"),
        ("recurrence=on", "2", 18_000.0, "True"),
        ("recurrence=on", "2", 36_000.0, "True"),
    ]
    assert float(table[-1]["test/bpb"]) < float(table[0]["test/bpb"]) and float(table[0]["standard deviation"]) > 0
    assert str(path) in capsys.readouterr().out.replace("\n", "")
    with pytest.raises(ConfigError, match="no trial of arm 'recurrence=on' has finished"):
        train_front(tuning, [results[0]._replace(front=())], tmp_path / "runs", LaunchSettings(), Console())
