"""Plans the metrics of a study: the goal of each metric, and the metrics that a report shows without a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lit_transformers.config import Config, ConfigError
from lit_transformers.records.measure import Goal
from lit_transformers.records.plan import Metric
from lit_transformers.runner import Runner

__all__ = ["further_metrics", "stated_goal", "with_goal"]

LOSS, ACCURACY = "nats", "accuracy"
SCORES = ("sequence_accuracy", ACCURACY, "matthews", "macro_f1", "micro_f1", "exact_match", "pearson", "spearman")
"""The scores next to which a report shows nats, since nats often decide a difference with fewer seeds."""


def stated_goal(
    config: Config, metric: Metric, goal: Goal | None, runner: Runner, place: str = "metric"
) -> Goal | None:
    """Returns the goal of a metric: the goal that the runs of a config state, or else the given goal. Raises
    ConfigError if both contradict each other, and for a metric that such runs do not record."""
    measure = runner.measure_of(config, metric.name)
    if measure is not None and measure.goal != (goal or measure.goal):
        better = "less" if measure.goal == "minimize" else "more"
        raise ConfigError(f"{better} of {metric.name} is better; set goal={measure.goal!r}", f"{place}.goal")
    return goal if measure is None else measure.goal


def with_goal(metric: Metric, goal: Goal | None, place: str = "metric") -> Metric:
    """Returns a metric with its goal. Raises ConfigError without a goal."""
    if goal is None:
        reason = f"it is unknown whether less or more of {metric.name} is better"
        raise ConfigError(f"{reason}; set goal='minimize' or goal='maximize'", f"{place}.goal")
    return replace(metric, goal=goal)


def further_metrics(
    stated: Sequence[Metric] | None, metric: Metric, configs: Mapping[str, Config], runner: Runner
) -> tuple[Metric, ...]:
    """Returns the metrics, with their goals, that a report shows next to the metric of the verdict.

    stated: the metrics that the study names. None: nats next to a score, or accuracy next to nats, if the runs of all
    arms measure them. Raises ConfigError for a named metric that an arm does not measure.
    """
    if stated is None:
        return tuple(one for name in counterparts(metric.name) if (one := _measured(name, configs, runner)))
    further = []
    for number, one in enumerate(stated):
        place, goal = f"also.{number}", one.goal
        for arm, config in configs.items():
            try:
                goal = stated_goal(config, one, goal, runner, place)
            except ConfigError as error:
                raise ConfigError(f"in arm {arm}: {error.reason}", place) from None
        further.append(with_goal(one, goal, place))
    return tuple(further)


def counterparts(metric: str) -> Iterator[str]:
    """Yields the name of the loss for a score of the same predictions, or of the accuracy for a loss:
    ``val/relation_nats@8`` for ``val/relation_accuracy@8``."""
    name, at, length = metric.partition("@")
    for ends, other in ((SCORES, LOSS), ((LOSS,), ACCURACY)):
        end = next((end for end in ends if name.endswith((f"/{end}", f"_{end}"))), None)
        if end is not None:
            yield f"{name.removesuffix(end)}{other}{at}{length}"


def _measured(name: str, configs: Mapping[str, Config], runner: Runner) -> Metric | None:
    """Returns a metric with its goal; None if some runs do not measure it, or do not state their metrics."""
    goals = set()
    for config in configs.values():
        try:
            measure = runner.measure_of(config, name)
        except ConfigError:
            return None
        goals.add(None if measure is None else measure.goal)
    return Metric(name, goal=goals.pop()) if len(goals) == 1 and None not in goals else None
