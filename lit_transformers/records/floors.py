"""The floors of a study, as ``floors.json`` holds them next to its plan: the values that simple predictors, which know
nothing of the subject of the study, reach on the same data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from lit_transformers.records.files import write_json
from lit_transformers.records.measure import Goal
from lit_transformers.records.plan import Metric, Plan, plan_path
from lit_transformers.records.reference import Reference
from lit_transformers.records.schema import IF_ANY, parse, to_plain

__all__ = ["FLOORS", "VERSION", "Floors", "StageFloor", "best_of", "floors_path", "load_floors", "write_floors"]

FLOORS = "floors.json"
"""The name of the file."""
VERSION = 3
"""The version of floors that are measured now. Those of version 1 saw no more of a text than the last few symbols.
Those of version 2 had no value for a mean over tasks."""


@dataclass(frozen=True)
class StageFloor:
    """The best value that a simple predictor reaches on the data of a stage, or the ``reason`` why there is none.

    name: of the stage. key: of its first run, whose data and budget the predictors learned from. metric: its name in
    records, the first metric of the stage's objective that simple predictors have. goal: of this metric.
    """

    name: str
    key: str
    metric: str = ""
    goal: Goal = "minimize"
    best: Reference | None = None
    reason: str = ""


@dataclass(frozen=True)
class Floors:
    """The value of the study's metric that each simple predictor reaches, or the ``reason`` why there is none.

    key: of the first run of the baseline, which stands for the data and the budget that the predictors learned from.
    arms: those that read these data and see as much of them, their baseline first; empty where all do. others: of other
    data that arms read, and of these for arms that see less or more of them. document: the values of predictors that
    see the whole document, more than these arms see, and decide nothing. stages: the floor of each stage.
    """

    key: str
    values: tuple[Reference, ...] = ()
    reason: str = ""
    arms: tuple[str, ...] = ()
    others: tuple[Floors, ...] = ()
    document: Annotated[tuple[Reference, ...], IF_ANY] = ()
    version: Annotated[int, Field(exclude_if=lambda version: version == 1)] = 1
    stages: Annotated[tuple[StageFloor, ...], IF_ANY] = ()

    @property
    def keys(self) -> list[str]:
        """The keys of these floors and of those of other data."""
        return [self.key, *(other.key for other in self.others)]

    def best(self, metric: Metric) -> Reference | None:
        """Returns the best floor; None where there is none."""
        return best_of(self.values, metric.goal)

    def best_of_document(self, metric: Metric) -> Reference | None:
        """Returns the best value of who sees the whole document; None where there is none."""
        return best_of(self.document, metric.goal)

    def know_stages(self, plan: Plan) -> bool:
        """Whether they hold a floor of each stage of a plan, or the reason why there is none."""
        return {stage.name: stage.key for stage in self.stages} == plan.first_stages()

    def are_of(self, plan: Plan) -> bool:
        """Whether they were measured for the baseline of a plan, and for arms of it that read other data or see less or
        more of them."""
        baseline = next(arm for arm in plan.arms if arm.name == plan.baseline)
        of_baseline = any(self.key == run.key for run in baseline.runs)
        return of_baseline and plan.by_key().keys() >= {*self.keys} and all(other.arms for other in self.others)


def best_of(values: Iterable[Reference], goal: Goal | None) -> Reference | None:
    """Returns the best of several values; None where there are none."""
    choose = min if goal == "minimize" else max
    return choose(values, key=lambda floor: floor.value, default=None)


def floors_path(runs: Path, folder: str) -> Path:
    """Returns the path of a study's ``floors.json``. folder: the name of its plan's folder below ``runs/studies``."""
    return plan_path(runs, folder).with_name(FLOORS)


def write_floors(runs: Path, folder: str, floors: Floors) -> None:
    """Writes ``floors.json`` to the folder of a plan."""
    write_json(floors_path(runs, folder), to_plain(floors))


def load_floors(runs: Path, folder: str) -> Floors | None:
    """Reads the floors of a plan; None where there is no file.

    Raises ValueError or RecursionError, which ``first_fault`` names, where the file holds none, and OSError.
    """
    path = floors_path(runs, folder)
    return parse(Floors, json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
