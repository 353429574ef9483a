"""Workers that share a study over a database: whichever process dies on the way, every run is done once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from databases import SCRIPT, Server, proxy
from standin.run import RunConfig, fit
from waiting import wait_for, when

from ablations.__main__ import main
from ablations.catalog import load
from ablations.options import out as ablations_out
from ablations.plan import Request, make_plan
from sweeps.__main__ import main as sweeps
from sweeps.ledger.ledger import Ledger, Pulse
from sweeps.ledger.ticket import Ticket
from sweeps.ledger_command import out as sweeps_out

STUDY = """
from ablations.ablation import Ablation, Metric, Scale
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does memory help?",
    baseline=RunConfig().override({"training.steps": 40, "training.pause": 0.05}),
    factors={"memory": {"on": {}, "off": {"model.mixer.memory": 0}}},
    seeds=3,
    metric=Metric("val/bpb", goal="minimize"),
    scales={"demo": Scale()},
)
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "memory_helps.py"
    path.write_text(STUDY)
    return path


def tickets(study: Path) -> list[Ticket]:
    return make_plan(study.stem, load(study), Request()).tickets()


class Worker:
    """``python -m ablations worker`` in a separate process."""

    def __init__(self, study: Path, runs: Path, url: str, *more: str) -> None:
        words = ["-m", "ablations", "worker", str(study), "--runs", str(runs), "--workers", "2", *more]
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "LIT_TRANSFORMERS_STORAGE": url},
        )

    def end(self, seconds: float = 240.0) -> str:
        """Waits for the end of the process and returns its output."""
        output, _ = self.process.communicate(timeout=seconds)
        return output


def finishes(runs: Path, run_tickets: list[Ticket]) -> list[int]:
    paths = [ticket.directory(runs) / "finishes.txt" for ticket in run_tickets]
    return [len(path.read_text().splitlines()) if path.exists() else 0 for path in paths]


def metrics(runs: Path, run_tickets: list[Ticket]) -> list[object]:
    return [json.loads((ticket.directory(runs) / "record.json").read_text())["metrics"] for ticket in run_tickets]


def undisturbed(runs: Path, run_tickets: list[Ticket]) -> list[object]:
    for ticket in run_tickets:
        ticket.directory(runs).mkdir(parents=True)
        fit(RunConfig.from_dict(ticket.config).override({"training.pause": 0.0}), ticket.directory(runs))
    return metrics(runs, run_tickets)


@pytest.mark.slow
@pytest.mark.usefixtures("wide")
def test_a_worker_is_killed_and_the_server_restarts_and_every_run_finishes_once_with_the_same_numbers(
    study: Path,
    tmp_path: Path,
    postgres: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The worker that is killed reaches the server itself, the other one, of this process, through a proxy."""
    runs, run_tickets, url = tmp_path / "runs", tickets(study), postgres.database()
    monkeypatch.setattr(Ledger.__init__, "__defaults__", (None, 1, 60, 300.0))  # it looks for the dead each second
    first = Worker(study, runs, url)

    def kill_and_restart() -> None:
        first.process.kill()
        first.end()
        postgres.restart()

    def both_are_at_work() -> bool:
        return len(list(runs.glob("*/checkpoint.ckpt"))) >= 3  # each does two at a time

    with proxy(url, runs) as address, when(both_are_at_work, kill_and_restart):
        status = main(["worker", str(study), "--runs", str(runs), "--workers", "2", "--storage", address])
    output = capsys.readouterr().out
    assert status == 0, output
    assert finishes(runs, run_tickets) == [1] * 6
    assert metrics(runs, run_tickets) == undisturbed(tmp_path / "quiet", run_tickets)
    assert "6 runs: 6 finished" in output.splitlines()[-1] and "took " in output.splitlines()[-1]


@pytest.mark.slow
def test_a_server_that_is_away_is_waited_for_and_said(tmp_path: Path, postgres: Server) -> None:
    messages: list[str] = []
    ledger = Ledger(tmp_path, postgres.database())
    ledger.attend(messages.append, lambda: True)
    claim = ledger.claim(Ticket("key", "arm", 0, {}))
    assert claim is not None
    subprocess.run([SCRIPT, "stop", postgres.folder], check=True)
    start = [str(SCRIPT), "start", str(postgres.folder)]
    starting = subprocess.Popen(["sh", "-c", 'sleep 1; exec "$@"', "sh", *start], stdout=subprocess.DEVNULL)
    assert ledger.beat({claim: Pulse()}) == []
    assert starting.wait() == 0
    assert "waiting for it, up to 300 s" in messages[0] and "is back after" in messages[1]
    ledger.close()


@pytest.mark.slow
def test_a_server_that_has_become_read_only_is_waited_for(tmp_path: Path, postgres: Server) -> None:
    messages: list[str] = []
    ledger = Ledger(tmp_path, postgres.database())
    ledger.attend(messages.append, lambda: True)
    claim = ledger.claim(Ticket("key", "arm", 0, {}))
    assert claim is not None
    engine = ledger._storage._engine  # type: ignore[attr-defined]

    def session() -> int:
        with engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar())

    before = session()
    postgres.write_only_if(False)
    with when(lambda: messages, lambda: postgres.write_only_if(True)):
        wait_for(lambda: ledger.beat({claim: Pulse()}) == [] and messages)
    assert "read-only transaction; waiting for it, up to 300 s" in messages[0] and "is back after" in messages[1]
    assert session() != before, "a connection to the read-only server is kept"
    ledger.close()


@pytest.mark.slow
def test_passwords_are_neither_printed_nor_written(study: Path, tmp_path: Path, postgres: Server) -> None:
    secret = "s3cr3t{tt}%41"
    url = postgres.database().replace("lit@", "lit:s3cr3t{tt}%2541@")
    worker = Worker(study, tmp_path / "runs", url, "--seeds", "1", "--set", "training.steps=3")
    output = worker.end()
    assert worker.process.returncode == 0, output
    broken = Worker(study, tmp_path / "runs", url.rpartition("/")[0] + "/nowhere", "--seeds", "2")
    output += broken.end()
    assert broken.process.returncode == 2 and 'database "nowhere" does not exist' in output
    assert secret not in output and "s3cr3t" not in output
    for path in (tmp_path / "runs").rglob("*"):
        assert not path.is_file() or b"s3cr3t" not in path.read_bytes(), path


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal on which no cell is cut."""
    for out in (ablations_out, sweeps_out):
        monkeypatch.setattr(out, "width", 200)


@pytest.mark.slow
def test_a_worker_keeps_limits_and_names_the_option_that_it_cannot_read(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study.write_text(STUDY.replace('"training.pause": 0.05', '"training.fault": "wait"').replace("seeds=3", "seeds=1"))
    runs = tmp_path / "runs"
    words = ["worker", str(study), "--runs", str(runs), "--workers", "2"]
    assert main([*words, "--time-limit", "1s"]) == 1
    records = [json.loads((ticket.directory(runs) / "record.json").read_text()) for ticket in tickets(study)]
    assert [record["reason"] for record in records] == ["time limit of 1s reached"] * 2
    for option in ("--time-limit", "--memory-limit", "--memory-per-run"):
        assert main([*words, option, "much"]) == 2
        assert option in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("wide")
def test_status_tells_who_does_what(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, run_tickets = tmp_path / "runs", tickets(study)
    ledger = Ledger(runs)
    claim = ledger.claim(run_tickets[1], "memory_helps")
    assert claim is not None
    ledger.beat({claim: Pulse("fit", 12, 60, 75.0)})
    assert main(["status", str(study), "--runs", str(runs)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "6 runs: 5 waiting, 1 fit" in output
    assert f"{socket.gethostname()}:{os.getpid()}" in output and "12/60" in output and "1:1" in output
    ledger.close()


@pytest.mark.usefixtures("wide")
def test_status_of_all_studies_names_study_arm_and_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(tmp_path)
    ledger.claim(Ticket("key", "recurrence=off", 4, {}), "xl_recurrence")
    assert sweeps(["status", "--runs", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "xl_recurrence" in output and "recurrence=off" in output and "1 run in progress" in output
    ledger.close()


def test_a_proxy_says_when_its_port_is_taken_or_it_is_sent_to_no_folder_or_another_proxy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = str(listener.getsockname()[1])
        assert sweeps(["serve", "--runs", str(tmp_path), "--host", "127.0.0.1", "--port", port]) == 2
    assert f"127.0.0.1:{port} cannot be listened on" in capsys.readouterr().err
    assert sweeps(["serve", "--runs", str(tmp_path), "--storage", f"sqlite:///{tmp_path}/nowhere/x.db"]) == 2
    assert f"there is no folder {tmp_path}/nowhere" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
    assert sweeps(["serve", "--runs", str(tmp_path), "--storage", "grpc://localhost:1"]) == 2
    assert "in front of a database, not of another proxy" in capsys.readouterr().err
