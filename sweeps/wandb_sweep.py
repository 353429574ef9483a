"""A study as a W&B sweep: what ``wandb sweep`` reads, and whose agents run ``python -m sweeps agent``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import yaml

from lit_transformers.config import Plain
from lit_transformers.files import replace_file
from lit_transformers.space import Choice, Knob

__all__ = ["Method", "agent_command", "grid", "search", "write_sweep"]

Method = Literal["grid", "bayes", "random"]


def agent_command(words: Sequence[str], ranks: int = 1) -> list[str]:
    """The command of an agent; ``words`` follow ``python -m sweeps agent``. Several ranks are started by torchrun."""
    together = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    return ["${env}", "${interpreter}", *together, "-m", "sweeps", "agent", *words, "${args}"]


def grid(
    study: str, arms: Sequence[str], seeds: int, metric: Mapping[str, str], command: list[str]
) -> dict[str, Plain]:
    """Every arm with every seed, as ``python -m ablations run`` does."""
    found = {"arm": {"values": list(arms)}, "seed": {"values": list(range(seeds))}}
    return _sweep(study, "grid", metric, command, found)


def search(
    study: str, arm: str, space: Mapping[str, Knob], method: Method, trials: int, metric: Mapping[str, str],
    command: list[str],
) -> dict[str, Plain]:  # fmt: skip
    """The search of one arm, of so many trials. Each arm has a sweep of its own, so that all have the same budget."""
    found = {"arm": {"value": arm}} | {path: _parameter(knob) for path, knob in space.items()}
    return _sweep(f"{study}: {arm}", method, metric, command, found) | {"run_cap": trials}


def _sweep(
    name: str, method: str, metric: Mapping[str, str], command: list[str], found: Mapping[str, Plain]
) -> dict[str, Plain]:
    return {
        "name": name,
        "program": "sweeps",  # W&B wants one; the command is what counts
        "method": method,
        "metric": dict(metric),
        "parameters": dict(found),
        "command": command,
    }


def _parameter(knob: Knob) -> dict[str, Plain]:
    if isinstance(knob, Choice):
        return {"values": list(knob.values)}
    if knob.whole:
        kind = "q_log_uniform_values" if knob.log else "int_uniform"
    else:
        kind = "log_uniform_values" if knob.log else "uniform"
    return {"distribution": kind, "min": knob.low, "max": knob.high}


def write_sweep(path: Path, sweep: Mapping[str, Plain]) -> None:
    """Leaves the sweep where ``wandb sweep`` can read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(dict(sweep), sort_keys=False, allow_unicode=True, width=120)
    replace_file(path, lambda fresh: fresh.write_text(text, encoding="utf-8"))
