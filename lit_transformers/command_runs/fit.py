"""Does a run of a command, from a config to a record, as ``lit_transformers.runs.fit`` does the library's."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from lightning.pytorch.loggers import Logger

from lit_transformers.command_runs.attempt import NumberPoint, Numbers, attempt, require_success, result_of
from lit_transformers.command_runs.config import CommandRunConfig
from lit_transformers.command_runs.keys import code_of_reading, run_key
from lit_transformers.command_runs.process import KILLED, CommandEnd
from lit_transformers.command_runs.short_run import UNKNOWN, rehearse
from lit_transformers.command_runs.source_folder import data_hash
from lit_transformers.config import Plain
from lit_transformers.records.cells import cell_of
from lit_transformers.records.files import CURVES, replace_file, write_json
from lit_transformers.records.measure import Measure
from lit_transformers.records.measurement import Measurement
from lit_transformers.records.record import REPEATS_WITHIN, VERSION, Record
from lit_transformers.runs.environment import environment
from lit_transformers.runs.fit import require_machine
from lit_transformers.runs.folder import Identity
from lit_transformers.runs.loggers import LoggerConfig
from lit_transformers.runs.recording import Results, recorded
from lit_transformers.runs.wandb_logging import WandbConfig, WandbRun
from lit_transformers.training.reporting import Progress, Report
from lit_transformers.training.search_pruning import Bars, Pruned
from lit_transformers.training.stopping import Interrupted, ProcessKilled, Stop

__all__ = ["fit"]

SPENT = "spent.json"
"""The file with the seconds that the earlier attempts of a resumed run took."""
REPORT_SECONDS = 0.2
FREE = ("search", "short", "budgets", "repeats_within", "resume", "folder.path", "training.device")
"""The fields in which a config may differ from the one that its folder holds."""


def fit(
    config: CommandRunConfig,
    directory: Path,
    report: Report | None = None,
    *,
    wandb_config: WandbConfig | None = None,
    logger_config: LoggerConfig | None = None,
) -> dict[str, Plain]:
    """Runs the command, and writes the record, and returns it as its file holds it. That of a finished run is read.

    An exit status other than 0 and a metric that never appeared are outcomes, not exceptions: "failed" with the reason.
    Raises ConfigError before anything starts, Interrupted after SIGTERM, once the command has ended, and ProcessKilled.
    """
    require_machine(config.training.device, 1, "")
    rehearse(config)
    key = run_key(config)

    def blank() -> Record:
        return Record(
            version=VERSION,
            key=key,
            outcome="failed",
            seed=config.seed,
            config=config.to_dict(),
            data={"name": ", ".join(config.data.files) or "of the command", "fingerprint": data_hash(config)},
            protocol=_protocol(config),
            measurement=_measurement(config),
            cost=UNKNOWN._asdict(),
            environment=environment(config.training.device, code_of_reading(), False),
        )

    def work(stopping: Stop, wandb_run: WandbRun | None, loggers: Sequence[Logger]) -> Results:
        follower = _Follower(config, directory, report, wandb_run, loggers)
        end, numbers = attempt(config, directory, stopping, follower.receive, torch.get_num_threads())
        if config.values.written_file is not None:
            follower.send(numbers.points)
        return _results(config, directory, end, numbers, follower)

    identity = Identity(config, key, key, code_of_reading(), FREE)
    return recorded(directory, identity, blank, tuple, work, wandb_config, logger_config)


class _Follower:
    """Follows a command: shows its numbers as they come, and ends it where it lags behind others of its search."""

    def __init__(
        self,
        config: CommandRunConfig,
        directory: Path,
        report: Report | None,
        wandb_run: WandbRun | None,
        loggers: Sequence[Logger],
    ) -> None:
        self.config, self.report, self.wandb_run, self.loggers = config, report, wandb_run, loggers
        self.bars = Bars.read(directory)
        self.best: float | None = None
        self.end: Pruned | None = None
        self.latest: dict[str, float] = {}
        self.started, self.reported_at = time.monotonic(), -math.inf

    def receive(self, points: Sequence[NumberPoint]) -> bool:
        """Takes new numbers, and returns whether the command shall end."""
        self.latest |= {point.name: point.value for point in points}
        self.send(points)
        self._show(points[-1].step)
        for point in points:
            if self.end is None and self.bars is not None and point.name == self.bars.metric:
                self.best, reason = self.bars.judge(point.step, point.value, self.best)
                steps = self.config.training.steps or point.step
                if reason and point.step < steps:
                    self.end = Pruned(point.step, steps, dict(self.latest), reason)
        return self.end is not None

    def send(self, points: Sequence[NumberPoint]) -> None:
        """Sends points to loggers and to Weights & Biases."""
        by_step: dict[int, dict[str, float]] = {}
        for point in points:
            by_step.setdefault(point.step, {})[point.name] = point.value
        for step, values in sorted(by_step.items()):
            for logger in self.loggers:
                logger.log_metrics(values, step)
            if self.wandb_run is not None:
                self.wandb_run.log(values, step)

    def _show(self, step: int) -> None:
        now = time.monotonic()
        if self.report is None or now - self.reported_at < REPORT_SECONDS:
            return
        self.reported_at = now
        steps = self.config.training.steps
        left = None if not steps or not step else (now - self.started) / step * max(0, steps - step)
        value = self.latest.get(next(iter(self.config.metrics)), math.nan)
        self.report(Progress(step, steps or step, value, dict(self.latest), left, "fit"))


def _results(
    config: CommandRunConfig, directory: Path, end: CommandEnd, numbers: Numbers, follower: _Follower
) -> Results:
    """Returns the results of a run. Raises Interrupted, Pruned, Diverged, ProcessKilled and CommandFailedError."""
    earlier = _spent(directory) if config.resume == "folder" else 0.0
    seconds = earlier + end.seconds
    was_killed = end.status in KILLED and end.stopped_by is None
    if end.stopped_by == "signal" or was_killed:
        write_json(directory / SPENT, {"seconds": seconds})
    if was_killed:
        raise ProcessKilled("its command was killed (signal 9)")
    if end.stopped_by == "signal":
        way_on = "in its old folder" if config.resume == "folder" else "anew"
        raise Interrupted(f"the command was stopped after {end.seconds:.0f} s; run again to begin {way_on}")
    _write_curves(directory / CURVES, numbers)
    if follower.end is not None:
        raise follower.end
    require_success(end, numbers, directory)
    metrics = result_of(config, numbers)
    steps = max((point.step for point in numbers.points), default=0)
    measured: dict[str, Plain] = {
        "seconds": seconds,
        "training_seconds": seconds,
        "steps": steps,
        "steps_per_second": steps / seconds,
        "peak_memory_bytes": end.peak_bytes,
    }
    cost: dict[str, Plain] = UNKNOWN._asdict()
    for budget, name in config.budgets.items():
        cost[{"flops": "train_flops"}.get(budget, budget)] = metrics.get(name)
    if isinstance(tokens := cost["tokens"], float):
        measured["tokens_per_second"] = tokens / seconds
    return Results(metrics, measured, {}, cost)


def _protocol(config: CommandRunConfig) -> dict[str, Plain]:
    """Returns how the results of a run are read, and how far they repeat, for the record."""
    chosen = {name: str(config.choose.get(name, "last")) for name in config.metrics}
    within = {REPEATS_WITHIN: config.repeats_within} if config.repeats_within else {}
    return {"value over steps": chosen, **within}


def _measurement(config: CommandRunConfig) -> Measurement | None:
    """Returns the measurement of the metrics, with their split; None where the config states no split."""
    if config.data.evaluation is None:
        return None
    measures = {name: Measure("run", goal) for name, goal in config.metrics.items()}
    return Measurement.of(config.data.evaluation.split, None, None, measures)


def _write_curves(path: Path, numbers: Numbers) -> None:
    """Writes the numbers over steps, as every run does: step, tokens, name, value; tokens are not known by step."""

    def write(fresh: Path) -> None:
        with fresh.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["step", "tokens", "name", "value"])
            for name in numbers.names:
                rows.writerows((point.step, 0, cell_of(name), repr(point.value)) for point in numbers.of(name))

    replace_file(path, write)


def _spent(directory: Path) -> float:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return float(json.loads((directory / SPENT).read_text(encoding="utf-8"))["seconds"])
    return 0.0
