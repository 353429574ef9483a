"""The ledger: which run is in whose hands, by an Optuna study in a database that many machines may share.

One trial is one attempt at one run, made by who takes it. Trials are numbered in the order in which they appear, so of
two workers that take one run at the same moment the lower number has it and the other withdraws: nothing but adding
and reading is asked of a storage, and SQLite, PostgreSQL and the proxy are alike. An owner that dies is noticed by its
process id on the same machine and by its silence elsewhere; its trial ends, and the run is free. The records on disk
are the truth: a ledger that is lost or damaged is built again from them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeGuard, TypeVar
from uuid import uuid4

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from lit_transformers.files import set_aside
from sweeps.lock import locked
from sweeps.owner import Owner, identify, machine, name_folder
from sweeps.storage import LOCK_SECONDS, LedgerError, Line, damage, find_address, open_storage
from sweeps.ticket import Ticket

__all__ = ["Ended", "Ending", "Ledger", "LedgerError", "Pulse", "Standing"]

STUDY = "attempts"
RUN, PULSE, END = "run", "pulse", "end"
"""What is noted of a trial: few attributes, for each costs a statement or two."""
LOOK_SECONDS = 0.4
"""How old a look at the ledger may be that only finds what is taken already."""
DISK_SECONDS = 60.0
"""How long a network disk may hide what another machine has written."""

_STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
_RECORDED = ("finished", "pruned", "invalid")
"""Outcomes after which a run is not done again."""

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Ending(NamedTuple):
    """How a run ended, as its record tells."""

    ticket: Ticket
    outcome: str
    reason: str | None
    value: float | None


class Pulse(NamedTuple):
    """A sign of life of a run's owner, and how far the run is."""

    phase: str = "starting"
    step: int = 0
    steps: int = 0
    seconds_left: float | None = None


class Standing(NamedTuple):
    """A run that is in somebody's hands, as the ledger tells; times in seconds since 1970 by the owner's clock."""

    key: str
    arm: str
    seed: int
    study: str
    host: str
    process: int
    since: float
    heard: float
    pulse: Pulse
    attempts: int


class Ended(NamedTuple):
    """A run that ended where this machine cannot read its record."""

    outcome: str
    reason: str
    value: float | None


class _Heard(NamedTuple):
    """The last pulse of an owner, when it was looked at, and for how long it has been the same."""

    pulse: Any
    looked: float
    silent: float


def _patient(method: Callable[Concatenate[Ledger, Given], Answer]) -> Callable[Concatenate[Ledger, Given], Answer]:
    """Waits for a storage that is away, and does the whole method again: each bears repetition."""

    @wraps(method)
    def waiting(self: Ledger, /, *given: Given.args, **named: Given.kwargs) -> Answer:
        return self._line.ask(lambda: method(self, *given, **named))

    return waiting


class Ledger:
    """Hands out runs. Only the parent process of a command writes to it, so training never waits for a database."""

    def __init__(
        self, runs: Path, url: str | None = None, heartbeat: int = 10, grace: int = 60, patience: float = 300.0
    ) -> None:
        """``runs`` holds the records and, unless ``url`` names another database, ``ledger.db``. Times in seconds.

        grace: after how long a silence an owner counts as dead; patience: how long a server may be away.
        """
        self.runs, self.heartbeat, self.grace = runs, heartbeat, grace
        self.notes: list[str] = []
        self._address = find_address(url, runs)
        self._line = Line(self._address, patience)
        runs.mkdir(parents=True, exist_ok=True)
        self._me = identify(name_folder(runs), runs, token=uuid4().hex)
        self._held: set[int] = set()
        self._heard: dict[int, _Heard] = {}
        self._ended: dict[int, float] = {}
        self._looked, self._seen = -math.inf, dict[str, list[FrozenTrial]]()
        self._open()

    def attend(self, say: Callable[[str], None], wanted: Callable[[], bool]) -> None:
        """Where to say that a server is waited for, and whether a person still wants that."""
        self._line.say, self._line.wanted = say, wanted

    def close(self) -> None:
        """Lets go of the database."""
        self._let_go()

    @_patient
    def claim(self, ticket: Ticket, study: str = "") -> int | None:
        """Takes a run and returns the id of its trial; None where somebody has it, or ended it out of sight."""
        attempts = self._of(ticket.key, LOOK_SECONDS)
        if self._is_taken(attempts):
            return None
        if not any(_is_living(trial) for trial in attempts):  # else one that was added before an answer was lost
            self._storage.create_new_trial(self._study, self._attempt(ticket, study))
            attempts = self._of(ticket.key)
        living = [trial for trial in attempts if _is_living(trial)]
        first = None if self._is_taken(attempts) or not living else living[0]._trial_id
        for trial in living:
            if self._is_loose(trial) and trial._trial_id != first:
                self._end(trial._trial_id, "withdrawn", "another was first")
        if first is not None:
            self._held.add(first)
        return first

    @_patient
    def beat(self, pulses: Mapping[int, Pulse]) -> list[int]:
        """Says that the owner of these trials lives; returns those that are not its own any more: stop their runs."""
        lost = []
        for claim, pulse in pulses.items():
            try:
                self._storage.set_trial_user_attr(claim, PULSE, {"time": time.time(), **pulse._asdict()})
            except UpdateFinishedTrialError:
                lost.append(claim)
        return lost

    @_patient
    def settle(self, claim: int, outcome: str, reason: str | None = None, value: float | None = None) -> None:
        """Closes a trial with how its run ended; ``value`` is the study's metric."""
        self._end(claim, outcome, reason, value)
        self._held.discard(claim)

    def release(self, claim: int, reason: str) -> None:
        """Gives a run back unfinished."""
        self.settle(claim, "stopped", reason)

    @_patient
    def reap(self) -> list[str]:
        """Gives back the runs of owners that died; returns their keys."""
        lost = [trial for trial in self._living() if self._is_lost(trial)]
        for trial in lost:
            self._end(trial._trial_id, "stopped", "its process died")
        return [_key(trial) for trial in lost]

    def enter(self, endings: Iterable[Ending]) -> None:
        """Notes runs that ended without this ledger: another one handed them out, or they were run by themselves."""
        self._enter(list(endings))

    @_patient
    def _enter(self, endings: list[Ending]) -> None:
        known = self._attempts()
        for ending in endings:
            if ending.ticket.key not in known:
                self._storage.create_new_trial(self._study, _closed_trial(ending, self._me))

    @_patient
    def attempts(self, key: str) -> int:
        """How often the run was taken so far."""
        return _count(self._of(key))

    @_patient
    def ended_elsewhere(self, key: str) -> Ended | None:
        """How a run ended whose record lies in a folder of runs that this machine does not share."""
        for trial in reversed(self._of(key, LOOK_SECONDS)):
            if self._is_foreign(trial):
                owner, told = _owner(trial), trial.user_attrs[END]["reason"]
                place = f"its record is on {owner.host} in {owner.path}"
                return Ended(_outcome(trial), f"{told}; {place}" if told else place, trial.value)
        return None

    @_patient
    def standings(self) -> list[Standing]:
        """Every run that is in somebody's hands, first the one taken first."""
        first = {_key(trial): trial for trial in reversed(self._living())}
        found = [_standing(trial, _count(self._seen[key])) for key, trial in first.items()]
        return sorted(found, key=lambda standing: standing.since)

    def _attempts(self, age: float = 0.0) -> dict[str, list[FrozenTrial]]:
        """The attempts at every run, in order, those that withdrew included; as they were up to ``age`` seconds ago."""
        if time.monotonic() - self._looked >= age:
            begun = time.monotonic()
            found: dict[str, list[FrozenTrial]] = {}
            for trial in self._storage.get_all_trials(self._study, deepcopy=False):
                if RUN in trial.user_attrs:
                    found.setdefault(_key(trial), []).append(trial)
            self._seen, self._looked = found, begun
        return self._seen

    def _of(self, key: str, age: float = 0.0) -> list[FrozenTrial]:
        return self._attempts(age).get(key, [])

    def _living(self) -> list[FrozenTrial]:
        return [trial for attempts in self._attempts().values() for trial in attempts if _is_living(trial)]

    def _is_taken(self, attempts: list[FrozenTrial]) -> bool:
        """Whether a run is in somebody's hands, or ended where its record is not to be seen, or not yet."""
        living = [trial for trial in attempts if _is_living(trial)]
        if living and not self._is_loose(living[0]):
            return True
        return any(self._is_foreign(trial) or self._is_fresh(trial) for trial in attempts)

    def _is_loose(self, trial: FrozenTrial) -> bool:
        """Whether this process added a trial and did not hear that it has it."""
        return _owner(trial).token == self._me.token and trial._trial_id not in self._held

    def _is_foreign(self, trial: FrozenTrial) -> bool:
        """Whether a run ended in a folder of runs that is not this one, by whatever path this one is reached."""
        if not trial.state.is_finished() or _outcome(trial) not in (*_RECORDED, "failed"):
            return False
        owner = _owner(trial)
        return owner.folder != self._me.folder and (owner.host, owner.path) != (self._me.host, self._me.path)

    def _is_fresh(self, trial: FrozenTrial) -> bool:
        """Whether another machine ended the run so lately that a network disk may not show its record yet."""
        if _outcome(trial) not in _RECORDED or _owner(trial).host == self._me.host:
            return False
        first_seen = self._ended.setdefault(trial._trial_id, time.monotonic())
        return time.monotonic() - first_seen < DISK_SECONDS

    def _attempt(self, ticket: Ticket, study: str) -> FrozenTrial:
        noted = {"study": study, "claimed": time.time(), "owner": self._me._asdict()}
        return create_trial(state=TrialState.RUNNING, user_attrs={RUN: ticket.labels() | noted})

    def _end(self, claim: int, outcome: str, reason: str | None, value: float | None = None) -> None:
        """Closes a trial. One that is closed stays as it is: its owner was thought dead, or is told twice."""
        values = [value] if _is_number(value) else None
        self._looked = -math.inf
        with suppress(UpdateFinishedTrialError):
            self._storage.set_trial_user_attr(claim, END, {"outcome": outcome, "reason": reason})
            self._storage.set_trial_state_values(claim, _STATES.get(outcome, TrialState.FAIL), values)

    def _is_lost(self, trial: FrozenTrial) -> bool:
        """Whether the owner is known to be dead: it ran on this machine and does no more, or it fell silent."""
        owner = _owner(trial)
        if owner.token == self._me.token:
            return trial._trial_id not in self._held
        return owner.is_dead(machine()) or self._is_silent(trial)

    def _is_silent(self, trial: FrozenTrial) -> bool:
        """Whether no pulse came for longer than the grace, by this machine's clock alone.

        Between two looks only so much silence counts as two heartbeats: while the ledger was away nobody could speak.
        """
        pulse, now = trial.user_attrs.get(PULSE), time.monotonic()
        before = self._heard.get(trial._trial_id)
        if before is None or before.pulse != pulse:
            self._heard[trial._trial_id] = _Heard(pulse, now, 0.0)
            return False
        silent = before.silent + min(now - before.looked, 2.0 * self.heartbeat)
        self._heard[trial._trial_id] = _Heard(pulse, now, silent)
        return silent > self.grace

    def _open(self) -> None:
        """Connects. Of a file only one process at a time finds out whether it is sound."""
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
        for companion in ("-journal", "-wal", "-shm"):
            Path(f"{path}{companion}").unlink(missing_ok=True)
        moved = set_aside(path)
        self.notes.append(f"{path}: {fault}; moved to {moved.name} and built again from the records")

    def _connect(self) -> None:
        def connect() -> None:
            self._storage, self._let_go = open_storage(self._address)
            study = optuna.create_study(study_name=STUDY, storage=self._storage, load_if_exists=True)
            self._study = study._study_id

        try:
            self._line.ask(connect)
        except RuntimeError as error:
            if self._address.path is None:
                raise LedgerError(f"{self._address.name}: cannot be used: {str(error).splitlines()[0]}") from None
            raise


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _is_living(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.RUNNING


def _count(attempts: list[FrozenTrial]) -> int:
    """How many of them began a run."""
    return sum("claimed" in trial.user_attrs[RUN] and _outcome(trial) != "withdrawn" for trial in attempts)


def _key(trial: FrozenTrial) -> str:
    return str(trial.user_attrs[RUN]["key"])


def _owner(trial: FrozenTrial) -> Owner:
    return Owner(**trial.user_attrs[RUN]["owner"])


def _outcome(trial: FrozenTrial) -> str:
    """How the run ended; a trial that was closed by hand stopped."""
    return str(trial.user_attrs[END]["outcome"]) if END in trial.user_attrs else "stopped"


def _closed_trial(ending: Ending, owner: Owner) -> FrozenTrial:
    """A trial that is over. Optuna wants a number of every complete one, so one without counts as failed there."""
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


def _standing(trial: FrozenTrial, attempts: int) -> Standing:
    noted, owner = trial.user_attrs[RUN], _owner(trial)
    pulse = dict(trial.user_attrs.get(PULSE) or {"time": noted["claimed"]})
    heard = float(pulse.pop("time"))
    return Standing(
        noted["key"],
        noted["arm"],
        noted["seed"],
        noted["study"],
        owner.host,
        owner.process,
        noted["claimed"],
        heard,
        Pulse(**pulse),
        attempts,
    )
