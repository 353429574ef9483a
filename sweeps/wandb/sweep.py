"""A study as a W&B sweep: a file that ``wandb sweep`` reads, and whose agents run ``python -m ablations agent``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import yaml

from lit_transformers.config import ConfigError, Plain, canonical_hash
from lit_transformers.records.files import replace_file
from lit_transformers.space import Choice, Conditional, Knob
from sweeps.process.torchrun import TORCHRUN
from sweeps.tuning.search import GRACE

__all__ = ["Method", "agent_command", "file_name", "grid", "search", "write_sweep"]

Method = Literal["grid", "bayes", "random"]


def agent_command(words: Sequence[str], ranks: int = 1) -> list[str]:
    """Returns an agent's command; ``words`` follow ``python -m ablations agent``. torchrun starts several ranks."""
    torchrun = [*TORCHRUN, "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return ["${env}", "${interpreter}", *torchrun, "-m", "ablations", "agent", *words, "${args}"]


def file_name(arm: str) -> str:
    """Returns the name of an arm's file: no two arms have the same, also where file systems ignore case."""
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in arm)
    return name if name == arm.lower() else f"{name}-{canonical_hash(arm, 8)}"


def grid(
    study: str, arms: Sequence[str], seeds: Sequence[int], metric: Mapping[str, str], command: list[str]
) -> dict[str, Plain]:
    """Returns the sweep of every arm with every seed, the runs of ``python -m ablations run``."""
    parameters = {"arm": {"values": list(arms)}, "seed": {"values": list(seeds)}}
    return _sweep(study, "grid", metric, command, parameters)


def search(
    study: str, arm: str, space: Mapping[str, Knob], method: Method, trials: int, metric: Mapping[str, str],
    command: list[str], validations: int | None = None,
) -> dict[str, Plain]:  # fmt: skip
    """Returns the sweep that searches one arm by ``trials`` trials. Each arm has its own, so budgets are equal.

    validations: how often a trial is validated. W&B then ends trials early by Hyperband (Li et al. 2018), whose rule is
    close to the median of our own searches: none in the first third of a run, and then the worse half. None for trials
    that all end.
    """
    parameters = {"arm": {"value": arm}} | {path: _parameter(path, knob) for path, knob in space.items()}
    sweep = _sweep(f"{study}: {arm}", method, metric, command, parameters) | {"run_cap": trials}
    first = math.ceil(GRACE * (validations or 0))
    if first and first < (validations or 0):
        sweep["early_terminate"] = {"type": "hyperband", "min_iter": first, "eta": 2}
    return sweep


def _sweep(
    name: str, method: str, metric: Mapping[str, str], command: list[str], parameters: Mapping[str, Plain]
) -> dict[str, Plain]:
    return {
        "name": name,
        "program": "ablations",  # W&B requires one, but runs the command
        "method": method,
        "metric": dict(metric),
        "parameters": dict(parameters),
        "command": command,
    }


def _parameter(path: str, knob: Knob) -> dict[str, Plain]:
    """Returns a knob as W&B writes it. Raises ConfigError for a condition, of which W&B knows none."""
    if isinstance(knob, Conditional):
        raise ConfigError("W&B's sweeps know no conditions; use python -m ablations tune", path)
    if isinstance(knob, Choice):
        return {"values": list(knob.values)}
    if knob.whole:
        kind = "q_log_uniform_values" if knob.log else "int_uniform"
    else:
        kind = "log_uniform_values" if knob.log else "uniform"
    return {"distribution": kind, "min": knob.low, "max": knob.high}


def write_sweep(path: Path, sweep: Mapping[str, Plain]) -> None:
    """Writes the sweep as YAML for ``wandb sweep``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(dict(sweep), sort_keys=False, allow_unicode=True, width=120)
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
