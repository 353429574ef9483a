"""Attempts at runs as a storage holds them: the trials of one Optuna study.

SQLite and PostgreSQL are read and written by the few statements below, on the tables that Optuna makes: only attempts
that are new or in progress are read, and whoever adds one holds the study's row until it is done, as Optuna does.
A proxy, and any other database, goes through Optuna itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeGuard

from sqlalchemy import Connection, bindparam, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from sweeps.ledger.storage import Address, Opened, open_engine, open_storage, trial_id

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial
    from sqlalchemy import Engine

__all__ = ["TABLES", "AttemptStorage", "Closing", "LedgerAttempt", "open_attempts"]

STUDY = "attempts"
RUN, PULSE, END = "run", "pulse", "end"
"""The attributes of a trial. They are few, since each costs a statement or two."""
TABLES = "v3.2.0.a"
"""The revision of Optuna's tables that the statements are written for."""
BEGIN = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "BEGIN"}
"""How a transaction that writes begins. On SQLite it must be the only one from its start, or two that have read wait
for each other."""

_STATES = {"finished": "COMPLETE", "pruned": "PRUNED"}
"""Optuna's states of outcomes; those of all others are FAIL."""

_STUDY_OF_NAME = text("SELECT study_id FROM studies WHERE study_name = :name")
_READ = (
    "SELECT trials.trial_id, trials.state, run.value_json, pulse.value_json, ending.value_json, trial_values.value "
    "FROM trials JOIN trial_user_attributes run ON run.trial_id = trials.trial_id AND run.key = 'run' "
    "LEFT JOIN trial_user_attributes pulse ON trials.state = 'RUNNING' AND pulse.trial_id = trials.trial_id "
    "AND pulse.key = 'pulse' "
    "LEFT JOIN trial_user_attributes ending ON ending.trial_id = trials.trial_id AND ending.key = 'end' "
    "LEFT JOIN trial_values ON trial_values.trial_id = trials.trial_id AND trial_values.objective = 0 WHERE "
)
_NEWS = text(  # in two parts: with OR, every trial of the study is looked at
    f"{_READ}trials.study_id = :study AND trials.trial_id > :last "
    f"UNION ALL {_READ}trials.trial_id <= :last AND trials.trial_id IN :open ORDER BY 1"
).bindparams(bindparam("open", expanding=True))
_LOCK = text("SELECT study_id FROM studies WHERE study_id = :study FOR UPDATE")
_LAST = text("SELECT trial_id, number FROM trials WHERE study_id = :study ORDER BY trial_id DESC LIMIT 1")
_ADDED = text("SELECT trial_id FROM trials WHERE study_id = :study AND trial_id > :last ORDER BY trial_id")
_ADD = text(
    "INSERT INTO trials (number, study_id, state, datetime_start, datetime_complete) "
    "VALUES (:number, :study, :state, :start, :complete)"
)
_SET = (
    "INSERT INTO trial_user_attributes (trial_id, key, value_json) {} "
    "ON CONFLICT (trial_id, key) DO UPDATE SET value_json = excluded.value_json"
)
_SET_END = text(_SET.format("VALUES (:id, 'end', :value)"))
_SET_RUN = text(_SET.format("VALUES (:id, 'run', :value)"))
_SET_PULSE = text(
    _SET.format("SELECT trial_id, 'pulse', :value FROM trials WHERE trial_id = :id AND state = 'RUNNING'")
)
_SET_VALUE = text("INSERT INTO trial_values (trial_id, objective, value, value_type) VALUES (:id, 0, :value, 'FINITE')")
_CLOSE = text(
    "UPDATE trials SET state = :state, datetime_complete = :complete WHERE trial_id = :id AND state = 'RUNNING'"
)


class LedgerAttempt(NamedTuple):
    """One attempt at a run.

    id: of its trial; a lower one was added before. labels: those of the run, its owner and when it was claimed.
    outcome: how it ended, None while it is in progress; one that was closed by hand counts as stopped.
    """

    id: int
    key: str
    labels: dict[str, Any]
    pulse: dict[str, Any] | None
    outcome: str | None
    reason: str | None
    value: float | None


class Closing(NamedTuple):
    """How an attempt ended: its outcome, the reason, and the study's metric."""

    outcome: str
    reason: str | None = None
    value: float | None = None

    @property
    def number(self) -> float | None:
        """The metric where it is a number, which alone a storage takes."""
        return self.value if _is_number(self.value) else None

    @property
    def state(self) -> str:
        """Optuna's state. It requires a number of every complete trial, so one without counts as failed there."""
        state = _STATES.get(self.outcome, "FAIL")
        return "FAIL" if state == "COMPLETE" and self.number is None else state

    def attribute(self) -> dict[str, Any]:
        """Returns the content of the attribute of a closed trial."""
        return {"outcome": self.outcome, "reason": self.reason}


class AttemptStorage(Protocol):
    """Where attempts are. Every method may be repeated after an error of the storage."""

    def turn(self) -> AbstractContextManager[None]:
        """Returns a block in which attempts are read and added by nobody else, where the storage can ensure that."""

    def news(self, last: int, open_ids: Iterable[int]) -> Sequence[LedgerAttempt]:
        """Returns the attempts after the id ``last`` and those of these ids, in order."""

    def add(self, attempts: Sequence[tuple[Mapping[str, Any], Closing | None]]) -> None:
        """Adds attempts by their labels: in progress, or closed."""

    def beat(self, pulses: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """Writes the pulses of these attempts; returns those that have ended."""

    def end(self, attempt: int, closing: Closing) -> None:
        """Closes an attempt; one that has ended stays as it is."""

    def close(self) -> None:
        """Closes the connections."""


class _Statements:
    """The attempts in SQLite or PostgreSQL."""

    def __init__(self, engine: Engine, study: int) -> None:
        """study: the id of the study that holds them."""
        self._engine, self._study = engine, study
        self._begin = BEGIN[engine.dialect.name]
        self._turn: Connection | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self._transaction() as connection:
            if self._engine.dialect.name != "sqlite":  # there the transaction is the only one
                connection.execute(_LOCK, {"study": self._study})
            self._turn = connection
            try:
                yield
            finally:
                self._turn = None

    def news(self, last: int, open_ids: Iterable[int]) -> list[LedgerAttempt]:
        values = {"study": self._study, "last": last, "open": [*open_ids]}
        if self._turn is not None:
            return [_attempt_of_row(*row) for row in self._turn.execute(_NEWS, values)]
        with self._engine.connect() as connection:
            return [_attempt_of_row(*row) for row in connection.execute(_NEWS, values)]

    def add(self, attempts: Sequence[tuple[Mapping[str, Any], Closing | None]]) -> None:
        if not attempts:
            return
        if self._turn is None:
            with self.turn():
                self.add(attempts)
            return
        now, study, connection = _now(), {"study": self._study}, self._turn
        last, number = connection.execute(_LAST, study).first() or (0, -1)
        rows = [
            {"number": number, "state": closing.state if closing else "RUNNING", "complete": now if closing else None}
            for number, (_, closing) in enumerate(attempts, number + 1)
        ]
        connection.execute(_ADD, [{**row, **study, "start": now} for row in rows])
        added = connection.execute(_ADDED, {**study, "last": last}).scalars().all()
        labels = [{"id": one, "value": json.dumps(labels)} for one, (labels, _) in zip(added, attempts, strict=True)]
        connection.execute(_SET_RUN, labels)
        _write_closings(connection, [(one, end) for one, (_, end) in zip(added, attempts, strict=True) if end])

    def beat(self, pulses: Mapping[int, Mapping[str, Any]]) -> list[int]:
        if not pulses:
            return []
        with self._transaction() as connection:
            return [
                attempt
                for attempt, pulse in pulses.items()
                if not connection.execute(_SET_PULSE, {"id": attempt, "value": json.dumps(pulse)}).rowcount
            ]

    def end(self, attempt: int, closing: Closing) -> None:
        values = {"id": attempt, "state": closing.state, "complete": _now()}
        with self._transaction() as connection:
            if connection.execute(_CLOSE, values).rowcount:
                _write_closings(connection, [(attempt, closing)])

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """Writes all of a block or nothing; connections are otherwise without transactions."""
        with self._engine.connect() as connection:
            connection.exec_driver_sql(self._begin)
            try:
                yield connection
                connection.exec_driver_sql("COMMIT")
            except BaseException:
                with suppress(SQLAlchemyError):  # the connection is gone, and with it the transaction
                    connection.exec_driver_sql("ROLLBACK")
                raise


class _Trials:
    """The attempts behind a proxy, or in a database that Optuna knows and the statements do not."""

    def __init__(self, opened: Opened, study: int) -> None:
        """study: the id of the study that holds them."""
        self._storage, self._study, self.close = opened.storage, study, opened.close

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def news(self, last: int, open_ids: Iterable[int]) -> list[LedgerAttempt]:
        wanted = {*open_ids}
        return [
            _attempt_of_trial(trial)
            for trial in self._storage.get_all_trials(self._study, deepcopy=False)
            if RUN in trial.user_attrs and (trial_id(trial) > last or trial_id(trial) in wanted)
        ]

    def add(self, attempts: Sequence[tuple[Mapping[str, Any], Closing | None]]) -> None:
        for labels, closing in attempts:
            self._storage.create_new_trial(self._study, _new_trial(labels, closing))

    def beat(self, pulses: Mapping[int, Mapping[str, Any]]) -> list[int]:
        return [attempt for attempt, pulse in pulses.items() if not self._set(attempt, PULSE, pulse)]

    def end(self, attempt: int, closing: Closing) -> None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        values = None if closing.number is None else [closing.number]
        if self._set(attempt, END, closing.attribute()):
            with suppress(UpdateFinishedTrialError):
                self._storage.set_trial_state_values(attempt, TrialState[closing.state], values)

    def _set(self, attempt: int, name: str, value: Mapping[str, Any]) -> bool:
        """Writes an attribute; returns False for an attempt that has ended."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            self._storage.set_trial_user_attr(attempt, name, value)
        except UpdateFinishedTrialError:
            return False
        return True


def open_attempts(address: Address) -> AttemptStorage:
    """Connects, and has Optuna make the tables where there are none.

    Raises the storage's own errors; RuntimeError for tables of an incompatible version of Optuna.
    """
    if not address.has_statements:
        return _open_trials(address)
    engine = open_engine(address)
    study = _find_study(engine)
    if study is None:
        trials = _open_trials(address)  # makes tables and study, and refuses those of another version
        study = _find_study(engine)
        if study is None:
            engine.dispose()
            return trials
        trials.close()
    return _Statements(engine, study)


def _open_trials(address: Address) -> AttemptStorage:
    import optuna

    opened = open_storage(address)
    optuna.create_study(study_name=STUDY, storage=opened.storage, load_if_exists=True)
    return _Trials(opened, opened.storage.get_study_id_from_name(STUDY))


def _find_study(engine: Engine) -> int | None:
    """Returns the id of the study of attempts; None where there is none, or in tables of another revision."""
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        if connection.execute(text("SELECT version_num FROM alembic_version")).scalar() != TABLES:
            return None
        return connection.execute(_STUDY_OF_NAME, {"name": STUDY}).scalar()


def _write_closings(connection: Connection, closings: Sequence[tuple[int, Closing]]) -> None:
    ends = [{"id": attempt, "value": json.dumps(closing.attribute())} for attempt, closing in closings]
    values = [{"id": attempt, "value": closing.number} for attempt, closing in closings if closing.number is not None]
    if ends:
        connection.execute(_SET_END, ends)
    if values:
        connection.execute(_SET_VALUE, values)


def _attempt_of_row(
    attempt: int, state: str, labels: str, pulse: str | None, end: str | None, value: float | None
) -> LedgerAttempt:
    run, ending = json.loads(labels), json.loads(end) if end else {}
    outcome = None if state == "RUNNING" else ending.get("outcome", "stopped")
    return LedgerAttempt(
        attempt, run["key"], run, json.loads(pulse) if pulse else None, outcome, ending.get("reason"), value
    )


def _attempt_of_trial(trial: FrozenTrial) -> LedgerAttempt:
    run, ending = trial.user_attrs[RUN], trial.user_attrs.get(END, {})
    outcome = ending.get("outcome", "stopped") if trial.state.is_finished() else None
    pulse = trial.user_attrs.get(PULSE)
    return LedgerAttempt(trial_id(trial), run["key"], run, pulse, outcome, ending.get("reason"), trial.value)


def _new_trial(labels: Mapping[str, Any], closing: Closing | None) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    if closing is None:
        return create_trial(state=TrialState.RUNNING, user_attrs={RUN: labels})
    attributes = {RUN: labels, END: closing.attribute()}
    value = closing.number if closing.state == "COMPLETE" else None
    return create_trial(state=TrialState[closing.state], value=value, user_attrs=attributes)


def _now() -> str:
    """Returns the time as Optuna's tables hold it."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")


def _is_number(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
