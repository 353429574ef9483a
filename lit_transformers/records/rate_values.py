"""The arms of a study at other learning rates, as ``rates.json`` holds them next to the plan."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lit_transformers.records.files import write_json
from lit_transformers.records.plan import Plan, plan_path
from lit_transformers.records.schema import Number, parse, to_plain

__all__ = ["RATES", "RateRun", "RateValues", "load_rates", "write_rates"]

RATES = "rates.json"
"""The name of the file."""


@dataclass(frozen=True)
class RateRun:
    """A run of an arm at ``factor`` times its learning rate. of: the key of the run of the plan that differs from it in
    its rate alone. key: its own. value: of the study's metric, None where it has none, for the reason ``missing``."""

    arm: str
    seed: int
    factor: Number
    of: str
    key: str
    value: Number | None = None
    missing: str = ""


@dataclass(frozen=True)
class RateValues:
    """The runs of a study's arms at other learning rates, and the ``metric`` that their values are of."""

    metric: str
    runs: tuple[RateRun, ...]

    @property
    def factors(self) -> list[float]:
        """The factors of the rate, ascending."""
        return sorted({run.factor for run in self.runs})

    def at(self, factor: float) -> dict[tuple[str, int], RateRun]:
        """Returns the runs at a factor of the rate, by arm and seed."""
        return {(run.arm, run.seed): run for run in self.runs if run.factor == factor}

    def are_of(self, plan: Plan) -> bool:
        """Whether they stand for runs of a plan: their configs, data and code are those of today."""
        planned = {(arm.name, run.seed): run.key for arm in plan.arms for run in arm.runs}
        return self.metric == plan.metric.name and all(
            planned.get((run.arm, run.seed), run.of) == run.of for run in self.runs
        )


def write_rates(runs: Path, folder: str, rates: RateValues) -> None:
    """Writes ``rates.json`` to the folder of a plan."""
    write_json(plan_path(runs, folder).with_name(RATES), to_plain(rates))


def load_rates(runs: Path, folder: str) -> RateValues | None:
    """Reads ``rates.json`` from the folder of a plan; None where there is no file.

    Raises ValueError or RecursionError, which ``first_fault`` names, where the file holds no rates, and OSError.
    """
    path = plan_path(runs, folder).with_name(RATES)
    return parse(RateValues, json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
