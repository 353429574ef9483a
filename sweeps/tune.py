"""Tuning: every arm has a search of its own over the same space, with the same budget.

A trial is an ordinary run: it has a key and a directory, is handed out by the ledger, continues from its checkpoint,
and is read where it is finished already. Trials are chosen by what they reach on the validation split, with a seed of
their own; what is reported is measured elsewhere, on the test split and with the study's seeds.
"""

from __future__ import annotations

import csv
import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

import optuna

from lit_transformers.config import Config, ConfigError, Plain, canonical_hash
from lit_transformers.files import CURVES, RECORD
from lit_transformers.pruning import BARS, Bars
from lit_transformers.space import Knob
from sweeps.launch import Options, Summary
from sweeps.live import Row
from sweeps.lock import locked
from sweeps.records import read_record
from sweeps.search import Budget, Outcome, Search, Trial
from sweeps.storage import Line, find_address, open_storage
from sweeps.survey import survey
from sweeps.ticket import State, Ticket

__all__ = ["REPORTED_ON", "SEED", "SELECTED_ON", "SPLIT", "Arm", "Found", "Goal", "trial_config", "tune"]

SELECTED_ON, REPORTED_ON = "validation", "test"
SPLIT = "data.evaluation.split"
EVERY = "training.validate_every"
SEED = 1_000_000
"""The seed of every trial: far from those of a report, which must not hold the luck that a trial was chosen for."""
VALIDATIONS = 6
"""How often a trial is validated, where its study validates at the end alone."""
LOCK_SECONDS = 60.0
PATIENCE = 300.0
"""Seconds that the database may be away."""


class Goal(NamedTuple):
    """The metric that decides, and whether it is minimized or maximized."""

    metric: str
    direction: Literal["minimize", "maximize"]


@dataclass(frozen=True)
class Arm:
    """What is tuned: a run's config, and what may change in it. price: tokens of a whole run."""

    name: str
    config: Config
    space: Mapping[str, Knob]
    price: int


class Found(NamedTuple):
    """What the search of one arm came to. values: of its best trial, whose run is ``key``; None where none finished."""

    arm: str
    values: dict[str, Plain] | None
    value: float | None
    key: str | None
    trials: int
    pruned: int
    failed: int
    tokens: int


class Keys(Protocol):
    """What the module of a RunConfig offers here."""

    RunConfig: type[Config]

    def run_key(self, config: Any) -> str: ...


Launch = Callable[[list[Row], Options], Summary]


def trial_config(config: Config, values: Mapping[str, Plain]) -> Config:
    """The run of a trial: with these values, the trials' seed, and measured on the split that selects.

    Raises ConfigError where the data have no splits to choose from.
    """
    paths = dict(config.leaves())
    if SPLIT not in paths:
        raise ConfigError("data without this field cannot be tuned: selecting and reporting need a split each", SPLIT)
    changes: dict[str, Any] = {path: SEED for path in ("seed", "data.seed") if path in paths}
    if paths.get(EVERY, 0) is None:
        changes[EVERY] = max(1, config.get("training.steps") // VALIDATIONS)
    return config.override(changes | {SPLIT: SELECTED_ON} | dict(values))


def tune(
    runs: Path, storage: str | None, study: str, arms: Sequence[Arm], goal: Goal, budget: Budget,
    options: Options, launch: Launch, *, prune: bool = True,
) -> tuple[list[Found], int | None]:  # fmt: skip
    """Spends every arm's budget, round after round; what each came to, and the signal that stopped it, if one did.

    Stopped at any moment and called again it goes on. ``launch`` does the rows that wait.
    """
    runner = cast(Keys, importlib.import_module(options.runner))
    with _searches(runs, storage, study, arms, goal) as (searches, line):
        while True:
            with locked(runs / "tuning.lock", LOCK_SECONDS):
                rounds = {arm.name: line.ask(_asking(searches[arm.name], budget)) for arm in arms}
            asked = [(arm, trial) for arm in arms for trial in rounds[arm.name]]
            if not asked:
                return [_found(arm, searches[arm.name]) for arm in arms], None
            tickets = {(arm.name, trial.number): _ticket(arm, trial, runner) for arm, trial in asked}
            for arm, trial in asked:
                directory = tickets[arm.name, trial.number].directory(runs)
                _set_bars(directory, searches[arm.name], trial, arm, goal, prune=prune)
            once = {ticket.key: ticket for ticket in tickets.values()}
            rows, _ = survey(runs, list(once.values()), goal.metric, retry_failed=options.retry_failed)
            summary = Summary(rows, None) if all(row.state.over for row in rows) else launch(rows, options)
            over = {row.ticket.key: row for row in summary.rows}
            for arm, trial in asked:
                row = over[tickets[arm.name, trial.number].key]
                if row.state.over and row.state != State.STOPPED:
                    outcome = _outcome(runs, row, goal, arm)
                    line.ask(_telling(searches[arm.name], trial, outcome))
            if summary.stopped_by is not None:
                return [_found(arm, searches[arm.name]) for arm in arms], summary.stopped_by


@contextmanager
def _searches(
    runs: Path, storage: str | None, study: str, arms: Sequence[Arm], goal: Goal
) -> Iterator[tuple[dict[str, Search], Line]]:
    """Every arm's search in the ledger's database. Its name says all that it depends on but its budget, so that a
    change of the study, the space or the metric begins another one."""
    address = find_address(storage, runs)
    runs.mkdir(parents=True, exist_ok=True)
    line = Line(address, PATIENCE)
    opened = line.ask(lambda: open_storage(address))
    try:
        found = {}
        for arm in arms:
            depends = [trial_config(arm.config, {}).to_dict(), {p: repr(k) for p, k in arm.space.items()}, list(goal)]
            name = f"tune {study} {arm.name} {canonical_hash(depends, 12)}"
            made = line.ask(lambda name=name: optuna.create_study(  # type: ignore[misc]
                study_name=name, storage=opened.storage, direction=goal.direction, load_if_exists=True
            ))  # fmt: skip
            found[arm.name] = Search(made, arm.space, arm.price)
            with locked(runs / "tuning.lock", LOCK_SECONDS):
                found[arm.name].begin(_own_values(arm))
        yield found, line
    finally:
        opened.close()


def _own_values(arm: Arm) -> dict[str, Plain]:
    """What the arm has already, as far as its space holds it: the first trial is the arm as it stands."""
    return {path: arm.config.get(path) for path, knob in arm.space.items() if knob.holds(arm.config.get(path))}


def _asking(search: Search, budget: Budget) -> Callable[[], list[Trial]]:
    return lambda: search.round(budget)


def _telling(search: Search, trial: Trial, outcome: Outcome) -> Callable[[], None]:
    return lambda: search.tell(trial.number, outcome)


def _ticket(arm: Arm, trial: Trial, runner: Keys) -> Ticket:
    config = trial_config(arm.config, trial.values)
    return Ticket(runner.run_key(config), f"{arm.name} #{trial.number}", SEED, config.to_dict())


def _set_bars(directory: Path, search: Search, trial: Trial, arm: Arm, goal: Goal, *, prune: bool) -> None:
    """Leaves what ends the run early in its directory, once: a run that goes on has the bars that it began with.

    Without pruning, a run that was ended so before is to go on, so its record is taken back.
    """
    if prune and not (directory / BARS).exists() and not (directory / RECORD).exists():
        by_step = search.bars(trial.number, arm.config.get("training.steps"))
        if by_step:
            Bars(goal.metric, goal.direction, by_step).write(directory)
    elif not prune:
        (directory / BARS).unlink(missing_ok=True)
        record = read_record(directory).record
        if record is not None and record["outcome"] == "pruned":
            (directory / RECORD).unlink()


def _outcome(runs: Path, row: Row, goal: Goal, arm: Arm) -> Outcome:
    """What became of a trial, by the files of its run. A run that was ended early cost what it had read by then."""
    directory, curve = row.ticket.directory(runs), _curve(row.ticket.directory(runs) / CURVES, goal.metric)
    record = read_record(directory).record or {}
    steps = arm.config.get("training.steps")
    share = record.get("measured", {}).get("steps", steps) / steps
    return Outcome(row.ticket.key, row.state.value, row.value, curve, round(arm.price * share), row.reason)


def _curve(path: Path, metric: str) -> dict[int, float]:
    """The metric by step, where it is a number; empty for a run that left no curve."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["name"] == metric]
    except FileNotFoundError:
        return {}
    return {int(row["step"]): float(row["value"]) for row in rows if math.isfinite(float(row["value"]))}


def _found(arm: Arm, search: Search) -> Found:
    told, best = search.outcomes(), search.best()
    kinds = [about["outcome"] for _, about in told]
    keys = {trial.number: about["key"] for trial, about in told}
    return Found(
        arm.name,
        best and best[0].values,
        best and best[1],
        best and keys[best[0].number],
        len(told),
        kinds.count("pruned"),
        len(kinds) - kinds.count("pruned") - kinds.count("finished"),
        search.tokens(),
    )
