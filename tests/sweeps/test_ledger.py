"""The ledger hands every run out once, notices the dead, and can be lost without loss."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import psutil
import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from sweeps.ledger.attempts import open_attempts
from sweeps.ledger.ledger import LOOK_SECONDS, Ending, Ledger, LedgerError, Pulse
from sweeps.ledger.owner import Machine, Owner, machine
from sweeps.ledger.storage import StorageConnection, find_address
from sweeps.ledger.ticket import Ticket

TICKETS = [Ticket(f"key{number}", "arm", number, {}) for number in range(3)]


class Clock:
    """The clock of all ledgers of this process, in seconds, which advances only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def go_on(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr("sweeps.ledger.ledger.time", SimpleNamespace(monotonic=lambda: stopped.now, time=time.time))
    return stopped


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A ledger that says soon that another program writes to its file."""
    monkeypatch.setattr("sweeps.ledger.storage.BUSY_SECONDS", 0.1)
    opened = Ledger(tmp_path, heartbeat=1, grace=1)
    yield opened
    opened.close()


def trials(runs: Path) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="attempts", storage=f"sqlite:///{runs}/ledger.db").trials


def test_a_run_is_handed_out_once(ledger: Ledger, tmp_path: Path) -> None:
    second = Ledger(tmp_path)
    assert ledger.claim(TICKETS[0]) is not None
    assert ledger.claim(TICKETS[0]) is None
    assert second.claim(TICKETS[0]) is None
    assert second.claim(TICKETS[1]) is not None
    assert len(trials(tmp_path)) == 2
    second.close()


def test_how_a_run_ended_is_noted_with_its_value_and_reason(ledger: Ledger, tmp_path: Path) -> None:
    claims = [ledger.claim(ticket) or 0 for ticket in TICKETS]
    ledger.settle(claims[0], "finished", value=1.5)
    ledger.settle(claims[1], "failed", "not-a-number", float("nan"))
    ledger.settle(claims[2], "pruned")
    first, second, third = trials(tmp_path)
    assert (first.state.name, first.value, first.user_attrs["run"]["key"]) == ("COMPLETE", 1.5, "key0")
    assert (second.state.name, second.user_attrs["end"]["reason"]) == ("FAIL", "not-a-number")
    assert third.state.name == "PRUNED"


def test_a_run_given_back_waits_again_and_its_attempts_are_counted(ledger: Ledger) -> None:
    for attempt in (1, 2):
        claim = ledger.claim(TICKETS[0])
        assert claim is not None
        ledger.release(claim, "interrupted")
        assert ledger.attempts("key0") == attempt
    assert ledger.claim(TICKETS[0]) is not None


@pytest.mark.slow
def test_the_run_of_a_process_that_died_here_is_given_to_the_next_at_once_and_not_from_a_container_of_the_same_name(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import sys, pathlib, sweeps.ledger.ledger as l, sweeps.ledger.ticket as t\n"
        "l.Ledger(pathlib.Path(sys.argv[1])).claim(t.Ticket('key0', 'arm', 0, {}))"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script, str(tmp_path)], check=True)
    assert ledger.claim(TICKETS[0]) is None
    with monkeypatch.context() as patch:
        patch.setattr("sweeps.ledger.ledger.machine", lambda: Machine(socket.gethostname(), "pid:[1]"))
        assert ledger.reap() == []  # its process numbers mean nothing there: only silence tells
    assert ledger.reap() == ["key0"]
    assert ledger.reap() == []
    assert ledger.claim(TICKETS[0]) is not None


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """A ledger on another machine, which shares the folder of runs."""
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "elsewhere")
        opened = Ledger(tmp_path, heartbeat=1, grace=1)
    yield opened
    opened.close()


def test_the_run_of_a_machine_that_fell_silent_is_given_to_the_next(
    clock: Clock, ledger: Ledger, elsewhere: Ledger
) -> None:
    claim = elsewhere.claim(TICKETS[0])
    assert claim is not None
    assert ledger.reap() == []
    clock.go_on(1.5)
    assert ledger.reap() == ["key0"]
    new_claim = ledger.claim(TICKETS[0])
    assert new_claim is not None
    assert elsewhere.beat({claim: Pulse()}) == [claim]  # the silent owner wakes up and hears that it lost its run
    elsewhere.release(claim, "too late")
    assert ledger.beat({new_claim: Pulse()}) == []
    assert elsewhere.claim(TICKETS[0]) is None


def test_a_stopped_process_is_silent_and_has_not_died(
    clock: Clock, ledger: Ledger, elsewhere: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of another machine's process nothing is known but its silence."""
    assert elsewhere.claim(TICKETS[0]) is not None and elsewhere.claim(TICKETS[1]) is not None
    ledger.reap()
    clock.go_on(1.5)
    monkeypatch.setattr(Owner, "is_halted", lambda owner, here: True)
    assert set(ledger.reap()) == {"key0", "key1"}
    (end,) = {trial.user_attrs["end"]["reason"] for trial in trials(tmp_path)}
    assert end == "its process is stopped (SIGSTOP): no sign of life for over 1 s"
    monkeypatch.undo()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        owner = Owner(*machine(), process.pid, psutil.Process(process.pid).create_time(), "", "", "")
        assert not owner.is_halted(machine())
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert owner.is_halted(machine()) and not owner.is_dead(machine())
        assert not owner._replace(host="another").is_halted(machine())
    finally:
        process.kill()
        process.wait()


def test_a_beating_owner_keeps_its_run(clock: Clock, tmp_path: Path, elsewhere: Ledger) -> None:
    patient = Ledger(tmp_path, heartbeat=1, grace=4)
    claim = elsewhere.claim(TICKETS[0])
    assert claim is not None
    for _ in range(9):  # longer than its grace
        clock.go_on(0.5)
        elsewhere.beat({claim: Pulse()})
        assert patient.reap() == []
    patient.close()


def test_time_in_which_nobody_could_speak_is_no_silence(clock: Clock, tmp_path: Path, elsewhere: Ledger) -> None:
    patient = Ledger(tmp_path, heartbeat=1, grace=3)
    assert elsewhere.claim(TICKETS[0]) is not None
    assert patient.reap() == []
    clock.go_on(3.5)  # as while the server was away: one look after it counts as two heartbeats
    assert patient.reap() == []
    clock.go_on(1.2)
    assert patient.reap() == ["key0"]
    patient.close()


def test_a_run_ended_by_another_machine_waits_for_its_record_to_be_seen(
    ledger: Ledger, elsewhere: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = elsewhere.claim(TICKETS[0])
    assert claim is not None
    elsewhere.settle(claim, "finished", value=1.0)
    assert ledger.claim(TICKETS[0]) is None
    monkeypatch.setattr("sweeps.ledger.ledger.DISK_SECONDS", 0.0)
    assert ledger.claim(TICKETS[0]) is not None  # there is none: it was deleted, and the run is repeated


def test_a_run_done_in_a_folder_that_is_not_shared_is_not_done_again(tmp_path: Path, ledger: Ledger) -> None:
    unshared = Ledger(tmp_path / "apart", f"sqlite:///{tmp_path}/ledger.db")
    claim = unshared.claim(TICKETS[0])
    assert claim is not None
    unshared.settle(claim, "finished", value=1.5)
    unshared.close()
    assert ledger.claim(TICKETS[0]) is None
    ending = ledger.ended_elsewhere("key0")
    assert ending and (ending.outcome, ending.value) == ("finished", 1.5)
    assert f"its record is on {socket.gethostname()} in {tmp_path}/apart" in ending.reason
    assert ledger.ended_elsewhere("key1") is None


def test_who_does_what_is_told_with_the_last_pulse(ledger: Ledger, elsewhere: Ledger) -> None:
    ledger.release(ledger.claim(TICKETS[0], "study") or 0, "interrupted")
    claim = elsewhere.claim(TICKETS[0], "study")
    assert claim is not None
    elsewhere.beat({claim: Pulse("fit", 3, 20, 8.5)})
    (standing,) = ledger.standings()
    assert (standing.key, standing.arm, standing.study) == ("key0", "arm", "study")
    assert (standing.host, standing.process, standing.attempts) == ("elsewhere", os.getpid(), 2)
    assert standing.pulse == Pulse("fit", 3, 20, 8.5)
    assert standing.since <= standing.last_pulse <= time.time()


RACE = """
import pathlib, sys
from sweeps.ledger.ledger import Ledger
from sweeps.ledger.ticket import Ticket

for line in sys.stdin:
    if line.startswith("open"):
        _, folder, storage = line.split()
        ledger = Ledger(pathlib.Path(folder), storage)
        print("ready", flush=True)
    else:
        claim = ledger.claim(Ticket(f"key{int(line)}", "arm", int(line), {}))
        print("refused" if claim is None else "claimed", flush=True)
"""


@pytest.fixture(scope="module")
def racers() -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that open a ledger and claim runs, a line of input for each."""
    command = [sys.executable, "-W", "ignore", "-c", RACE]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    yield processes
    for process in processes:
        process.communicate()


def answers(racers: list[subprocess.Popen[str]], line: str) -> list[str]:
    """The answers of processes to a line that both have before either answers, in alphabetical order."""
    for racer in racers:
        print(line, file=racer.stdin, flush=True)
    return sorted(racer.stdout.readline().strip() for racer in racers if racer.stdout)


@pytest.mark.slow
def test_processes_that_race_for_the_same_runs_take_each_once(
    tmp_path: Path, storage: str, racers: list[subprocess.Popen[str]]
) -> None:
    assert answers(racers, f"open {tmp_path} {storage}") == ["ready", "ready"]
    for number in range(40):  # one start for each run, so that neither process can take all before the other begins
        assert answers(racers, str(number)) == ["claimed", "refused"], number


@pytest.mark.slow
def test_a_ledger_is_the_same_on_every_storage(tmp_path: Path, storage: str) -> None:
    first, second = (Ledger(tmp_path, storage, heartbeat=1, grace=1) for _ in range(2))
    claim = first.claim(TICKETS[0])
    assert claim is not None and second.claim(TICKETS[0]) is None
    assert first.beat({claim: Pulse("fit", 3, 20)}) == []
    assert [standing.pulse for standing in second.standings()] == [Pulse("fit", 3, 20)]
    assert second.reap() == []
    first.release(claim, "interrupted")
    time.sleep(LOOK_SECONDS)  # so old may a look be that finds a run taken
    new_claim = second.claim(TICKETS[0])
    assert new_claim is not None and first.beat({claim: Pulse()}) == [claim]
    second.settle(new_claim, "finished", value=1.0)
    assert first.attempts("key0") == 2 and first.standings() == []
    first.close()
    second.close()


def test_a_damaged_ledger_is_moved_aside_and_built_again(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"no database at all" * 100)
    rebuilt = Ledger(tmp_path)
    assert "moved to ledger.db.damaged" in rebuilt.notes[0]
    rebuilt.enter([Ending(TICKETS[0], "finished", None, 2.0), Ending(TICKETS[1], "failed", "nan", None)])
    rebuilt.enter([Ending(TICKETS[0], "finished", None, 2.0)])
    rebuilt.close()
    assert [trial.state.name for trial in trials(tmp_path)] == ["COMPLETE", "FAIL"]


def test_a_ledger_cut_short_is_moved_aside(tmp_path: Path) -> None:
    Ledger(tmp_path).close()
    path = tmp_path / "ledger.db"
    path.write_bytes(path.read_bytes()[:5000])
    rebuilt = Ledger(tmp_path)
    assert rebuilt.claim(TICKETS[0]) is not None
    rebuilt.close()
    assert rebuilt.notes and path.with_name("ledger.db.damaged").exists()


def test_a_claim_takes_as_many_steps_of_the_database_with_many_ended_runs_as_with_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, steps = sqlite3.connect, [0]

    def counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 1)
        return connection

    monkeypatch.setattr("sqlite3.connect", counted)
    ledger, taken = Ledger(tmp_path), []
    for number, ticket in enumerate(TICKETS):
        ledger.settle(ledger.claim(ticket) or 0, "finished", value=1.0)  # reads the latest entries
        before = steps[0]
        ledger.settle(ledger.claim(ticket) or 0, "finished", value=1.0)
        taken.append(steps[0] - before)
        ledger.enter(Ending(Ticket(f"{number} {n}", "arm", n, {}), "finished", None, 1.0) for n in range(300))
    ledger.close()
    assert taken[-1] < 1.2 * taken[0]


def test_a_ledger_whose_tables_are_there_is_opened_without_optuna(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tables of the installed version are those that the statements are written for."""
    Ledger(tmp_path).close()
    monkeypatch.setattr("sweeps.ledger.attempts.open_storage", lambda address: pytest.fail("by Optuna"))
    Ledger(tmp_path).close()


def test_tables_of_another_revision_are_left_to_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.ledger.attempts.TABLES", "another")
    first, second = Ledger(tmp_path), Ledger(tmp_path)
    claim = first.claim(TICKETS[0])
    assert claim is not None and second.claim(TICKETS[0]) is None
    first.settle(claim, "finished", value=1.5)
    assert first.beat({claim: Pulse()}) == [claim]
    first.close()
    second.close()
    assert [trial.value for trial in trials(tmp_path)] == [1.5]


def test_while_one_worker_claims_no_other_does(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.ledger.storage.LOCK_SECONDS", 0.0)
    attempts = open_attempts(find_address(None, tmp_path))
    with attempts.turn(), pytest.raises(LedgerError, match="database is locked"):
        ledger.claim(TICKETS[0])
    attempts.close()


def test_what_was_read_in_a_transaction_that_failed_is_forgotten(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute, failed = Connection.exec_driver_sql, list[str]()

    def once(connection: Connection, statement: str, *arguments: Any) -> Any:
        if statement == "COMMIT" and not failed:
            failed.append(statement)
            raise OperationalError(statement, None, sqlite3.OperationalError("database is locked"))
        return execute(connection, statement, *arguments)

    monkeypatch.setattr(Connection, "exec_driver_sql", once)
    monkeypatch.setattr("sweeps.ledger.storage.RETRY_SECONDS", 0.0)
    assert ledger.claim(TICKETS[0]) is not None and failed
    assert ledger.attempts("key0") == 1


def test_a_database_that_cannot_be_reached_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="unable to open"):
        Ledger(tmp_path, f"sqlite:///{tmp_path}")


@contextmanager
def locked_by_another(path: Path) -> Iterator[Callable[[], None]]:
    """Another program holds a lock on a file, until the function that this yields is called or the block ends."""
    is_writing, released = threading.Event(), threading.Event()

    def write() -> None:
        with sqlite3.connect(path, isolation_level=None) as database:
            database.execute("BEGIN EXCLUSIVE")
            is_writing.set()
            released.wait()
            database.execute("COMMIT")

    thread = threading.Thread(target=write)
    thread.start()
    is_writing.wait()
    try:
        yield released.set
    finally:
        released.set()
        thread.join()


def test_a_file_that_another_program_writes_to_is_waited_for_and_said(ledger: Ledger, tmp_path: Path) -> None:
    messages: list[str] = []
    with locked_by_another(tmp_path / "ledger.db") as let_go:

        def on_message(message: str) -> None:
            messages.append(message)
            let_go()

        ledger.attend(on_message, lambda: True)
        assert ledger.claim(TICKETS[0]) is not None
    assert "database is locked; waiting for it" in messages[0] and "is back" in messages[1]


@pytest.mark.slow
def test_a_file_that_stays_locked_is_one_clear_error(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeps.ledger.storage.LOCK_SECONDS", 0.2)
    pattern = r"ledger .*ledger.db: database is locked; another program holds it"
    with locked_by_another(tmp_path / "ledger.db"), pytest.raises(LedgerError, match=pattern):
        ledger.reap()


def test_a_person_who_stops_the_command_does_not_wait_for_the_ledger(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(seconds: float) -> None:
        pytest.fail("it waits")

    monkeypatch.setattr("sweeps.ledger.storage.time", SimpleNamespace(monotonic=time.monotonic, sleep=fail))
    ledger.attend(lambda message: None, lambda: False)
    with locked_by_another(tmp_path / "ledger.db"), pytest.raises(LedgerError):
        ledger.reap()


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("nonsense", "--storage: not an address"),
        ("postgresql://me:secret@host:port/runs", "--storage: not an address"),
        ("grpc://host", "a proxy needs host and port"),
        ("sqlite://", "sqlite needs a file"),
        ("mysql://me:secret@host/runs", "ledger mysql host/runs: its driver MySQLdb is not installed, and no extra of"),
        ("sqlite:////no/such/folder/x.db", "--storage: there is no folder /no/such/folder; make it"),
        ("oracle9://me:secret@host/runs", "ledger oracle9 host/runs: not a kind of database"),
        ("postgresql://me:secret@127.0.0.1:1/runs", "ledger postgresql 127.0.0.1:1/runs: .*refused"),
        ("grpc://127.0.0.1:1", "ledger proxy 127.0.0.1:1: no answer; start one: python -m sweeps serve"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_clear_error_without_its_password(
    tmp_path: Path, url: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeps.ledger.storage.FIRST_SECONDS", 0.2)
    monkeypatch.setitem(sys.modules, "MySQLdb", None)
    with pytest.raises(LedgerError, match=line) as raised:
        Ledger(tmp_path, url)
    assert "secret" not in str(raised.value) and "\n" not in str(raised.value)


def test_an_error_of_a_storage_does_not_repeat_a_password_of_its_parameters(tmp_path: Path) -> None:
    def question() -> None:
        raise SQLAlchemyError("connection failed: host=server password=s3cr3t")

    connection = StorageConnection(find_address("postgresql://server/runs?password=s3cr3t", tmp_path), 0.0)
    with pytest.raises(LedgerError, match=r"server password=\*\*\*; the records are safe"):
        connection.ask(question)
