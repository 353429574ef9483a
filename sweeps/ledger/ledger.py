"""The ledger: which worker holds which run, by an Optuna study in a database that many machines may share.

One trial is one attempt at one run, created by the worker that claims it. Trials are numbered in the order in which
they appear, so of two workers that claim one run at the same moment the lower number has it and the other withdraws.
In SQLite and PostgreSQL workers take turns, so that none has to withdraw; behind a proxy they only add and read. A dead
owner is detected
by its process id on the same machine and by missing heartbeats elsewhere; its trial ends, and the run is free. The
records on disk are authoritative: a ledger that is lost or damaged is rebuilt from them.
"""

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from uuid import uuid4

from lit_transformers.records.files import set_aside
from sweeps.ledger.attempts import Closing, LedgerAttempt, open_attempts
from sweeps.ledger.leases import Leases
from sweeps.ledger.lock import locked
from sweeps.ledger.owner import Owner, identify, machine, name_folder
from sweeps.ledger.storage import (
    LOCK_SECONDS,
    LedgerError,
    StorageConnection,
    damage,
    find_address,
)
from sweeps.ledger.ticket import Ticket
from sweeps.object_store import store_of

__all__ = ["DISK_SECONDS", "ActiveRun", "EndedRun", "Ending", "Ledger", "LedgerError", "Pulse"]

LOOK_SECONDS = 0.4
"""How old the cached attempts may be where they only serve to skip runs that are claimed already."""
DISK_SECONDS = 60.0
"""How long a network disk may take to show the files that another machine has written."""

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


@dataclass
class _Cache:
    """The attempts that were read: those at each run in order, those in progress by their ids, the last id, and the
    monotonic time of the last look."""

    known: dict[str, list[LedgerAttempt]] = field(default_factory=dict)
    running: dict[int, LedgerAttempt] = field(default_factory=dict)
    last: int = 0
    read_at: float = -math.inf


def _retrying(method: Callable[Concatenate[Ledger, Given], Answer]) -> Callable[Concatenate[Ledger, Given], Answer]:
    """Repeats the whole method while the storage is unavailable; each method may safely be repeated. The cache is
    emptied first: it may come from a transaction that failed, or from a server that another one has replaced."""

    @wraps(method)
    def retried(self: Ledger, /, *args: Given.args, **kwargs: Given.kwargs) -> Answer:
        def attempt() -> Answer:
            try:
                return method(self, *args, **kwargs)
            except Exception:
                self._cache = _Cache()
                raise

        return self._connection.ask(attempt)

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
        self._cache = _Cache()
        self._open()

    def attend(self, say: Callable[[str], None], wanted: Callable[[], bool]) -> None:
        """Sets the function that prints messages about waiting for a server, and the test whether to keep waiting."""
        self._connection.say, self._connection.wanted = say, wanted

    def close(self) -> None:
        """Closes the connection to the database."""
        if self._leases is not None:
            self._leases.close()
        self._storage.close()

    @_retrying
    def claim(self, ticket: Ticket, study: str = "") -> int | None:
        """Claims a run and returns its trial's id; None where another worker holds it, or ended it out of sight."""
        attempts = self._attempts_of(ticket.key, LOOK_SECONDS)
        if self._is_taken(attempts):
            return None
        if self._leases is not None and not self._leases.take(ticket.key, self._connection.say):
            return None
        with self._storage.turn():
            attempts = self._attempts_of(ticket.key)
            if not any(map(_is_running, attempts)) and not self._is_taken(attempts):  # otherwise an answer was lost
                self._storage.add([(self._labels(ticket, study), None)])
                attempts = self._attempts_of(ticket.key)
        running = [attempt for attempt in attempts if _is_running(attempt)]
        winner = None if self._is_taken(attempts) or not running else running[0].id
        for attempt in running:
            if self._is_unconfirmed(attempt) and attempt.id != winner:
                self._end(attempt.id, "withdrawn", "another was first")
        if winner is not None:
            self._claims[winner] = ticket.key
        elif self._leases is not None:
            self._leases.release(ticket.key)
        return winner

    @_retrying
    def beat(self, pulses: Mapping[int, Pulse]) -> list[int]:
        """Writes the pulses of these trials; returns the trials that it has lost, whose runs are to be stopped."""
        now = time.time()
        lost_claims = self._storage.beat({claim: {"time": now, **pulse._asdict()} for claim, pulse in pulses.items()})
        if self._leases is not None:
            lost_claims += [claim for claim in pulses if self._claims.get(claim) in self._leases.lost]
        return lost_claims

    @_retrying
    def settle(self, claim: int, outcome: str, reason: str | None = None, value: float | None = None) -> None:
        """Closes a trial with how its run ended; ``value`` is the study's metric."""
        self._end(claim, outcome, reason, value)
        key = self._claims.pop(claim, None)
        if self._leases is not None and key is not None:
            self._leases.release(key)

    def release(self, claim: int, reason: str) -> None:
        """Releases an unfinished run, so that any worker may claim it."""
        self.settle(claim, "stopped", reason)

    @_retrying
    def reap(self) -> list[str]:
        """Releases the runs of owners that died; returns their keys."""
        lost_attempts = {attempt.key: attempt for attempt in self._running_attempts() if self._is_lost(attempt)}
        for attempt in lost_attempts.values():
            self._end(attempt.id, "stopped", self._why_lost(_owner(attempt)))
        return [*lost_attempts]

    def enter(self, endings: Iterable[Ending]) -> None:
        """Adds runs that ended without this ledger: another ledger gave them out, or they were run without one."""
        self._add_endings(list(endings))

    @_retrying
    def _add_endings(self, endings: list[Ending]) -> None:
        if not self._missing(endings):
            return
        owner = {"owner": self._identity._asdict()}
        with self._storage.turn():
            missing = self._missing(endings)
            self._storage.add([(one.ticket.labels() | owner, Closing(*one[1:])) for one in missing])

    def _missing(self, endings: Iterable[Ending]) -> list[Ending]:
        """Returns those of which the ledger has no attempt."""
        known = self._attempts()
        return [ending for ending in endings if ending.ticket.key not in known]

    @_retrying
    def attempts(self, key: str) -> int:
        """Returns how often the run was claimed so far."""
        return _count(self._attempts_of(key))

    @_retrying
    def ended_elsewhere(self, key: str) -> EndedRun | None:
        """Returns how a run ended whose record is in a folder of runs that this machine does not share, or None."""
        for attempt in reversed(self._attempts_of(key, LOOK_SECONDS)):
            if self._is_foreign(attempt):
                owner, reason = _owner(attempt), attempt.reason
                location = f"its record is on {owner.host} in {owner.path}"
                outcome = str(attempt.outcome)
                return EndedRun(outcome, f"{reason}; {location}" if reason else location, attempt.value)
        return None

    @_retrying
    def standings(self) -> list[ActiveRun]:
        """Returns every run that a worker holds, in the order in which they were claimed."""
        first_attempts = {attempt.key: attempt for attempt in reversed(self._running_attempts())}
        standings = [_standing(attempt, _count(self._cache.known[key])) for key, attempt in first_attempts.items()]
        return sorted(standings, key=lambda standing: standing.since)

    def _attempts(self, age: float = 0.0) -> dict[str, list[LedgerAttempt]]:
        """Returns the attempts at every run, in order, including withdrawn ones; cached for up to ``age`` seconds.

        Those that had ended when they were read never change again, and are not read again.
        """
        if time.monotonic() - self._cache.read_at >= age:
            start = time.monotonic()
            news = self._storage.news(self._cache.last, self._cache.running)
            for attempt in self._cache.running.values():
                self._cache.known[attempt.key].remove(attempt)
            self._cache.running = {attempt.id: attempt for attempt in news if _is_running(attempt)}
            for attempt in news:
                insort(self._cache.known.setdefault(attempt.key, []), attempt, key=_id)
            self._cache.last = max([self._cache.last, *map(_id, news)])
            self._cache.read_at = start
        return self._cache.known

    def _attempts_of(self, key: str, age: float = 0.0) -> list[LedgerAttempt]:
        return self._attempts(age).get(key, [])

    def _running_attempts(self) -> list[LedgerAttempt]:
        self._attempts()
        return [*self._cache.running.values()]

    def _is_taken(self, attempts: list[LedgerAttempt]) -> bool:
        """Whether a worker holds a run, or it ended where its record cannot be read, or cannot be read yet."""
        running = [attempt for attempt in attempts if _is_running(attempt)]
        if running and not self._is_unconfirmed(running[0]):
            return True
        return any(self._is_foreign(attempt) or self._is_recent(attempt) for attempt in attempts)

    def _is_unconfirmed(self, attempt: LedgerAttempt) -> bool:
        """Whether this process added an attempt and does not know yet that it holds the run."""
        return _owner(attempt).token == self._identity.token and attempt.id not in self._claims

    def _is_foreign(self, attempt: LedgerAttempt) -> bool:
        """Whether a run ended in a folder of runs other than this one, which may be known by several paths."""
        if attempt.outcome not in (*_RECORDED, "failed"):
            return False
        owner = _owner(attempt)
        return owner.folder != self._identity.folder and (owner.host, owner.path) != (
            self._identity.host,
            self._identity.path,
        )

    def _is_recent(self, attempt: LedgerAttempt) -> bool:
        """Whether another machine ended the run so lately that a network disk may not show its record yet."""
        if (
            attempt.outcome not in _RECORDED
            or _owner(attempt).host == self._identity.host
            or self._leases is not None  # a store shows new objects at once
        ):
            return False
        first_noticed = self._first_noticed.setdefault(attempt.id, time.monotonic())
        return time.monotonic() - first_noticed < DISK_SECONDS

    def _labels(self, ticket: Ticket, study: str) -> dict[str, Any]:
        """Returns the labels that the ledger stores of an attempt that begins now."""
        return ticket.labels() | {"study": study, "claimed": time.time(), "owner": self._identity._asdict()}

    def _end(self, claim: int, outcome: str, reason: str | None, value: float | None = None) -> None:
        """Closes an attempt. A closed one stays as it is: its owner was taken for dead, or closes it twice."""
        self._cache.read_at = -math.inf
        self._storage.end(claim, Closing(outcome, reason, value))

    def _is_lost(self, attempt: LedgerAttempt) -> bool:
        """Whether the owner is dead: its process on this machine is gone, or its pulses have stopped."""
        owner = _owner(attempt)
        if owner.token == self._identity.token:
            return attempt.id not in self._claims
        return owner.is_dead(machine()) or self._is_silent(attempt)

    def _why_lost(self, owner: Owner) -> str:
        here = machine()
        if owner.token == self._identity.token or owner.is_dead(here):
            return "its process died"
        silence = f"no sign of life for over {self.grace} s"
        return f"its process is stopped (SIGSTOP): {silence}" if owner.is_halted(here) else f"its process: {silence}"

    def _is_silent(self, attempt: LedgerAttempt) -> bool:
        """Whether no pulse came for longer than the grace, by this machine's clock alone.

        Between two checks at most two heartbeats of silence count: no owner can write while the ledger is unavailable.
        """
        pulse, now = attempt.pulse, time.monotonic()
        last = self._last_pulses.get(attempt.id)
        if last is None or last.pulse != pulse:
            self._last_pulses[attempt.id] = _LastPulse(pulse, now, 0.0)
            return False
        silent_seconds = last.silent_seconds + min(now - last.checked_at, 2.0 * self.heartbeat)
        self._last_pulses[attempt.id] = _LastPulse(pulse, now, silent_seconds)
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
        try:
            self._storage = self._connection.ask(lambda: open_attempts(self._address))
        except RuntimeError as error:
            if self._address.path is None:
                raise LedgerError(f"{self._address.name}: cannot be used: {str(error).splitlines()[0]}") from None
            raise


def _is_running(attempt: LedgerAttempt) -> bool:
    return attempt.outcome is None


def _count(attempts: list[LedgerAttempt]) -> int:
    """Returns how many of the attempts began a run."""
    return sum("claimed" in attempt.labels and attempt.outcome != "withdrawn" for attempt in attempts)


def _id(attempt: LedgerAttempt) -> int:
    return attempt.id


def _owner(attempt: LedgerAttempt) -> Owner:
    return Owner(**attempt.labels["owner"])


def _standing(attempt: LedgerAttempt, attempts: int) -> ActiveRun:
    labels, owner = attempt.labels, _owner(attempt)
    pulse = dict(attempt.pulse or {"time": labels["claimed"]})
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
