"""The metrics that the record of a run will hold, and their goals, known before training."""

from __future__ import annotations

from collections.abc import Mapping

from lit_transformers.batch import DataDescription
from lit_transformers.config import ConfigError, nearest
from lit_transformers.records.measure import Goal, Measure, maximized, measure_of, measure_of_measured, minimized
from lit_transformers.records.measurement import PREFIXES, named_on
from lit_transformers.runs.config import RunConfig
from lit_transformers.tasks.task import TaskConfig

__all__ = ["learning_metrics", "measure_of_run", "stopping_goal"]

MEASURED: Mapping[str, Measure] = (
    minimized("seconds", per="run")
    | maximized("tokens_per_second", "evaluation_tokens_per_second", per="symbol")
    | minimized("peak_memory_bytes", per="run")
)
"""The time and memory that every run measures, by their names below ``measured/``."""
OF_EXAMPLES: Mapping[str, Measure] = maximized("examples_per_second", per="example")
"""Further measures of runs whose batches have a fixed number of examples."""
OF_STOPPED: Mapping[str, Measure] = minimized("steps", "measured_step", per="run")
"""Further measures of runs that may stop before their last step."""
OF_PACKED: Mapping[str, Measure] = minimized("packed_bytes", per="run")
"""Further measures of runs whose checkpoint is packed to be measured."""
OF_TIMED: Mapping[str, Measure] = minimized("time_ratio", "latency_ratio", per="run")
"""Further measures of runs whose networks are timed next to those that they start from."""
OF_PASSAGES: Mapping[str, Measure] = minimized("passage_bytes", per="run")
"""Further measures of runs whose lower layers read passages apart."""


def measure_of_run(config: RunConfig, metric: str) -> Measure | None:
    """Returns the measure of a metric in a run's record; None if the task, of a plug-in, does not state its measures.
    Raises ConfigError, with the nearest metric, if the record will hold no such metric.
    """
    if metric.startswith("measured/"):
        of_examples = OF_EXAMPLES if config.examples_per_step is not None else {}
        of_stopped = OF_STOPPED if config.training.stop is not None else {}
        of_packed = OF_PACKED if config.is_packed else {}
        of_timed = OF_TIMED if config.timed else {}
        of_passages = OF_PASSAGES if config.reads_passages_apart else {}
        further = {**of_examples, **of_stopped, **of_packed, **of_timed, **of_passages}
        return measure_of_measured(metric, {**MEASURED, **further})
    data = config.build_data()
    description = data.description
    measures = config.task.measures(description)
    if not measures:
        return None
    split, _, rest = metric.rpartition("/")
    name, at, length = rest.partition("@")
    lengths = config.data.measured_lengths
    measured, prefix = data.measured_split, PREFIXES[data.measured_split]
    if name in measures and (not at or lengths is None or length in map(str, lengths)):
        if split == prefix:
            return measures[name]
        if split in PREFIXES.values():
            reason = f"is measured on the {measured} split, so that {metric} is not in the record of its runs"
            raise ConfigError(f"{reason}; name {named_on(metric, measured)}, or set data.evaluation.split", "metric")
    names = [f"{prefix}/{name}" for name in measures]
    if name == "bpb" and description.vocabulary.byte_lengths is None:
        reason = f"a {description.vocabulary.unit} of these data stands for no known number of bytes, so that there is"
        remedy = f"set data.tokenizer to bytes, characters or bpe, or the metric to {names[0]}"
        raise ConfigError(f"{reason} no {metric}; {remedy}", "metric")
    if at and name in measures:
        names = [f"{prefix}/{name}@{known}" for known in lengths or ()] or [f"{prefix}/{name}"]
    raise ConfigError(f"no {metric!r} would be in the record of its runs; {nearest(metric, names)}", "metric")


def learning_metrics(config: RunConfig) -> dict[str, Goal]:
    """Returns the metrics in a run's record that its task measures on the split of its evaluation, with their goals:
    means over tasks, then the others in the task's order. Nothing of a run of no steps."""
    if not config.training.steps:
        return {}
    data, task = config.build_data(), config.measured_task
    measures = task.measures(data.description)
    names = sorted(measures, key=lambda name: not task.averaged(name, data.description))
    return {f"{PREFIXES[data.measured_split]}/{name}": measures[name].goal for name in names}


def stopping_goal(metric: str, task: TaskConfig, description: DataDescription) -> Goal:
    """Returns the goal of the metric of ``training.stop``. Raises ConfigError if the task does not state it, or does
    not measure this metric."""
    measures = task.measures(description)
    measure = measure_of(metric, measures)
    if measure is not None:
        return measure.goal
    if measures:
        known = nearest(metric, [f"val/{name}" for name in measures])
        raise ConfigError(f"{metric} is not measured; {known}", "training.stop.metric")
    reason = f"{task.kind} does not say whether less or more of {metric} is better"
    raise ConfigError(f"{reason}; name it in measures of {type(task).__name__}", "training.stop.metric")
