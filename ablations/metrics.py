"""The metrics of a study before anything is trained: what is better of them, and which are shown and do not judge."""

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
"""The scores of predictions next to which nats are shown: a difference in nats is often decided by fewer seeds."""


def stated_goal(
    config: Config, metric: Metric, goal: Goal | None, runner: Runner, place: str = "metric"
) -> Goal | None:
    """Returns what is better of a metric by what the runs of a config state or, where they do not, the goal that is
    given. Raises ConfigError where these contradict each other, and for a metric that no record of such a run holds."""
    measure = runner.measure_of(config, metric.name)
    if measure is not None and measure.goal != (goal or measure.goal):
        better = "less" if measure.goal == "minimize" else "more"
        raise ConfigError(f"of {metric.name} {better} is better; set goal={measure.goal!r}", f"{place}.goal")
    return goal if measure is None else measure.goal


def with_goal(metric: Metric, goal: Goal | None, place: str = "metric") -> Metric:
    """Returns a metric with its goal. Raises ConfigError where there is none."""
    if goal is None:
        reason = f"nothing says whether less or more of {metric.name} is better"
        raise ConfigError(f"{reason}; set goal='minimize' or goal='maximize'", f"{place}.goal")
    return replace(metric, goal=goal)


def further_metrics(
    stated: Sequence[Metric] | None, metric: Metric, configs: Mapping[str, Config], runner: Runner
) -> tuple[Metric, ...]:
    """Returns the metrics, with their goals, that a report shows next to the one that judges: those that the study
    states or, where it states none, nats next to a score of predictions and accuracy next to nats, if the runs of all
    arms measure them. Raises ConfigError for a stated one that an arm does not measure."""
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
    """Yields the loss next to a score of the same predictions, or the accuracy next to a loss, by their names: of
    ``val/relation_accuracy@8`` it is ``val/relation_nats@8``."""
    name, at, length = metric.partition("@")
    for ends, other in ((SCORES, LOSS), ((LOSS,), ACCURACY)):
        end = next((end for end in ends if name.endswith((f"/{end}", f"_{end}"))), None)
        if end is not None:
            yield f"{name.removesuffix(end)}{other}{at}{length}"


def _measured(name: str, configs: Mapping[str, Config], runner: Runner) -> Metric | None:
    """Returns a metric with its goal; None where some runs do not measure it, or do not state what they measure."""
    goals = set()
    for config in configs.values():
        try:
            measure = runner.measure_of(config, name)
        except ConfigError:
            return None
        goals.add(None if measure is None else measure.goal)
    return Metric(name, goal=goals.pop()) if len(goals) == 1 and None not in goals else None
