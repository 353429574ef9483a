"""The ledger hands every run out once, notices the dead, and can be lost without loss."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from sweeps.ledger import Ending, Ledger, LedgerError
from sweeps.ticket import Ticket

TICKETS = [Ticket(f"key{number}", "arm", number, {}) for number in range(3)]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path, heartbeat=1, grace=1)
    yield opened
    opened.close()


def trials(runs: Path) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="runs", storage=f"sqlite:///{runs}/ledger.db").trials


def test_a_run_is_handed_out_once(ledger: Ledger, tmp_path: Path) -> None:
    other = Ledger(tmp_path)
    ledger.submit(TICKETS)
    other.submit(TICKETS)
    assert len(trials(tmp_path)) == len(TICKETS)
    assert ledger.claim("key0") is not None
    assert other.claim("key0") is None
    assert other.claim("key1") is not None
    other.close()


def test_a_run_nobody_entered_is_not_handed_out(ledger: Ledger) -> None:
    assert ledger.claim("key9") is None
    assert ledger.is_over("key9")


def test_how_a_run_ended_is_noted_with_its_value_and_reason(ledger: Ledger, tmp_path: Path) -> None:
    ledger.submit(TICKETS)
    claims = [ledger.claim(ticket.key) or 0 for ticket in TICKETS]
    ledger.settle(claims[0], "finished", value=1.5)
    ledger.settle(claims[1], "failed", "not-a-number", float("nan"))
    ledger.settle(claims[2], "pruned")
    first, second, third = trials(tmp_path)
    assert (first.state.name, first.value, first.user_attrs["key"]) == ("COMPLETE", 1.5, "key0")
    assert (second.state.name, second.user_attrs["reason"]) == ("FAIL", "not-a-number")
    assert third.state.name == "PRUNED"


def test_a_run_given_back_waits_again_and_its_attempts_are_counted(ledger: Ledger) -> None:
    ledger.submit(TICKETS[:1])
    for attempt in (1, 2):
        claim = ledger.claim("key0")
        assert claim is not None
        ledger.release(claim, "interrupted")
        assert ledger.attempts("key0") == attempt
    assert ledger.claim("key0") is not None


def test_the_run_of_a_process_that_died_here_is_given_to_the_next_at_once(ledger: Ledger, tmp_path: Path) -> None:
    ledger.submit(TICKETS[:1])
    take = "import sys, pathlib, sweeps.ledger as l; l.Ledger(pathlib.Path(sys.argv[1])).claim('key0')"
    subprocess.run([sys.executable, "-W", "ignore", "-c", take, str(tmp_path)], check=True)
    assert ledger.claim("key0") is None
    assert ledger.reap() == ["key0"]
    assert ledger.reap() == []
    assert ledger.claim("key0") is not None


def test_the_run_of_a_machine_that_fell_silent_is_given_to_the_next(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.submit(TICKETS[:1])
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    claim = ledger.claim("key0")
    assert claim is not None
    monkeypatch.undo()
    assert ledger.reap() == []
    time.sleep(2.5)
    assert ledger.reap() == ["key0"]
    ledger.release(claim, "too late")  # the silent owner wakes up: its run is not queued a second time
    assert ledger.claim("key0") is not None
    assert ledger.claim("key0") is None


def test_a_beating_owner_keeps_its_run(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.submit(TICKETS[:1])
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    claim = ledger.claim("key0")
    assert claim is not None
    monkeypatch.undo()
    for _ in range(5):
        time.sleep(0.5)
        ledger.beat([claim])
        assert ledger.reap() == []


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
    rebuilt.submit(TICKETS)
    rebuilt.close()
    assert rebuilt.notes and path.with_name("ledger.db.damaged").exists()


def test_a_database_that_cannot_be_reached_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="unable to open"):
        Ledger(tmp_path, f"sqlite:///{tmp_path}/nowhere/ledger.db")
