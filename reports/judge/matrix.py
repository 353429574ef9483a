"""The accuracies of a product of two factors as a matrix, and the mean of each row where columns are other data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lit_transformers.records.plan import Plan
from reports.judge.evidence import Evidence, gather
from reports.judge.fairness import mean_cost
from reports.judge.statistics import ConfidenceInterval, estimate
from reports.read.study import Study

__all__ = ["DECODING_STATE", "Accuracy", "Matrix", "accuracy_matrix"]

DECODING_STATE = "decoding_state"
"""The cost in a record: the most numbers that all mixers hold of a row that is read token by token."""


@dataclass(frozen=True)
class Accuracy:
    """A mean over seeds, from 0 to 1, with its 95 % interval over seeds and documents; None for a single seed and where
    all seeds give the same value."""

    mean: float
    interval: ConfidenceInterval | None


@dataclass(frozen=True)
class Matrix:
    """The accuracies of a product of two factors.

    rows, columns  the names of the factors
    levels         the levels of the rows, from the largest mean to the smallest where there are means
    tasks          the levels of the columns
    arms           the names of the arms of the levels of a row and a column
    cells          the accuracies of those that have finished
    means          of each level of the rows whose cells have all finished, over the columns; empty where columns are
                   not other data, for then they are no tasks over which one could average
    chance         of the columns where it is known, the accuracy of who knows nothing of the data
    states         of each level of the rows with a mean, the mean over the columns of the numbers that its mixers hold
                   in decoding, where they are known
    """

    rows: str
    columns: str
    levels: tuple[str, ...]
    tasks: tuple[str, ...]
    arms: Mapping[tuple[str, str], str]
    cells: Mapping[tuple[str, str], Accuracy]
    means: Mapping[str, Accuracy]
    chance: Mapping[str, float]
    states: Mapping[str, float]


def accuracy_matrix(study: Study) -> Matrix | None:
    """Returns the matrix of a study whose metric is an accuracy and whose design is the product of two factors, the
    columns being the one that changes the data if there is such a factor; None of any other study."""
    plan = study.plan
    if not is_accuracy(plan.metric.name) or plan.design != "product" or len(plan.factors) != 2:
        return None
    of_data = [factor for factor in plan.factors if changes_data(study, factor)]
    first, second = plan.factors
    rows, columns = (second, first) if of_data == [first] else (first, second)
    names = {(arm.levels[rows], arm.levels[columns]): arm.name for arm in plan.arms}
    evidence = gather(study, [])
    cells = {key: accuracy for key, name in names.items() if (accuracy := mean_accuracy([name], evidence))}
    if not cells:
        return None
    levels, tasks = levels_of(plan, rows), levels_of(plan, columns)
    means: dict[str, Accuracy] = {}
    states: dict[str, float] = {}
    if of_data == [columns]:
        rows_of_arms = {level: [names[level, task] for task in tasks if (level, task) in names] for level in levels}
        for level, arms in rows_of_arms.items():
            if len(arms) == len(tasks) and (accuracy := mean_accuracy(arms, evidence)):
                means[level] = accuracy
                sizes = [size for arm in arms if (size := mean_cost(study.finished(arm), DECODING_STATE)) is not None]
                if len(sizes) == len(arms):
                    states[level] = float(np.mean(sizes))
        levels = tuple(sorted(levels, key=lambda level: -means[level].mean if level in means else 1.0))
    known = {arm.levels[columns]: arm.references or plan.references for arm in plan.arms}
    chance = {task: float(references[0].value) for task, references in known.items() if references}
    return Matrix(rows, columns, levels, tasks, names, cells, means, chance, states)


def is_accuracy(metric: str) -> bool:
    """Whether a metric of a record is an accuracy, of symbols, of whole answers, or of either at one length."""
    return metric.rpartition("/")[2].partition("@")[0].rpartition("_")[2] == "accuracy"


def changes_data(study: Study, factor: str) -> bool:
    """Whether several levels of a factor have finished, and no two of them have read the same data."""
    level_of = {arm.name: arm.levels[factor] for arm in study.plan.arms}
    readers: dict[str, set[str]] = {}
    for run in study.runs:
        if run.missing is None and run.record:
            readers.setdefault(str(run.record.data.get("fingerprint")), set()).add(level_of[run.arm])
    finished = {level for levels in readers.values() for level in levels}
    return len(finished) > 1 and all(len(levels) == 1 for levels in readers.values())


def levels_of(plan: Plan, factor: str) -> tuple[str, ...]:
    """Returns the levels of a factor that arms have, in the order of the plan."""
    present = {arm.levels[factor] for arm in plan.arms}
    return tuple(level for level in plan.factors[factor] if level in present)


def mean_accuracy(arms: Sequence[str], evidence: Evidence) -> Accuracy | None:
    """Returns the mean over arms and over the seeds that all of them have finished; None without such a seed."""
    seeds = evidence.seeds(arms)
    if not seeds:
        return None
    weights = dict.fromkeys(arms, 1 / len(arms))
    result = estimate(evidence.pairs(weights, seeds), evidence.at_documents(weights, seeds))
    return Accuracy(result.difference, result.interval)
