"""Whether the stages that arms start from have learned: an arm says little of an objective that its stage has not
learned.

A stage is measured by the first metric of its objective that simple predictors have, and has learned where its mean
over seeds is better than the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lit_transformers.records.floors import StageFloor
from reports.read.study import Study

__all__ = ["LearnedStage", "learned_stages"]


@dataclass(frozen=True)
class LearnedStage:
    """The value that a stage reaches, its mean over finished seeds, and its floor. value: None where no seed has
    finished. arms: those that start from the stage."""

    floor: StageFloor
    value: float | None
    arms: tuple[str, ...]

    @property
    def gain(self) -> float | None:
        """By how much the stage is better than its floor, negative where it is worse; None where one is not known."""
        if self.value is None or self.floor.best is None:
            return None
        gain = self.value - self.floor.best.value
        return -gain if self.floor.goal == "minimize" else gain


def learned_stages(study: Study) -> Iterator[LearnedStage]:
    """Yields the stages of a study whose floors were measured."""
    for floor in study.floors.stages if study.floors else ():
        records = [study.stages.get(stage.key) for stage in study.plan.stages if stage.name == floor.name]
        reached = [one.value(floor.metric) for one in records if one is not None and one.outcome == "finished"]
        values = [value for value in reached if value is not None and np.isfinite(value)]
        yield LearnedStage(floor, float(np.mean(values)) if values else None, study.plan.arms_after(floor.name))
