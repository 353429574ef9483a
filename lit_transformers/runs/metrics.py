"""Which metrics the record of a run will hold, before anything is trained."""

from __future__ import annotations

from lit_transformers.config import ConfigError, nearest
from lit_transformers.runs.config import RunConfig

__all__ = ["require_measured", "require_metric"]

MEASURED = ("seconds", "tokens_per_second", "evaluation_tokens_per_second", "peak_memory_bytes")
"""What every run measures of its time and memory, by its name below ``measured/``."""
OF_STOPPED = ("steps", "measured_step")
"""What else one measures that may stop before its last step."""


def require_metric(config: RunConfig, metric: str) -> None:
    """Raises ConfigError where the record of a run will hold no such metric, with the nearest that it will hold."""
    if metric.startswith("measured/"):
        require_measured(metric, (*MEASURED, *(OF_STOPPED if config.training.stop is not None else ())))
        return
    description = config.build_data().description
    units = config.task.units(description)
    if not units:  # an objective from outside that does not say what it measures
        return
    split, _, rest = metric.rpartition("/")
    name, at, length = rest.partition("@")
    lengths = config.data.measured_lengths
    if split == "val" and name in units and (not at or lengths is None or length in map(str, lengths)):
        return
    names = [f"val/{name}" for name in units]
    if name == "bpb" and description.vocabulary.byte_lengths is None:
        reason = f"a {description.vocabulary.unit} of these data stands for no known number of bytes, so that there is"
        remedy = f"set data.tokenizer to bytes, characters or bpe, or the metric to {names[0]}"
        raise ConfigError(f"{reason} no {metric}; {remedy}", "metric")
    if at and name in units:
        names = [f"val/{name}@{known}" for known in lengths or ()] or [f"val/{name}"]
    raise ConfigError(f"no {metric!r} would be in the record of its runs; {nearest(metric, names)}", "metric")


def require_measured(metric: str, names: tuple[str, ...]) -> None:
    """Raises ConfigError where a run measures no such time, rate or memory."""
    if metric.removeprefix("measured/") not in names:
        known = nearest(metric, [f"measured/{name}" for name in names])
        raise ConfigError(f"no {metric!r} would be in the record of its runs; {known}", "metric")
