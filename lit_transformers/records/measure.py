"""The meaning of a metric's number: the unit that it is a mean over, and whether less or more of it is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lit_transformers.config import ConfigError, nearest

__all__ = [
    "PERCENT",
    "Goal",
    "Measure",
    "maximized",
    "measure_of",
    "measure_of_measured",
    "minimized",
    "published_goal",
]

PERCENT = 100.0
"""The perfect score of a percentage."""
Goal = Literal["minimize", "maximize"]
"""Whether less or more of a metric is better."""

_PUBLISHED: dict[Goal, tuple[str, ...]] = {
    "minimize": (
        *("perplexity", "bits per byte", "bits per character", "bits per dimension", "nats per symbol"),
        *("nats per hidden symbol", "mean squared error"),
    ),
    "maximize": (
        *("accuracy", "BLEU", "chrF", "ROUGE-1", "ROUGE-2", "ROUGE-L", "Matthews correlation"),
        *("macro F1", "micro F1", "exact match", "Pearson correlation", "Spearman correlation", "entity F1"),
    ),
}
"""The names that papers have for the metrics of this suite."""
_FORMER: dict[Goal, tuple[str, ...]] = {
    "minimize": ("peak memory", "perplexity on CNN/DM", "times slower"),
    "maximize": (
        *("accuracy on MNLI-m", "average accuracy", "average GLUE score", "GLUE average", "GLUE score", "MLM accuracy"),
        *("symbol accuracy", "times faster"),
    ),
}
"""The other metrics of studies that were published before a study stated the goal of its source's metric."""


@dataclass(frozen=True)
class Measure:
    """The unit that a metric is a mean over, such as "symbol", "byte" or "example", and its goal: whether less or more
    of it is better. full: the number of a perfect score, 100 of one in per cent.

    Raises ConfigError for another goal.
    """

    unit: str
    goal: Goal
    full: float = 1.0

    def __post_init__(self) -> None:
        if self.goal not in ("minimize", "maximize"):
            raise ConfigError(f"of a metric minimize or maximize is the goal, not {self.goal!r}", "measures")


def minimized(*names: str, per: str) -> dict[str, Measure]:
    """Returns the measures of metrics of which less is better. per: their unit."""
    return dict.fromkeys(names, Measure(per, "minimize"))


def maximized(*names: str, per: str, full: float = 1.0) -> dict[str, Measure]:
    """Returns the measures of metrics of which more is better. per: their unit. full: the number of a perfect score."""
    return dict.fromkeys(names, Measure(per, "maximize", full))


def measure_of(metric: str, measures: Mapping[str, Measure]) -> Measure | None:
    """Returns the measure of a metric of a record, such as ``val/relation_nats`` or ``val/nats@8``, given those that
    an objective states by the names of its metrics without split and length; None where it states none."""
    return measures.get(metric.rpartition("/")[2].partition("@")[0])


def measure_of_measured(metric: str, measures: Mapping[str, Measure]) -> Measure:
    """Returns the measure of a time, a rate or memory. Raises ConfigError if a run does not measure it."""
    name = metric.removeprefix("measured/")
    if name not in measures:
        known = nearest(metric, [f"measured/{name}" for name in measures])
        raise ConfigError(f"no {metric!r} would be in the record of its runs; {known}", "metric")
    return measures[name]


def published_goal(metric: str, *, former: bool = False) -> Goal | None:
    """Returns the goal of a metric of a paper that this suite measures too, by its whole name; None for another metric.

    former: whether the metrics count that published studies used before they stated the goal.
    """
    for goal, names in (*_PUBLISHED.items(), *(_FORMER.items() if former else ())):
        if metric.casefold() in map(str.casefold, names):
            return goal
    return None
