"""Short runs of a command, in separate folders: they show its costs and its faults before its study is run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from lit_transformers.command_runs.attempt import attempt, program_fault, require_success, result_of
from lit_transformers.command_runs.config import CommandRunConfig
from lit_transformers.config import ConfigError, nearest
from lit_transformers.printing.error_lines import first_line
from lit_transformers.records.measure import Measure, maximized, measure_of_measured, minimized
from lit_transformers.records.record import Gate

__all__ = [
    "UNKNOWN",
    "CommandCost",
    "CommandStepTime",
    "check",
    "describe",
    "measure_of_command",
    "probe",
    "protocol_notes",
    "rehearse",
]

MEASURED: Mapping[str, Measure] = (
    minimized("seconds", "training_seconds", "steps", per="run")
    | maximized("steps_per_second", per="step")
    | minimized("peak_memory_bytes", per="run")
)
"""The measures of time and memory that every run has, by their names below ``measured/``."""
PROBE_STEPS = 10
"""The steps of the shorter one of two runs that time a step, where ``short`` states no number."""


class CommandCost(NamedTuple):
    """The cost of a run as far as its command states it in a short run (``budgets``); the other fields are None."""

    parameters: int | None
    embedding_parameters: None
    flops_per_token: None
    train_flops: float | None
    tokens: int | None
    state_bytes: None
    decoding_state: None


UNKNOWN = CommandCost(None, None, None, None, None, None, None)


class CommandStepTime(NamedTuple):
    """The seconds of a step, and the peak memory of all processes in bytes."""

    seconds: float
    memory: float


class ShortRun(NamedTuple):
    """The outcome of a short run: its results, or the reason why it has none; its duration in seconds, and its peak
    memory."""

    results: dict[str, float]
    fault: str | None
    seconds: float
    peak_bytes: int


def describe(config: CommandRunConfig) -> CommandCost:
    """Returns the cost of a run. Where the command states budgets, they are read from a short run; those of tokens and
    FLOPs grow with the steps. Raises ConfigError where that run fails, or does not print them."""
    costs: dict[str, float] = {}
    if config.budgets:
        short = config.shortened()
        run = short_run(short.override({"seed": 0, "choose": {}}))
        if run.fault is not None:
            raise ConfigError(f"a short run, which budgets are read from, failed: {run.fault}", "budgets")
        ratio = (config.training.steps or 1) / (short.training.steps or 1)
        for budget, name in config.budgets.items():
            if name not in run.results:
                known = nearest(name, run.results)
                raise ConfigError(f"no number {name!r} appears in a short run; {known}", f"budgets.{budget}")
            costs[budget] = run.results[name] * (1 if budget == "parameters" else ratio)
    parameters, tokens = costs.get("parameters"), costs.get("tokens")
    return UNKNOWN._replace(
        parameters=None if parameters is None else round(parameters),
        train_flops=costs.get("flops"),
        tokens=None if tokens is None else round(tokens),
    )


def check(config: CommandRunConfig) -> Sequence[Gate]:
    """Returns the gates of a command, by three short runs: two with one seed, one with another seed."""
    return [*_gates(config)]


def _gates(config: CommandRunConfig) -> Iterator[Gate]:
    short = config.shortened()
    first = short_run(short.override({"seed": 0}))
    yield Gate("the command ends with its metrics", first.fault is None, first.fault or "")
    if first.fault is not None:
        return
    short_run.cache_clear()  # the same config, done once more
    again, other = short_run(short.override({"seed": 0})), short_run(short.override({"seed": 1}))
    for run, seed in ((again, 0), (other, 1)):
        if run.fault is not None:
            yield Gate("the command ends with its metrics", False, f"with seed {seed}: {run.fault}")
            return
    spread = {name: abs(first.results[name] - again.results[name]) for name in config.metrics}
    worst = max(spread, key=lambda name: spread[name])
    repeats = spread[worst] <= config.repeats_within
    values = f"{worst} of seed 0 is {first.results[worst]:.6g} and {again.results[worst]:.6g}"
    way_out = f"; make it repeatable, or state repeats_within={spread[worst]:.3g}, which its report then says"
    yield Gate("a seed gives the same result twice", repeats, values + ("" if repeats else way_out))
    moved = [name for name in config.metrics if first.results[name] != other.results[name]]
    detail = f"{', '.join(config.metrics)} are the same with the seeds 0 and 1: the command does not use {{seed}}"
    yield Gate("another seed gives another result", bool(moved), "" if moved else detail)


def probe(config: CommandRunConfig) -> CommandStepTime:
    """Times a step, by the difference of two short runs of which one has twice the steps, so that the start of the
    program cancels out. Raises ConfigError for a command without {steps}, and where a run fails."""
    if config.training.steps is None:
        reason = (
            "the time of a step is measured by runs with few of them; set training.steps, and {steps} in the command"
        )
        raise ConfigError(reason, "match")
    steps = config.short.get("training.steps", PROBE_STEPS)
    runs = [short_run(config.shortened().override({"training.steps": count})) for count in (steps, 2 * steps)]
    for run in runs:
        if run.fault is not None:
            raise ConfigError(f"a short run, which time is measured by, failed: {run.fault}", "match")
    seconds = (runs[1].seconds - runs[0].seconds) / steps
    if seconds <= 0:
        reason = f"{steps} steps and {2 * steps} take equally long; set short={{'training.steps': N}} to more steps"
        raise ConfigError(reason, "match")
    return CommandStepTime(seconds, float(runs[1].peak_bytes))


def rehearse(config: CommandRunConfig) -> None:
    """Raises ConfigError for a program or a script that is not there."""
    if (fault := program_fault(config)) is not None:
        raise fault


def measure_of_command(config: CommandRunConfig, metric: str) -> Measure:
    """Returns the measure of a metric. Raises ConfigError, with the nearest name, for one that the config does not
    require of its runs."""
    if metric.startswith("measured/"):
        return measure_of_measured(metric, MEASURED)
    if metric not in config.metrics:
        known = nearest(metric, config.metrics)
        raise ConfigError(f"{metric!r} is none of the metrics of its command; {known}", "metric")
    return Measure("run", config.metrics[metric])


def protocol_notes(config: CommandRunConfig) -> list[str]:
    """Returns how runs of a command are done, for the line of a plan that says so."""
    program = [*takewhile(lambda word: "{" not in word and not word.startswith("-"), config.words)]
    notes = [f"command {' '.join(program) or config.words[0]}"]
    resumed = {"folder": "continues in its old folder", "anew": "starts anew"}[config.resume]
    notes.append(f"a stopped run {resumed}")
    if config.repeats_within:
        notes.append(f"a seed repeats its result within {config.repeats_within:g}")
    return notes


@lru_cache(maxsize=64)
def short_run(config: CommandRunConfig) -> ShortRun:
    """Runs a command as its config states, in a temporary folder, and caches the outcome by the config."""
    with tempfile.TemporaryDirectory(prefix="lit-command-") as folder:
        end, numbers = attempt(config, Path(folder), lambda: False, lambda points: False, threads=1)
        try:
            require_success(end, numbers, Path(folder))
            results = result_of(config, numbers)
        except RuntimeError as error:
            return ShortRun({}, first_line(error), end.seconds, end.peak_bytes)
    return ShortRun(results, None, end.seconds, end.peak_bytes)
