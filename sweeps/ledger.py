"""The ledger: which run is handed out to whom, by an Optuna study in a relational database.

One trial is one attempt at one run. A run's newest trial says where it stands: waiting, running, or over. Taking a
trial is atomic in the database, so two commands, on one machine or on many, never take the same one. An owner that
dies is noticed by its process id on the same machine, by its missing heartbeat elsewhere; its trial fails and a new
one waits. The records on disk are the truth: a ledger that is lost or damaged is built again from them.
"""

from __future__ import annotations

import math
import os
import socket
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import optuna
import psutil
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from sweeps.lock import locked
from sweeps.records import set_aside
from sweeps.ticket import Ticket

__all__ = ["Ending", "Ledger", "LedgerError"]

STUDY = "runs"
LOCK_SECONDS = 60
"""How long a writer waits for another one's transaction on SQLite."""

_STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED}


class LedgerError(ValueError):
    """The database cannot be used; the message says which and what to do."""


class Ending(NamedTuple):
    """How a run ended, as its record tells."""

    ticket: Ticket
    outcome: str
    reason: str | None
    value: float | None


class Ledger:
    """Hands out runs. Only the parent process of a command writes to it, so training never waits for a database."""

    def __init__(self, runs: Path, url: str | None = None, heartbeat: int = 10, grace: int = 60) -> None:
        """``runs`` holds the records and, unless ``url`` names another database, ``ledger.db``. Times in seconds."""
        self.runs, self.heartbeat, self.grace = runs, heartbeat, grace
        self.notes: list[str] = []
        self._path = None if url else runs / "ledger.db"
        self._url = url or f"sqlite:///{(runs / 'ledger.db').resolve()}"
        runs.mkdir(parents=True, exist_ok=True)
        with self._alone():
            self._open()

    def close(self) -> None:
        """Lets go of the database."""
        self._rows.remove_session()
        self._rows.engine.dispose()

    def submit(self, tickets: Iterable[Ticket]) -> None:
        """Makes one trial wait for each run that has none waiting or running."""
        with self._alone(), self._explained():
            newest = self._newest()
            for ticket in tickets:
                trial = newest.get(ticket.key)
                if trial is None or trial.state.is_finished():
                    self._study.enqueue_trial({}, user_attrs=ticket.labels())

    def claim(self, key: str) -> int | None:
        """Takes the waiting trial of a run and returns its id; None where somebody else has it."""
        with self._explained():
            trial = self._newest().get(key)
            if trial is None or trial.state != TrialState.WAITING:
                return None
            try:
                taken = self._rows.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
            except UpdateFinishedTrialError:
                return None
            if not taken:
                return None
            self._rows.set_trial_user_attr(trial._trial_id, "owner", _this_process())
            self._rows.record_heartbeat(trial._trial_id)
            return trial._trial_id

    def beat(self, claims: Iterable[int]) -> None:
        """Says that the owner of these trials lives."""
        with self._explained():
            for claim in claims:
                self._rows.record_heartbeat(claim)

    def settle(self, claim: int, outcome: str, reason: str | None = None, value: float | None = None) -> None:
        """Closes a trial with how its run ended; ``value`` is the study's metric."""
        values = [value] if _is_number(value) else None
        with self._explained(), suppress(UpdateFinishedTrialError):  # a slow owner that was thought dead
            self._rows.set_trial_user_attr(claim, "outcome", outcome)
            if reason:
                self._rows.set_trial_user_attr(claim, "reason", reason)
            self._rows.set_trial_state_values(claim, _STATES.get(outcome, TrialState.FAIL), values)

    def release(self, claim: int, reason: str) -> None:
        """Gives a trial back unfinished: it ends, and a new one waits for the same run."""
        with self._alone(), self._explained():
            trial = self._rows.get_trial(claim)
            self.settle(claim, "stopped", reason)
            if self._newest()[trial.user_attrs["key"]]._trial_id == claim:  # else it was given to another already
                self._enqueue_again(trial.user_attrs)

    def reap(self) -> list[str]:
        """Gives back the trials of owners that died; returns their runs' keys."""
        with self._alone(), self._explained():
            lost = [
                trial for trial in self._newest().values() if trial.state == TrialState.RUNNING and self._is_lost(trial)
            ]
            for trial in lost:
                self.settle(trial._trial_id, "stopped", "its process died")
                self._enqueue_again(trial.user_attrs)
            before = {trial._trial_id for trial in self._trials()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                fail_stale_trials(self._study)
            stale = [trial for trial in self._trials() if trial._trial_id not in before]
            return [trial.user_attrs["key"] for trial in (*lost, *stale)]

    def attempts(self, key: str) -> int:
        """How often the run was taken so far."""
        with self._explained():
            mine = [trial for trial in self._trials() if trial.user_attrs.get("key") == key]
        return sum(trial.state != TrialState.WAITING for trial in mine)

    def enter(self, endings: Iterable[Ending]) -> None:
        """Notes runs that ended without this ledger: another one handed them out, or they were run by themselves."""
        with self._alone(), self._explained():
            known = self._newest()
            for ending in endings:
                if ending.ticket.key not in known:
                    self._study.add_trial(_closed_trial(ending))

    def is_over(self, key: str) -> bool:
        """Whether the run's newest trial has ended, so that nobody is at it and nobody will be."""
        with self._explained():
            trial = self._newest().get(key)
        return trial is None or trial.state.is_finished()

    def _trials(self) -> Sequence[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _newest(self) -> dict[str, FrozenTrial]:
        """The newest trial of every run."""
        return {trial.user_attrs["key"]: trial for trial in self._trials() if "key" in trial.user_attrs}

    def _enqueue_again(self, labels: dict[str, Any]) -> None:
        self._study.enqueue_trial({}, user_attrs={name: labels[name] for name in ("key", "arm", "seed")})

    def _is_lost(self, trial: FrozenTrial) -> bool:
        """Whether the owner is known to be dead: it ran on this machine and does no more, or never said who it is."""
        owner = trial.user_attrs.get("owner")
        if owner is None:
            begun = trial.datetime_start or datetime.now()
            return (datetime.now() - begun).total_seconds() > self.grace
        if owner["host"] != socket.gethostname():
            return False
        try:
            return bool(psutil.Process(owner["pid"]).create_time() != owner["born"])
        except psutil.NoSuchProcess:
            return True

    def _open(self) -> None:
        if self._path and (fault := _damage(self._path)):
            self._start_anew(fault)
        try:
            self._connect()
        except RuntimeError as error:  # tables of an incompatible version of Optuna
            if not self._path:
                raise LedgerError(f"ledger: cannot be used: {error}") from None
            self._start_anew(str(error).splitlines()[0])
            self._connect()

    def _start_anew(self, fault: str) -> None:
        assert self._path
        for companion in ("-journal", "-wal", "-shm"):
            Path(f"{self._path}{companion}").unlink(missing_ok=True)
        moved = set_aside(self._path)
        self.notes.append(f"{self._path}: {fault}; moved to {moved.name} and built again from the records")

    def _connect(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        arguments = (
            {"connect_args": {"timeout": LOCK_SECONDS}} if self._url.startswith("sqlite") else {"pool_pre_ping": True}
        )
        with warnings.catch_warnings(), self._explained():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self._rows = RDBStorage(
                self._url,
                engine_kwargs=arguments,
                heartbeat_interval=self.heartbeat,
                grace_period=self.grace,
                heartbeat_stale_trial_callback=lambda study, trial: self._enqueue_again(trial.user_attrs),
            )
            self._study = optuna.create_study(study_name=STUDY, storage=self._rows, load_if_exists=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Looking and then entering must be one step, or two commands enter the same run twice."""
        with locked(self.runs / "ledger.lock", patience=LOCK_SECONDS):
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (StorageInternalError, SQLAlchemyError, ImportError) as error:  # ImportError: no driver for it
            raise LedgerError(
                f"ledger {self._path or 'database'}: {_cause(error)}; the records are safe, run again"
            ) from None


def _cause(error: BaseException) -> str:
    """The innermost message: Optuna's own hides the database's."""
    while error.__cause__:
        error = error.__cause__
    return str(error).splitlines()[0]


def _damage(path: Path) -> str | None:
    """What is wrong with an SQLite file; None for a sound or missing one."""
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as database:
            found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError as error:
        raise LedgerError(f"ledger {path}: {error}") from None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if found == "ok" else str(found)


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _closed_trial(ending: Ending) -> FrozenTrial:
    """A trial that is over. Optuna wants a number of every complete one, so one without counts as failed there."""
    state = _STATES.get(ending.outcome, TrialState.FAIL)
    value = ending.value if state == TrialState.COMPLETE and _is_number(ending.value) else None
    told = {"outcome": ending.outcome} | ({"reason": ending.reason} if ending.reason else {})
    return create_trial(
        state=TrialState.FAIL if state == TrialState.COMPLETE and value is None else state,
        value=value,
        user_attrs=ending.ticket.labels() | told,
    )


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": psutil.Process().create_time()}
