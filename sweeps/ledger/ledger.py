"""The ledger: which worker holds which run, by an Optuna study in a database that many machines may share.

One trial is one attempt at one run, created by the worker that claims it. Trials are numbered in the order in which
they appear, so of two workers that claim one run at the same moment the lower number has it and the other withdraws: a
storage only has to add and to read, and SQLite, PostgreSQL and the proxy work in the same way. A dead owner is detected
by its process id on the same machine and by missing heartbeats elsewhere; its trial ends, and the run is free. The
records on disk are authoritative: a ledger that is lost or damaged is rebuilt from them.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeGuard, TypeVar
from uuid import uuid4

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from lit_transformers.records.files import set_aside
from sweeps.ledger.leases import Leases
from sweeps.ledger.lock import locked
from sweeps.ledger.owner import Owner, identify, machine, name_folder
from sweeps.ledger.storage import (
    LOCK_SECONDS,
    LedgerError,
    StorageConnection,
    damage,
    find_address,
    open_storage,
    trial_id,
)
from sweeps.ledger.ticket import Ticket
from sweeps.object_store import store_of

__all__ = ["DISK_SECONDS", "ActiveRun", "EndedRun", "Ending", "Ledger", "LedgerError", "Pulse"]

STUDY = "attempts"
RUN, PULSE, END = "run", "pulse", "end"
"""The attributes of a trial. They are few, since each costs a statement or two."""
LOOK_SECONDS = 0.4
"""How old the cached attempts may be where they only serve to skip runs that are claimed already."""
DISK_SECONDS = 60.0
"""How long a network disk may take to show what another machine has written."""

_STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
_RECORDED = ("finished", "pruned", "invalid")
"""Outcomes after which a run is not done again."""

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Ending(NamedTuple):
    """How a run ended according to its record."""

    ticket: Ticket
    outcome: str
    reason: str | None
    value: float | None


class Pulse(NamedTuple):
    """A heartbeat of a run's owner, with the progress of the run."""

    phase: str = "starting"
    step: int = 0
    steps: int = 0
    seconds_left: float | None = None


class ActiveRun(NamedTuple):
    """A run that a worker holds according to the ledger; times are in seconds since 1970 by the owner's clock."""

    key: str
    arm: str
    seed: int
    study: str
    host: str
    process: int
    since: float
    last_pulse: float
    pulse: Pulse
    attempts: int


class EndedRun(NamedTuple):
    """A run that ended where this machine cannot read its record."""

    outcome: str
    reason: str
    value: float | None


class _LastPulse(NamedTuple):
    """The last pulse of an owner, when it was read, and for how many seconds it has been the same."""

    pulse: Any
    checked_at: float
    silent_seconds: float


def _retrying(method: Callable[Concatenate[Ledger, Given], Answer]) -> Callable[Concatenate[Ledger, Given], Answer]:
    """Repeats the whole method while the storage is unavailable; each method may safely be repeated."""

    @wraps(method)
    def retried(self: Ledger, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        return self._connection.ask(lambda: method(self, *args, **kwargs))

    return retried


class Ledger:
    """Gives runs to workers. Only a command's parent process writes to it, so training never waits for a database."""

    def __init__(
        self, runs: Path, url: str | None = None, heartbeat: int = 10, grace: int = 60, patience: float = 300.0
    ) -> None:
        """``runs`` holds the records and, unless ``url`` names another database, ``ledger.db``. Times in seconds.

        grace: after how long without a pulse an owner counts as dead; patience: how long a server may be unavailable.
        """
        self.runs, self.heartbeat, self.grace = runs, heartbeat, grace
        self.notes: list[str] = []
        self._address = find_address(url, runs)
        self._connection = StorageConnection(self._address, patience)
        runs.mkdir(parents=True, exist_ok=True)
        self._identity = identify(name_folder(runs), runs, token=uuid4().hex)
        store = store_of(runs)
        self._leases = None if store is None else Leases(store, self._identity, heartbeat, grace)
        self._claims: dict[int, str] = {}
        self._last_pulses: dict[int, _LastPulse] = {}
        self._first_noticed: dict[int, float] = {}
        self._cached_at, self._attempts_cache = -math.inf, dict[str, list[FrozenTrial]]()
        self._ended, self._ended_numbers = dict[str, list[FrozenTrial]](), set[int]()
        self._open()

    def attend(self, say: Callable[[str], None], wanted: Callable[[], bool]) -> None:
        """Sets the function that prints messages about waiting for a server, and the test whether to go on waiting."""
        self._connection.say, self._connection.wanted = say, wanted

    def close(self) -> None:
        """Closes the connection to the database."""
        if self._leases is not None:
            self._leases.close()
        self._close_storage()

    @_retrying
    def claim(self, ticket: Ticket, study: str = "") -> int | None:
        """Claims a run and returns its trial's id; None where another worker holds it, or ended it out of sight."""
        attempts = self._attempts_of(ticket.key, LOOK_SECONDS)
        if self._is_taken(attempts):
            return None
        if self._leases is not None and not self._leases.take(ticket.key, self._connection.say):
            return None
        if not any(_is_running(trial) for trial in attempts):  # otherwise one was added before an answer was lost
            self._storage.create_new_trial(self._study, self._new_trial(ticket, study))
            attempts = self._attempts_of(ticket.key)
        running = [trial for trial in attempts if _is_running(trial)]
        winner = None if self._is_taken(attempts) or not running else trial_id(running[0])
        for trial in running:
            if self._is_unconfirmed(trial) and trial_id(trial) != winner:
                self._close_trial(trial_id(trial), "withdrawn", "another was first")
        if winner is not None:
            self._claims[winner] = ticket.key
        elif self._leases is not None:
            self._leases.release(ticket.key)
        return winner

    @_retrying
    def beat(self, pulses: Mapping[int, Pulse]) -> list[int]:
        """Writes the pulses of these trials; returns the trials that it has lost, whose runs are to be stopped."""
        lost_claims = []
        for claim, pulse in pulses.items():
            try:
                self._storage.set_trial_user_attr(claim, PULSE, {"time": time.time(), **pulse._asdict()})
            except UpdateFinishedTrialError:
                lost_claims.append(claim)
        if self._leases is not None:
            lost_claims += [claim for claim in pulses if self._claims.get(claim) in self._leases.lost]
        return lost_claims

    @_retrying
    def settle(self, claim: int, outcome: str, reason: str | None = None, value: float | None = None) -> None:
        """Closes a trial with how its run ended; ``value`` is the study's metric."""
        self._close_trial(claim, outcome, reason, value)
        key = self._claims.pop(claim, None)
        if self._leases is not None and key is not None:
            self._leases.release(key)

    def release(self, claim: int, reason: str) -> None:
        """Releases an unfinished run, so that any worker may claim it."""
        self.settle(claim, "stopped", reason)

    @_retrying
    def reap(self) -> list[str]:
        """Releases the runs of owners that died; returns their keys."""
        lost_trials = {_key(trial): trial for trial in self._running_trials() if self._is_lost(trial)}
        for trial in lost_trials.values():
            self._close_trial(trial_id(trial), "stopped", self._why_lost(_owner(trial)))
        return [*lost_trials]

    def enter(self, endings: Iterable[Ending]) -> None:
        """Adds runs that ended without this ledger: another ledger gave them out, or they were run without one."""
        self._add_endings(list(endings))

    @_retrying
    def _add_endings(self, endings: list[Ending]) -> None:
        known_attempts = self._attempts()
        for ending in endings:
            if ending.ticket.key not in known_attempts:
                self._storage.create_new_trial(self._study, _closed_trial(ending, self._identity))

    @_retrying
    def attempts(self, key: str) -> int:
        """Returns how often the run was claimed so far."""
        return _count(self._attempts_of(key))

    @_retrying
    def ended_elsewhere(self, key: str) -> EndedRun | None:
        """Returns how a run ended whose record is in a folder of runs that this machine does not share, or None."""
        for trial in reversed(self._attempts_of(key, LOOK_SECONDS)):
            if self._is_foreign(trial):
                owner, reason = _owner(trial), trial.user_attrs[END]["reason"]
                location = f"its record is on {owner.host} in {owner.path}"
                return EndedRun(_outcome(trial), f"{reason}; {location}" if reason else location, trial.value)
        return None

    @_retrying
    def standings(self) -> list[ActiveRun]:
        """Returns every run that a worker holds, in the order in which they were claimed."""
        first_trials = {_key(trial): trial for trial in reversed(self._running_trials())}
        standings = [_standing(trial, _count(self._attempts_cache[key])) for key, trial in first_trials.items()]
        return sorted(standings, key=lambda standing: standing.since)

    def _attempts(self, age: float = 0.0) -> dict[str, list[FrozenTrial]]:
        """Returns the attempts at every run, in order, including withdrawn ones; cached for up to ``age`` seconds."""
        if time.monotonic() - self._cached_at >= age:
            start = time.monotonic()
            running: dict[str, list[FrozenTrial]] = {}
            for trial in self._storage.get_all_trials(self._study, deepcopy=False):
                if trial.number in self._ended_numbers or RUN not in trial.user_attrs:
                    continue
                if trial.state.is_finished():  # and never changes again
                    self._ended_numbers.add(trial.number)
                    insort(self._ended.setdefault(_key(trial), []), trial, key=_number)
                else:
                    running.setdefault(_key(trial), []).append(trial)
            of_running = {
                key: sorted([*self._ended.get(key, ()), *trials], key=_number) for key, trials in running.items()
            }
            self._attempts_cache, self._cached_at = self._ended | of_running, start
        return self._attempts_cache

    def _attempts_of(self, key: str, age: float = 0.0) -> list[FrozenTrial]:
        return self._attempts(age).get(key, [])

    def _running_trials(self) -> list[FrozenTrial]:
        return [trial for attempts in self._attempts().values() for trial in attempts if _is_running(trial)]

    def _is_taken(self, attempts: list[FrozenTrial]) -> bool:
        """Whether a worker holds a run, or it ended where its record cannot be read, or cannot be read yet."""
        running = [trial for trial in attempts if _is_running(trial)]
        if running and not self._is_unconfirmed(running[0]):
            return True
        return any(self._is_foreign(trial) or self._is_recent(trial) for trial in attempts)

    def _is_unconfirmed(self, trial: FrozenTrial) -> bool:
        """Whether this process added a trial and does not know yet that it holds it."""
        return _owner(trial).token == self._identity.token and trial_id(trial) not in self._claims

    def _is_foreign(self, trial: FrozenTrial) -> bool:
        """Whether a run ended in a folder of runs that is not this one, by whatever path this one is reached."""
        if not trial.state.is_finished() or _outcome(trial) not in (*_RECORDED, "failed"):
            return False
        owner = _owner(trial)
        return owner.folder != self._identity.folder and (owner.host, owner.path) != (
            self._identity.host,
            self._identity.path,
        )

    def _is_recent(self, trial: FrozenTrial) -> bool:
        """Whether another machine ended the run so lately that a network disk may not show its record yet."""
        if _outcome(trial) not in _RECORDED or _owner(trial).host == self._identity.host or self._leases is not None:
            return False  # a store shows at once what was put there
        first_noticed = self._first_noticed.setdefault(trial_id(trial), time.monotonic())
        return time.monotonic() - first_noticed < DISK_SECONDS

    def _new_trial(self, ticket: Ticket, study: str) -> FrozenTrial:
        claim_labels = {"study": study, "claimed": time.time(), "owner": self._identity._asdict()}
        return create_trial(state=TrialState.RUNNING, user_attrs={RUN: ticket.labels() | claim_labels})

    def _close_trial(self, claim: int, outcome: str, reason: str | None, value: float | None = None) -> None:
        """Closes a trial. A closed one stays as it is: its owner was taken for dead, or closes it twice."""
        values = [value] if _is_number(value) else None
        self._cached_at = -math.inf
        with suppress(UpdateFinishedTrialError):
            self._storage.set_trial_user_attr(claim, END, {"outcome": outcome, "reason": reason})
            self._storage.set_trial_state_values(claim, _STATES.get(outcome, TrialState.FAIL), values)

    def _is_lost(self, trial: FrozenTrial) -> bool:
        """Whether the owner is dead: its process on this machine is gone, or its pulses have stopped."""
        owner = _owner(trial)
        if owner.token == self._identity.token:
            return trial_id(trial) not in self._claims
        return owner.is_dead(machine()) or self._is_silent(trial)

    def _why_lost(self, owner: Owner) -> str:
        here = machine()
        if owner.token == self._identity.token or owner.is_dead(here):
            return "its process died"
        silence = f"no sign of life for over {self.grace} s"
        return f"its process is stopped (SIGSTOP): {silence}" if owner.is_halted(here) else f"its process: {silence}"

    def _is_silent(self, trial: FrozenTrial) -> bool:
        """Whether no pulse came for longer than the grace, by this machine's clock alone.

        Between two checks at most two heartbeats of silence count: no owner can write while the ledger is unavailable.
        """
        pulse, now = trial.user_attrs.get(PULSE), time.monotonic()
        last = self._last_pulses.get(trial_id(trial))
        if last is None or last.pulse != pulse:
            self._last_pulses[trial_id(trial)] = _LastPulse(pulse, now, 0.0)
            return False
        silent_seconds = last.silent_seconds + min(now - last.checked_at, 2.0 * self.heartbeat)
        self._last_pulses[trial_id(trial)] = _LastPulse(pulse, now, silent_seconds)
        return silent_seconds > self.grace

    def _open(self) -> None:
        """Connects to the storage. A file is checked for damage by only one process at a time."""
        if self._address.path is None:
            self._connect()
            return
        with locked(self.runs / "ledger.lock", patience=LOCK_SECONDS):
            if fault := damage(self._address.path):
                self._start_anew(self._address.path, fault)
            try:
                self._connect()
            except RuntimeError as error:  # tables of an incompatible version of Optuna
                self._start_anew(self._address.path, str(error).splitlines()[0])
                self._connect()

    def _start_anew(self, path: Path, fault: str) -> None:
        for suffix in ("-journal", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        moved_file = set_aside(path)
        self.notes.append(f"{path}: {fault}; moved to {moved_file.name} and built again from the records")

    def _connect(self) -> None:
        def connect() -> None:
            self._storage, self._close_storage = open_storage(self._address)
            optuna.create_study(study_name=STUDY, storage=self._storage, load_if_exists=True)
            self._study = self._storage.get_study_id_from_name(STUDY)

        try:
            self._connection.ask(connect)
        except RuntimeError as error:
            if self._address.path is None:
                raise LedgerError(f"{self._address.name}: cannot be used: {str(error).splitlines()[0]}") from None
            raise


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _is_running(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.RUNNING


def _count(attempts: list[FrozenTrial]) -> int:
    """Returns how many of the attempts began a run."""
    return sum("claimed" in trial.user_attrs[RUN] and _outcome(trial) != "withdrawn" for trial in attempts)


def _number(trial: FrozenTrial) -> int:
    return int(trial.number)


def _key(trial: FrozenTrial) -> str:
    return str(trial.user_attrs[RUN]["key"])


def _owner(trial: FrozenTrial) -> Owner:
    return Owner(**trial.user_attrs[RUN]["owner"])


def _outcome(trial: FrozenTrial) -> str:
    """Returns how the run ended; a trial that was closed by hand counts as stopped."""
    return str(trial.user_attrs[END]["outcome"]) if END in trial.user_attrs else "stopped"


def _closed_trial(ending: Ending, owner: Owner) -> FrozenTrial:
    """Returns a closed trial. Optuna requires a number of every complete one, so one without counts as failed there."""
    state = _STATES.get(ending.outcome, TrialState.FAIL)
    value = ending.value if state == TrialState.COMPLETE and _is_number(ending.value) else None
    return create_trial(
        state=TrialState.FAIL if state == TrialState.COMPLETE and value is None else state,
        value=value,
        user_attrs={
            RUN: ending.ticket.labels() | {"owner": owner._asdict()},
            END: {"outcome": ending.outcome, "reason": ending.reason},
        },
    )


def _standing(trial: FrozenTrial, attempts: int) -> ActiveRun:
    labels, owner = trial.user_attrs[RUN], _owner(trial)
    pulse = dict(trial.user_attrs.get(PULSE) or {"time": labels["claimed"]})
    last_pulse = float(pulse.pop("time"))
    return ActiveRun(
        labels["key"],
        labels["arm"],
        labels["seed"],
        labels["study"],
        owner.host,
        owner.process,
        labels["claimed"],
        last_pulse,
        Pulse(**pulse),
        attempts,
    )
