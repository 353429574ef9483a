"""The trials of a search that something else has chosen, such as a W&B sweep, read from the folder of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lit_transformers.config import ConfigError, Plain
from lit_transformers.plain_yaml import read_yaml
from lit_transformers.records.files import RUN
from lit_transformers.runner import Runner
from lit_transformers.space import exists
from sweeps.ledger.lock import is_locked
from sweeps.ledger.run_records import read_record
from sweeps.ledger.ticket import State
from sweeps.live import Row
from sweeps.survey import close
from sweeps.tuning.search import Outcome, Trial
from sweeps.tuning.tune import SEED, SearchedArm, TuningGoal, TuningResult, outcome_of, ticket_of

__all__ = ["recorded_results"]


class RecordedRun(NamedTuple):
    """A run of the folder: its config as plain data, and when it began, as far as its files tell."""

    directory: Path
    config: Mapping[str, Any]
    began: float


def recorded_results(
    runs: Path, arms: Sequence[SearchedArm], goal: TuningGoal, runner: Runner, trials: int | None = None
) -> tuple[list[TuningResult], int]:
    """Returns the result of each arm by the trials in the folder of runs, and how many of each count.

    A trial is a run whose config is that of its arm with values of the space, on today's code and data. Every arm has
    the same number of trials, the first ones that began: ``trials``, or as many as the arm has that has fewest. A run
    without a record was stopped from outside, as W&B's early termination does, and counts as pruned.
    Raises ConfigError for an arm without trials or with fewer than asked for, and where a trial is still running.
    """
    recorded_runs = _runs(runs)
    by_arm = {arm.name: _trials(runs, recorded_runs, arm, runner) for arm in arms}
    counts = {name: len(rows) for name, rows in by_arm.items()}
    fewest = min(counts, key=lambda name: counts[name])
    if counts[fewest] < (trials or 1):
        reason = f"arm {fewest!r} has {counts[fewest]} trials in {runs}; its agents need this folder as --runs"
        raise ConfigError(f"{reason}, and the options of this command", "--from-wandb")
    count = trials or counts[fewest]
    return [_result(runs, arm, by_arm[arm.name][:count], goal) for arm in arms], count


def _runs(runs: Path) -> list[RecordedRun]:
    """Returns the runs of a folder in the order in which they began."""
    recorded_runs = []
    for path in runs.glob("*/"):
        record = read_record(path).record
        run_file = path / RUN
        began = run_file.stat().st_mtime if run_file.exists() else 0.0
        if record is not None:
            recorded_runs.append(RecordedRun(path, record.config, began))
        elif run_file.exists():
            recorded_runs.append(RecordedRun(path, read_yaml(run_file.read_text(encoding="utf-8")), began))
    return sorted(recorded_runs, key=lambda run: (run.began, run.directory.name))


def _trials(
    runs: Path, recorded_runs: Sequence[RecordedRun], arm: SearchedArm, runner: Runner
) -> list[tuple[Trial, Row]]:
    """Returns the runs that are trials of an arm, in the order in which they began."""
    trials: list[tuple[Trial, Row]] = []
    for run in recorded_runs:
        if run.config.get("seed", SEED) != SEED:  # a run of a report
            continue
        values: dict[str, Plain] = {}
        for path, knob in arm.space.items():
            if exists(knob, values):
                values[path] = _value(run.config, path)
        if not all(arm.space[path].holds(value) for path, value in values.items()):
            continue
        trial = Trial(len(trials), values)
        row = Row(ticket_of(arm, trial, runner))
        if row.ticket.key != run.directory.name:  # of another arm, or of other code or data
            continue
        if is_locked(run.directory / "lock"):
            raise ConfigError(f"a trial of arm {arm.name!r} is still running; wait for the agents", str(run.directory))
        trials.append((trial, row))
    return trials


def _value(config: Mapping[str, Any], path: str) -> Plain:
    """Returns the value at a dotted path of plain data, of a part its kind; None where there is none."""
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value.get("kind") if isinstance(value, Mapping) else value


def _result(runs: Path, arm: SearchedArm, trials: Sequence[tuple[Trial, Row]], goal: TuningGoal) -> TuningResult:
    outcomes = [(trial, _outcome(runs, row, goal, arm)) for trial, row in trials]
    ended = [outcome.outcome for _, outcome in outcomes]
    sign = 1 if goal.direction == "minimize" else -1
    finished = [
        (sign * outcome.value, trial.number, trial, outcome)
        for trial, outcome in outcomes
        if outcome.outcome == "finished" and outcome.value is not None and math.isfinite(outcome.value)
    ]
    best = min(finished, key=lambda one: one[:2]) if finished else None
    return TuningResult(
        arm.name,
        best and best[2].values,
        best and best[3].value,
        best and best[3].key,
        len(outcomes),
        ended.count("pruned"),
        len(ended) - ended.count("pruned") - ended.count("finished"),
        sum(outcome.tokens for _, outcome in outcomes),
    )


def _outcome(runs: Path, row: Row, goal: TuningGoal, arm: SearchedArm) -> Outcome:
    record = read_record(row.ticket.directory(runs)).record
    if record is None:
        row.state = State.PRUNED
        return Outcome(row.ticket.key, "pruned", None, {}, arm.price)
    close(row, record, goal.metric)
    return outcome_of(runs, row, goal, arm)
