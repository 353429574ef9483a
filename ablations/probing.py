"""Budgets that only a measurement tells: the time and the memory of a run, from a few steps in a process of its own.

A probe runs alone with one thread. Runs share the machine and take longer, all of them alike, so a match by time is one
of ratios; the report compares what the finished runs have measured.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lit_transformers.config import Config, ConfigError, canonical_hash
from lit_transformers.files import write_json
from sweeps.share import cuda_devices

__all__ = ["Probed", "measured_spending"]

STEPS = "training.steps"
SECONDS = 300


class Probed(NamedTuple):
    """Seconds a step, and bytes."""

    seconds: float
    memory: float


def measured_spending(on: str, runner: str, run_key: Callable[[Any], str], kept: Path) -> Callable[[Config], float]:
    """The time (``on`` is "seconds") or the memory of a run, as a function of its config.

    Measurements are kept in the folder ``kept`` by key and machine. Raises ConfigError for a run that cannot be done.
    """

    def spent(config: Config) -> float:
        found = _probed(config.override({STEPS: 1}), runner, run_key, kept)
        steps = config.get(STEPS)
        return found.seconds * steps if on == "seconds" else found.memory

    return spent


def _probed(config: Config, runner: str, run_key: Callable[[Any], str], kept: Path) -> Probed:
    machine = canonical_hash([platform.machine(), os.cpu_count(), list(cuda_devices())])
    path = kept / f"{run_key(config)}-{machine}.json"
    with suppress(OSError, ValueError, TypeError):
        return Probed(**json.loads(path.read_text(encoding="utf-8")))
    found = _measure(config, runner)
    with suppress(OSError):  # what cannot be kept is measured again
        write_json(path, found._asdict())
    return found


def _measure(config: Config, runner: str) -> Probed:
    order = json.dumps({"runner": runner, "config": config.to_dict()})
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ask = [sys.executable, "-m", "ablations.probing"]
    try:
        done = subprocess.run(ask, input=order, capture_output=True, text=True, env=environment, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"a few steps of it took longer than {SECONDS} s; match on flops instead") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it was killed"])[-1]
        raise ConfigError(f"could not be measured: {last}")
    return Probed(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measures the run that standard input describes; the last line that is printed holds the result."""
    order = json.loads(sys.stdin.read())
    runner = importlib.import_module(order["runner"])
    prober = importlib.import_module(f"{order['runner'].rpartition('.')[0]}.probe")
    found = prober.probe(runner.RunConfig.from_dict(order["config"]))
    print(json.dumps(found._asdict()))


if __name__ == "__main__":
    main()
