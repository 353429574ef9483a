"""The floors of a study, as ``floors.json`` holds them beside its plan: what simple predictors reach on the same data,
which know nothing of what the study asks about."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lit_transformers.records.files import write_json
from lit_transformers.records.plan import Metric, Plan, plan_path
from lit_transformers.records.reference import Reference
from lit_transformers.records.schema import parse, to_plain

__all__ = ["FLOORS", "Floors", "floors_path", "load_floors", "write_floors"]

FLOORS = "floors.json"
"""The name of the file."""


@dataclass(frozen=True)
class Floors:
    """The value of the study's metric that each simple predictor reaches, or the ``reason`` why there is none.

    key: of the first run of the baseline, which stands for the data and the budget that the predictors learned from.
    arms: those that read these data, their baseline first; empty where all do. others: of other data that arms read.
    """

    key: str
    values: tuple[Reference, ...] = ()
    reason: str = ""
    arms: tuple[str, ...] = ()
    others: tuple[Floors, ...] = ()

    @property
    def keys(self) -> list[str]:
        """The keys of these floors and of those of other data."""
        return [self.key, *(other.key for other in self.others)]

    def best(self, metric: Metric) -> Reference | None:
        """Returns the best floor; None where there is none."""
        choose = min if metric.goal == "minimize" else max
        return choose(self.values, key=lambda floor: floor.value, default=None)

    def are_of(self, plan: Plan) -> bool:
        """Whether they were measured for the baseline of a plan, and for arms of it that read other data."""
        baseline = next(arm for arm in plan.arms if arm.name == plan.baseline)
        of_baseline = any(self.key == run.key for run in baseline.runs)
        return of_baseline and plan.by_key().keys() >= {*self.keys} and all(other.arms for other in self.others)


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
