"""Distinguishes an arm that was trained too little from one whose training does not generalize to the measured rows.

A factor may change the rows that an arm reads, so that the arm has separate data with a separate floor. Where such an
arm is no better than its floor, while the study's baseline beats the floor of its data, there are two possible reasons.
It was trained too little; or it has learned its training rows well, and that is of no use on the rows that are
measured. The second is the study's answer, for longer training makes such an arm no better.

The rule uses a curve that every run holds: its training loss, in the unit of the metric. An arm does not generalize if
in every finished run this loss, in the last quarter of training, is below the floor by at least half of the baseline's
gain over its own floor. Training rows are easier, because some of their hidden symbols stay in place, but by far less
than this half. The arm has *memorized* its training rows if the loss is also below all values that are known to be
possible on rows that were not read: the mean of the study's best arm, and the best possible value where that is known.
Otherwise the rows that it reads may only be of another kind than those that are measured, such as shorter ones.

The rule says nothing of metrics without such a curve, of a baseline, or of data that several arms read: comparisons
there are with an arm that is below the floor. An arm that is trained on an easier task than it is measured on, such as
one whose hidden symbols all stay in place, would seem to have memorized its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from lit_transformers.records.floors import Floors
from lit_transformers.records.measurement import PREFIXES
from lit_transformers.records.reference import Reference
from reports.read.study import Run, Study

__all__ = ["GeneralizationGap", "generalization_gap"]

_LAST = 0.25
"""The share of a learning curve whose mean is the training loss."""
_LEAST_POINTS = 3
"""The points that this part holds at least: each is the loss of one batch."""
_SHARE = 0.5


@dataclass(frozen=True)
class GeneralizationGap:
    """The mean losses over the runs of an arm in training and as measured at the end, and whether its training rows
    were memorized."""

    training: float
    measured: float
    memorized: bool


def generalization_gap(
    study: Study, arm: str, floors: Floors, references: tuple[Reference, ...]
) -> GeneralizationGap | None:
    """Returns the losses of an arm that is no better than the best of its floors and was not trained too little; None
    of any other arm, and where its runs do not show this.

    references: the known values of the arm's data, the best possible value last.
    """
    own, floor, measured = study.floor, floors.best(study.plan.metric), study.mean_of(arm)
    if own is None or floor is None or measured is None or study.plan.metric.goal != "minimize":
        return None
    gain, losses = study.gain_over(own), [_training_loss(run, study.plan.metric.name) for run in study.finished(arm)]
    known = [loss for loss in losses if loss is not None]
    if floors.arms != (arm,) or gain is None or gain <= 0 or measured < floor.value or len(known) < len(losses):
        return None
    if max(known) > floor.value - _SHARE * gain:
        return None
    means = [mean for name in study.arm_names if (mean := study.mean_of(name)) is not None]
    possible = min(*means, *(reference.value for reference in references[-1:]))
    return GeneralizationGap(sum(known) / len(known), measured, max(known) < possible)


def _training_loss(run: Run, metric: str) -> float | None:
    """Returns the mean of the last part of a run's training loss in the unit of a metric of a split; None where
    there are too few points, or none in this unit."""
    split, _, name = metric.partition("/")
    curve = run.measurements.curves.get(f"train/{name}") if split in PREFIXES.values() else None
    if curve is None:
        return None
    last = curve[-int(_LAST * len(curve)) :] if _LAST * len(curve) >= _LEAST_POINTS else curve[:0]
    return float(last[:, 1].mean()) if len(last) else None
