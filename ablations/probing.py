"""Measures the time and the memory of a run, which cannot be computed, by a few steps in a separate process.

A probe runs by itself with one thread. Runs share the machine and all take longer by about the same factor, so a match
by time is one of ratios; the report compares the measurements of the finished runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import lit_transformers.startup.search_path  # noqa: F401  # isort: split
from lit_transformers.config import Config, ConfigError, Plain, canonical_hash
from lit_transformers.machine.processor import processor, processor_model
from lit_transformers.records.files import write_json
from lit_transformers.runner import load_runner
from lit_transformers.startup.quick_imports import quick_imports
from sweeps.launchers.devices import cuda_models

__all__ = ["ProbedConfig", "measured_on", "measured_spending"]

STEPS = "training.steps"
SECONDS = 300


class ProbedConfig(NamedTuple):
    """The measurement of a config: seconds per step, and peak memory in bytes."""

    seconds: float
    memory: float


def measured_spending(on: str, runner: str, folder: Path) -> Callable[[Config], float]:
    """Returns a function from a config to its time in seconds (``on`` is "seconds") or its memory in bytes.

    Measurements are stored in ``folder`` by key and by the hardware that they were made on. Raises ConfigError for a
    run that cannot be done.
    """

    def spending(config: Config) -> float:
        measurement = _probe(config.override({STEPS: 1}), runner, folder)
        steps = config.get(STEPS)
        return measurement.seconds * steps if on == "seconds" else measurement.memory

    return spending


def measured_on() -> list[Plain]:
    """Returns the hardware that time and memory depend on besides the config: the models of the processor and of the
    CUDA devices."""
    return [processor(), list(processor_model()), list(cuda_models())]


def _probe(config: Config, runner: str, folder: Path) -> ProbedConfig:
    # The key leaves out on how many ranks a run is done, which its time depends on.
    place = canonical_hash([measured_on(), config.to_dict()])
    path = folder / f"{load_runner(runner).run_key(config)}-{place}.json"
    with suppress(OSError, ValueError, TypeError):
        return ProbedConfig(**json.loads(path.read_text(encoding="utf-8")))
    measurement = _measure(config, runner)
    with suppress(OSError):  # a measurement that cannot be written is made again
        write_json(path, measurement._asdict())
    return measurement


def _measure(config: Config, runner: str) -> ProbedConfig:
    request = json.dumps({"runner": runner, "config": config.to_dict()})
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "ablations.probing"]
    try:
        process = subprocess.run(
            command, input=request, capture_output=True, text=True, env=environment, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"a few steps of it took longer than {SECONDS} s; match on flops instead") from None
    if process.returncode:
        last_line = (process.stderr.strip().splitlines() or ["it was killed"])[-1]
        raise ConfigError(f"could not be measured: {last_line}")
    return ProbedConfig(**json.loads(process.stdout.splitlines()[-1]))


def main() -> None:
    """Measures the run that standard input describes in JSON, and prints the result as the last line."""
    request = json.loads(sys.stdin.read())
    with quick_imports():
        runner = load_runner(request["runner"])
    measurement = runner.probe(runner.config.from_dict(request["config"]))
    print(json.dumps(measurement._asdict()))


if __name__ == "__main__":
    main()
