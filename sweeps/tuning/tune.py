"""Tuning: every arm has its own search over the same space, with the same budget.

A trial is an ordinary run: it has a key and a directory, is handed out by the ledger, continues from its checkpoint,
and is read where it is finished already. Trials are selected by their metric on the validation split, with a separate
seed; the reported metric is measured on the test split with the study's seeds.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import optuna

from lit_transformers.config import Config, ConfigError, Plain, canonical_hash
from lit_transformers.records.files import CURVES, RECORD
from lit_transformers.records.measurement import SPLIT
from lit_transformers.runner import Runner, load_runner
from lit_transformers.space import Knob
from lit_transformers.training.search_pruning import BARS, Bars
from sweeps.launchers.local import Options, Summary
from sweeps.ledger.lock import locked
from sweeps.ledger.run_records import read_record
from sweeps.ledger.storage import SEARCH, StorageConnection, find_search_address, open_storage
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Row
from sweeps.survey import survey
from sweeps.tuning.search import Budget, Outcome, Search, Trial

__all__ = [
    "REPORTED_ON",
    "SEED",
    "SELECTED_ON",
    "FrontPoint",
    "SearchedArm",
    "TuningGoal",
    "TuningResult",
    "outcome_of",
    "ticket_of",
    "trial_config",
    "tune",
    "validations",
]

SELECTED_ON, REPORTED_ON = "validation", "test"
STEPS = "training.steps"
EVERY = "training.validate_every"
SEED = 1_000_000
"""The seed of every trial, far from those of a report, so that selection by chance does not bias the report."""
VALIDATIONS = 6
"""How often a trial is validated, where its study validates only at the end."""
LOCK_SECONDS = 60.0
PATIENCE = 300.0
"""Seconds that the database may be unavailable."""


class TuningGoal(NamedTuple):
    """The metric that decides, and whether it is minimized or maximized. costs: the names of costs of a record that are
    minimized with it, so that a search has a Pareto front in place of a best trial."""

    metric: str
    direction: Literal["minimize", "maximize"]
    costs: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchedArm:
    """An arm to tune: a run's config, and its search space. price: the tokens of a whole run; 0 for none counted."""

    name: str
    config: Config
    space: Mapping[str, Knob]
    price: int


class FrontPoint(NamedTuple):
    """A trial that no other trial of its arm beats in the metric and all costs."""

    values: dict[str, Plain]
    value: float
    costs: tuple[float, ...]


class TuningResult(NamedTuple):
    """The result of one arm's search. values: of its best trial, whose run is ``key``; None where none finished. front:
    of a search with costs, from the lowest cost on."""

    arm: str
    values: dict[str, Plain] | None
    value: float | None
    key: str | None
    trials: int
    pruned: int
    failed: int
    tokens: int
    front: tuple[FrontPoint, ...] = ()


Launch = Callable[[list[Row], Options], Summary]


def trial_config(config: Config, values: Mapping[str, Plain]) -> Config:
    """Returns the config of a trial: with these values and the trials' seed, evaluated on the validation split.

    Raises ConfigError where the data have no field for the split.
    """
    paths = dict(config.leaves())
    if SPLIT not in paths:
        raise ConfigError("data without this field cannot be tuned: selecting and reporting need a split each", SPLIT)
    changes: dict[str, Any] = {path: SEED for path in ("seed", "data.seed") if path in paths}
    if paths.get(EVERY, 0) is None:
        changes[EVERY] = max(1, config.get(STEPS) // VALIDATIONS)
    return config.override(changes | {SPLIT: SELECTED_ON} | dict(values))


def validations(config: Config) -> int:
    """Returns how often a trial of a config is validated."""
    every: int = trial_config(config, {}).get(EVERY)
    return int(config.get("training.steps")) // every


def tune(
    runs: Path, storage: str | None, study: str, arms: Sequence[SearchedArm], goal: TuningGoal, budget: Budget,
    options: Options, launch: Launch, *, prune: bool = True,
) -> tuple[list[TuningResult], int | None]:  # fmt: skip
    """Spends every arm's budget, round after round. Returns each arm's result, and the signal that stopped it, or None.

    A search that was stopped at any moment continues when it is called again. ``launch`` does the waiting rows.
    """
    runner = load_runner(options.runner)
    with _searches(runs, storage, study, arms, goal, runner) as (searches, connection):
        while True:
            with locked(runs / "tuning.lock", LOCK_SECONDS):
                rounds = {arm.name: connection.ask(_round_request(searches[arm.name], budget)) for arm in arms}
            proposed = [(arm, trial) for arm in arms for trial in rounds[arm.name]]
            if not proposed:
                return [_tuning_result(arm, searches[arm.name], goal) for arm in arms], None
            tickets = {(arm.name, trial.number): ticket_of(arm, trial, runner) for arm, trial in proposed}
            for arm, trial in proposed:
                directory = tickets[arm.name, trial.number].directory(runs)
                _set_bars(directory, searches[arm.name], trial, arm, goal, prune=prune)
            unique_tickets = {ticket.key: ticket for ticket in tickets.values()}
            rows, _ = survey(runs, list(unique_tickets.values()), goal.metric, retry_failed=options.retry_failed)
            summary = Summary(rows, None) if all(row.state.over for row in rows) else launch(rows, options)
            rows_by_key = {row.ticket.key: row for row in summary.rows}
            for arm, trial in proposed:
                row = rows_by_key[tickets[arm.name, trial.number].key]
                if row.state.over and row.state != State.STOPPED:
                    outcome = outcome_of(runs, row, goal, arm)
                    connection.ask(_outcome_report(searches[arm.name], trial, outcome))
            if summary.stopped_by is not None:
                return [_tuning_result(arm, searches[arm.name], goal) for arm in arms], summary.stopped_by


@contextmanager
def _searches(
    runs: Path, storage: str | None, study: str, arms: Sequence[SearchedArm], goal: TuningGoal, runner: Runner
) -> Iterator[tuple[dict[str, Search], StorageConnection]]:
    """Opens every arm's search in the database of searches; yields the searches by arm and the connection.

    The name of a search holds a hash of all that its numbers depend on except its budget, so that a change of the
    study, the space or the metric begins another one, and another number of ranks or loader processes does not.
    """
    address = find_search_address(storage, runs)
    runs.mkdir(parents=True, exist_ok=True)
    connection = StorageConnection(address, PATIENCE)
    opened_storage = connection.ask(lambda: open_storage(address))
    try:
        searches = {}
        directions: list[Literal["minimize", "maximize"]] = [goal.direction]
        directions += ["minimize" for _ in goal.costs]
        for arm in arms:
            identity = [
                _without(trial_config(arm.config, {}).to_dict(), runner.placement_fields),
                {path: repr(knob) for path, knob in arm.space.items()},
                [goal.metric, goal.direction, *goal.costs],
            ]
            name = f"{SEARCH} {study} {arm.name} {canonical_hash(identity, 12)}"
            optuna_study = connection.ask(lambda name=name: optuna.create_study(  # type: ignore[misc]
                study_name=name, storage=opened_storage.storage, directions=directions, load_if_exists=True
            ))  # fmt: skip
            searches[arm.name] = Search(optuna_study, arm.space, arm.price)
            with locked(runs / "tuning.lock", LOCK_SECONDS):
                searches[arm.name].begin(_own_values(arm))
        yield searches, connection
    finally:
        opened_storage.close()


def _without(config: dict[str, Plain], paths: Iterable[str]) -> dict[str, Plain]:
    """Returns a config without the fields at some paths."""
    for path in paths:
        *parts, name = path.split(".")
        part: Any = config
        for step in parts:
            part = part.get(step, {})
        part.pop(name, None)
    return config


def _own_values(arm: SearchedArm) -> dict[str, Plain]:
    """Returns the arm's own values, as far as its space contains them: the first trial is the arm as it is."""
    leaves = dict(arm.config.leaves())
    return {path: leaves[path] for path, knob in arm.space.items() if path in leaves and knob.holds(leaves[path])}


def _round_request(search: Search, budget: Budget) -> Callable[[], list[Trial]]:
    return lambda: search.round(budget)


def _outcome_report(search: Search, trial: Trial, outcome: Outcome) -> Callable[[], None]:
    return lambda: search.tell(trial.number, outcome)


def ticket_of(arm: SearchedArm, trial: Trial, runner: Runner) -> Ticket:
    """Returns the run of a trial, which says the values that it tries."""
    config = trial_config(arm.config, trial.values)
    levels = {path: str(value) for path, value in trial.values.items()}
    return Ticket(runner.run_key(config), f"{arm.name} #{trial.number}", SEED, config.to_dict(), levels)


def _set_bars(
    directory: Path, search: Search, trial: Trial, arm: SearchedArm, goal: TuningGoal, *, prune: bool
) -> None:
    """Writes the pruning thresholds to the run's directory, once: a resumed run has those that it began with.

    Without pruning, a run that was pruned before is to continue, so its record is removed.
    """
    if prune and not (directory / BARS).exists() and not (directory / RECORD).exists():
        by_step = search.bars(trial.number, arm.config.get(STEPS) or 0)
        if by_step:
            Bars(goal.metric, goal.direction, by_step).write(directory)
    elif not prune:
        (directory / BARS).unlink(missing_ok=True)
        record = read_record(directory).record
        if record is not None and record.outcome == "pruned":
            (directory / RECORD).unlink()


def outcome_of(runs: Path, row: Row, goal: TuningGoal, arm: SearchedArm) -> Outcome:
    """Returns the outcome of a trial from the files of its run. A pruned run costs the tokens it had read by then."""
    directory, curve = row.ticket.directory(runs), _curve(row.ticket.directory(runs) / CURVES, goal.metric)
    record = read_record(directory).record
    steps = arm.config.get(STEPS)
    share = record.measured.get("steps", steps) / steps if record and steps else 1.0
    known = [record.cost.get(name) if record else None for name in goal.costs]
    costs = tuple(math.nan if cost is None else float(cost) for cost in known)
    return Outcome(row.ticket.key, row.state.value, row.value, curve, round(arm.price * share), row.reason, costs)


def _curve(path: Path, metric: str) -> dict[int, float]:
    """Reads the metric by step, where it is a finite number; empty for a run without curves."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["name"] == metric]
    except FileNotFoundError:
        return {}
    return {int(row["step"]): float(row["value"]) for row in rows if math.isfinite(float(row["value"]))}


def _tuning_result(arm: SearchedArm, search: Search, goal: TuningGoal) -> TuningResult:
    outcomes, best = search.outcomes(), search.best()
    names = [outcome["outcome"] for _, outcome in outcomes]
    keys = {trial.number: outcome["key"] for trial, outcome in outcomes}
    return TuningResult(
        arm.name,
        best and best[0].values,
        best and best[1],
        best and keys[best[0].number],
        len(outcomes),
        names.count("pruned"),
        len(names) - names.count("pruned") - names.count("finished"),
        search.tokens(),
        tuple(FrontPoint(trial.values, value, tuple(costs)) for trial, (value, *costs) in search.front())
        if goal.costs
        else (),
    )
