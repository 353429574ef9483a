"""Limits of time and memory: a run that breaks them ends with the reason, a run that stays within them is not
disturbed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from standin_runs import OPTIONS, finishes, go, metrics, never_interrupted, states, tickets, workers_of

from lit_transformers.config import ConfigError
from sweeps.launchers.limits import parse_bytes, parse_seconds, write_bytes, write_seconds
from sweeps.ledger.ticket import State


def be_late_once(monkeypatch: pytest.MonkeyPatch, condition: Callable[[], object]) -> None:
    """Makes it an hour later, for whoever enforces limits, as soon as the condition holds."""
    late = SimpleNamespace(monotonic=lambda: time.monotonic() + (3600.0 if condition() else 0.0))
    monkeypatch.setattr("sweeps.launchers.local.time", late)


@pytest.mark.slow
def test_a_run_that_hangs_is_ended_at_its_time_limit_and_the_rest_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_tickets, limited = [*tickets(1, fault="hang"), *tickets(2)], OPTIONS._replace(time_limit=60.0)
    hanging, *others = (ticket.directory(tmp_path / "runs") for ticket in run_tickets)
    with monkeypatch.context() as patch:
        patch.setattr("sweeps.launchers.local.CHECKPOINT_SECONDS", 0.2)
        files = [hanging / "checkpoint.ckpt", *(directory / "record.json" for directory in others)]
        be_late_once(patch, lambda: all(path.exists() for path in files))
        summary = go(tmp_path / "runs", run_tickets, limited)
    assert states(summary) == [State.FAILED, State.FINISHED, State.FINISHED]
    assert summary.rows[0].reason == "time limit of 1m reached"
    assert not workers_of(tmp_path)
    assert states(go(tmp_path / "runs", run_tickets, limited)) == [State.FAILED, State.FINISHED, State.FINISHED]
    longer = go(tmp_path / "runs", run_tickets, OPTIONS._replace(time_limit=120.0))
    assert states(longer) == [State.FINISHED] * 3
    assert metrics(tmp_path / "runs", run_tickets) == never_interrupted(tmp_path / "quiet", run_tickets)


@pytest.mark.slow
def test_a_run_that_is_only_slow_leaves_a_checkpoint_at_its_time_limit_and_goes_on_where_no_limit_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (slow,) = run_tickets = tickets(1, fault="wait")
    directory = slow.directory(tmp_path)
    with monkeypatch.context() as patch:
        be_late_once(patch, (directory / "checkpoint.ckpt").exists)
        summary = go(tmp_path, run_tickets, OPTIONS._replace(time_limit=60.0))
    assert states(summary) == [State.FAILED] and summary.rows[0].reason == "time limit of 1m reached"
    record = json.loads((directory / "record.json").read_text())
    assert (record["outcome"], record["resumable"], record["time_limit"]) == ("failed", False, 60.0)
    step, _ = json.loads((directory / "checkpoint.ckpt").read_text())
    assert step > 3
    assert states(go(tmp_path, run_tickets, OPTIONS)) == [State.FINISHED]
    assert finishes(tmp_path, slow) == 1


@pytest.mark.slow
def test_a_run_that_leaks_is_ended_at_its_memory_limit_and_the_rest_go_on(tmp_path: Path) -> None:
    run_tickets = [*tickets(1, fault="leak"), *tickets(2)]
    summary = go(tmp_path, run_tickets, OPTIONS._replace(memory_limit=512 << 20))
    assert states(summary) == [State.FAILED, State.FINISHED, State.FINISHED]
    reason = summary.rows[0].reason or ""
    assert reason.startswith("out of memory: it held ") and reason.endswith("the limit is 512 MiB")
    assert not workers_of(tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("90m", 5400), ("2h", 7200), ("1h30m", 5400), ("1d", 86400), ("7.5", 7.5)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--time-limit") == seconds
    assert parse_seconds(write_seconds(seconds), "again") == seconds


@pytest.mark.parametrize(("text", "amount"), [("2GiB", 2 << 30), ("512MB", 512_000_000), ("1.5G", 1_500_000_000)])
def test_sizes_are_read(text: str, amount: int) -> None:
    assert parse_bytes(text, "--memory-limit") == amount


def test_sizes_are_written_for_people() -> None:
    assert (write_bytes(3 << 30), write_bytes(512 << 20)) == ("3 GiB", "512 MiB")


@pytest.mark.parametrize("text", ["", "soon", "2 hours", "-1h", "0", "1h2x", "2:00:00"])
def test_what_is_no_time_is_refused_by_the_option_s_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--time-limit: "):
        parse_seconds(text, "--time-limit")


@pytest.mark.parametrize("text", ["", "much", "GiB", "-1GiB", "0", "2XiB"])
def test_what_is_no_size_is_refused_by_the_option_s_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--memory-limit: "):
        parse_bytes(text, "--memory-limit")
