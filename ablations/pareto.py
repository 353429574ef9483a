"""Tuning for a metric and costs: the Pareto front of every arm, trained over the study's seeds and reported."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from ablations.plan import PlannedStudy, make_plan
from ablations.training import LaunchSettings, survey_to_train, train_left
from ablations.tuning import PreparedTuning
from lit_transformers.config import ConfigError, Plain, nearest
from lit_transformers.printing.amounts import assignments, count
from lit_transformers.printing.arm_names import BreakableName
from lit_transformers.records.files import replace_file
from lit_transformers.records.measurement import SPLIT
from lit_transformers.records.plan import plan_path
from sweeps.ledger.run_records import read_record
from sweeps.live import Row
from sweeps.status import plain_table
from sweeps.tuning.tune import REPORTED_ON, TuningResult

__all__ = ["MeasuredPoint", "measured_front", "train_front", "with_objectives"]

COST = "cost/"
FRONT = "front.csv"


class MeasuredPoint(NamedTuple):
    """A config of an arm's front, as the study's seeds measure it on the test split. values: those that were searched;
    metric, spread: mean and standard deviation over the seeds that have finished; costs: means, by name. is_best:
    whether no point of any arm is at least as good in all of these and better in one."""

    arm: str
    values: Mapping[str, Plain]
    seeds: int
    metric: float
    spread: float
    costs: Mapping[str, float]
    is_best: bool = False


def with_objectives(tuning: PreparedTuning, text: str) -> PreparedTuning:
    """Returns the tuning with the objectives METRIC,COST that a command names. Raises ConfigError for others."""
    metric, *costs = (name.strip() for name in text.split(","))
    known = [f"{COST}{name}" for name, value in tuning.planned.costs[tuning.arms[0].name].items() if value is not None]
    if metric != tuning.goal.metric:
        raise ConfigError(f"the first one is the study's metric, {tuning.goal.metric}, not {metric!r}", "--objectives")
    if not costs:
        raise ConfigError(f"a front needs a cost next to the metric; add {known[0]}", "--objectives")
    for cost in costs:
        if cost not in known:
            raise ConfigError(f"no cost of its runs is called {cost!r}; {nearest(cost, known)}", "--objectives")
    return replace(tuning, goal=tuning.goal._replace(costs=tuple(cost.removeprefix(COST) for cost in costs)))


def train_front(
    tuning: PreparedTuning, results: Sequence[TuningResult], runs: Path, settings: LaunchSettings, console: Console
) -> list[Row]:
    """Trains every config of the arms' fronts over the study's seeds, prints and writes their measurements.

    Returns the rows of the runs. Raises ConfigError for an arm without a finished trial, Stopped where a signal stopped
    the runs.
    """
    plans = _front_plans(tuning, results, runs)
    rows = {row.ticket.key: row for planned in plans for row in survey_to_train(planned, runs, settings)}
    trained = train_left(plans[0], runs, list(rows.values()), settings, console)
    points = measured_front(tuning, results, plans, runs)
    folder = replace(plans[0].plan, study=f"{tuning.planned.study}_pareto").folder
    path = plan_path(runs, folder).with_name(FRONT)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, points, plans[0].metric)
    _print(points, tuning, plans[0].metric, console)
    console.print(f"Pareto front: {path}", markup=False, highlight=False, soft_wrap=True)
    return trained


def measured_front(
    tuning: PreparedTuning, results: Sequence[TuningResult], plans: Sequence[PlannedStudy], runs: Path
) -> list[MeasuredPoint]:
    """Returns the points of all arms by their first cost. A point without a finished run is left out."""
    points = []
    for result in results:
        for point, planned in zip(result.front, plans, strict=False):
            [arm] = [arm for arm in planned.plan.arms if arm.name == result.arm]
            records = [read_record(runs / run.key).record for run in arm.runs]
            finished = [record for record in records if record is not None and record.outcome == "finished"]
            if not finished:
                continue
            values = [one.metrics.get(planned.metric) for one in finished]
            metrics = [math.nan if value is None else float(value) for value in values]
            costs = {name: statistics.mean([one.cost[name] or 0.0 for one in finished]) for name in tuning.goal.costs}
            spread = statistics.stdev(metrics) if len(metrics) > 1 else math.nan
            measured = (len(finished), statistics.mean(metrics), spread, costs)
            points.append(MeasuredPoint(result.arm, point.values, *measured))
    losses = [_losses(point, tuning) for point in points]
    best = [not any(_beats(other, own) for other in losses) for own in losses]
    marked = [point._replace(is_best=is_best) for point, is_best in zip(points, best, strict=True)]
    return sorted(marked, key=lambda point: [*point.costs.values()])


def _front_plans(tuning: PreparedTuning, results: Sequence[TuningResult], runs: Path) -> list[PlannedStudy]:
    """Returns a plan for each place of the longest front; an arm with a shorter one repeats its last config."""
    for result in results:
        if not result.front:
            raise ConfigError(f"no trial of arm {result.arm!r} has finished; look at its runs' records, or add trials")
    plans = []
    for place in range(max(len(result.front) for result in results)):
        points = {result.arm: result.front[min(place, len(result.front) - 1)] for result in results}
        tuned = {arm: {**point.values, SPLIT: REPORTED_ON} for arm, point in points.items()}
        plans.append(make_plan(tuning.planned.study, tuning.ablation, tuning.request, tuned, runs))
    return plans


def _losses(point: MeasuredPoint, tuning: PreparedTuning) -> list[float]:
    """Returns the values to minimise: the metric, or its negative, and the costs."""
    return [point.metric if tuning.goal.direction == "minimize" else -point.metric, *point.costs.values()]


def _beats(other: Sequence[float], own: Sequence[float]) -> bool:
    return other != own and all(first <= second for first, second in zip(other, own, strict=True))


def _write(path: Path, points: Sequence[MeasuredPoint], metric: str) -> None:
    names = [f"{COST}{name}" for name in (points[0].costs if points else ())]

    def write(fresh: Path) -> None:
        with fresh.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["arm", "values", "seeds", metric, "standard deviation", *names, "on the front of all"])
            for point in points:
                row = [point.arm, json.dumps(dict(point.values)), point.seeds, repr(point.metric), repr(point.spread)]
                table.writerow([*row, *map(repr, point.costs.values()), point.is_best])

    replace_file(path, write)


def _print(points: Sequence[MeasuredPoint], tuning: PreparedTuning, metric: str, console: Console) -> None:
    labels = tuning.planned.plan.labels
    costs = [f"{COST}{name}" for name in tuning.goal.costs]
    table = plain_table(labels.heading("arm"), "seeds", metric, *costs, "front of all", "values")
    for point in points:
        spread = "" if math.isnan(point.spread) else f" ± {point.spread:.2g}"
        table.add_row(
            BreakableName(labels.in_column(point.arm)),
            str(point.seeds),
            f"{point.metric:.4g}{spread}",
            *(count(round(cost)) for cost in point.costs.values()),
            "yes" if point.is_best else "",
            Text("\n".join(assignments({path.rpartition(".")[2]: value for path, value in point.values.items()}))),
        )
    console.print(table)
