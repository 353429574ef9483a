"""Studies on a real SLURM cluster of two nodes on this machine, started by tests/services/slurm.sh."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from io import StringIO
from multiprocessing import AuthenticationError
from pathlib import Path

import pytest
from rich.console import Console
from small_project import SMALL, write_small_project
from standin.chains import alone, chained
from standin.run import RELEASED
from standin_runs import finishes, metrics, never_interrupted, tickets
from waiting import wait_for, when

from lit_transformers.command_runs import CommandRunConfig
from lit_transformers.command_runs.keys import run_key
from lit_transformers.config import ConfigError
from sweeps.launchers.local import Options, Summary
from sweeps.launchers.share import Share
from sweeps.ledger.ledger import Ledger
from sweeps.ledger.run_records import read_record
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board
from sweeps.process import meeting as meeting_module
from sweeps.process.meeting import SECRET, connected, meeting_point
from sweeps.survey import survey

slurm = pytest.importorskip(
    "sweeps.launchers.slurm", reason="submitit is not installed: pip install 'lit-transformers[cluster]'"
)
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "services" / "slurm.sh"
OPTIONS = Options("standin.run:RUNNER", Share(1, 1), metric="val/bpb", study="pauses")
PARAMETERS = {"cpus_per_task": 1, "time": 5}

missing = [program for program in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(program) is None]
on_slurm = pytest.mark.skipif(
    bool(missing) or os.getuid() != 0,
    reason=f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge"
    if missing
    else "only root starts slurmd",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster for as long as the tests of this module run."""
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([SCRIPT, "start", folder], check=True, timeout=240, env={**os.environ, "SLURM_NODES": "2"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setattr(slurm, "LOOK_SECONDS", 0.5)
        yield
    subprocess.run([SCRIPT, "stop", folder], check=True, timeout=240)


COMMANDS = OPTIONS._replace(runner=CommandRunConfig.runner, metric="loss")


def command_ticket(**fields: object) -> Ticket:
    """A run of a command that waits for a file next to its working folder, and works in that of its first attempt."""
    words = ("sh", "-c", "echo begun; while [ ! -e ../go ]; do sleep .1; done; echo '{\"loss\": 2}' # {seed}")
    spelled = {"command": words, "metrics": {"loss": "minimize"}, "folder": None, "training": {"device": "cpu"}}
    config = CommandRunConfig.from_dict({**CommandRunConfig(**spelled).to_dict(), **fields})  # type: ignore[arg-type]
    return Ticket(run_key(config), "plain", 0, config.to_dict())


def go(
    runs: Path,
    run_tickets: list[Ticket],
    report: tuple[str, ...] = (),
    options: Options = OPTIONS,
    **parameters: object,
) -> tuple[Summary, str]:
    """The summary of the runs, and the output."""
    cluster = slurm.Cluster(PARAMETERS | parameters, None, report)
    rows, _ = survey(runs, run_tickets, options.metric, retry_failed=False)
    ledger = Ledger(runs, heartbeat=1, grace=8)
    console = Console(file=StringIO(), width=200)
    try:
        board = Board(console, options.metric)
        summary = slurm.launch_on_slurm(runs, ledger, board, rows, options, cluster)
        return summary, console.file.getvalue()  # type: ignore[attr-defined]
    finally:
        ledger.close()


def in_the_middle(runs: Path, ticket: Ticket, act: Callable[[str], object]) -> AbstractContextManager[None]:
    """Does something to the job of a run as soon as that has a checkpoint."""
    return when((ticket.directory(runs) / "checkpoint.ckpt").exists, lambda: act(jobs(runs)[ticket.key]))


def jobs(runs: Path) -> dict[str, str]:
    return json.loads((runs / "studies" / "pauses" / "slurm" / "jobs.json").read_text())


def scancel(*words: str) -> Callable[[str], object]:
    return lambda job: subprocess.run(["scancel", *words, job], check=True)


def warn(job: str) -> None:
    """Acts as SLURM does before a job's time is up; SLURM would let the job begin again after two minutes.

    A job that begins in the second in which it was put back is refused by the node, which counts in seconds and takes
    the new job's permission for the old one's, and has failed then.
    """
    scancel("--signal=USR2")(job)
    wait_for(lambda: "PENDING" in output_of("squeue", "--noheader", "--jobs", job, "--format=%T"))
    time.sleep(2)
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def attempts(runs: Path, ticket: Ticket) -> int:
    return (ticket.directory(runs) / "log.txt").read_text().count(" process ")


@on_slurm
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
class TestOnACluster:
    def test_every_run_is_a_job_that_runs_once_outlives_the_command_and_the_report_comes_after_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first run waits until a second command watches it."""
        runs, run_tickets = tmp_path / "runs", [*tickets(1, fault="wait"), *tickets(2)]
        count = f"import pathlib; print(len(list(pathlib.Path({str(runs)!r}).glob('*/record.json'))), flush=True)"
        with in_the_middle(runs, run_tickets[0], lambda job: os.kill(os.getpid(), signal.SIGINT)):
            summary, output = go(runs, run_tickets, report=(sys.executable, "-c", count))
        assert summary.stopped_by == signal.SIGINT and "the jobs continue" in output
        assert "submitted 3 runs to SLURM" in output
        before, queue = jobs(runs), slurm._queue

        def queue_and_release() -> dict[str, str]:
            (run_tickets[0].directory(runs) / RELEASED).touch()
            return queue()

        monkeypatch.setattr(slurm, "_queue", queue_and_release)
        summary, output = go(runs, run_tickets)
        assert [row.state for row in summary.rows] == [State.FINISHED] * 3
        assert jobs(runs) == before and "submitted" not in output
        assert [finishes(runs, ticket) for ticket in run_tickets] == [1, 1, 1]
        array = {job.split("_")[0] for job in before.values()}
        assert len(array) == 1
        report = runs / "studies" / "pauses" / "slurm" / f"{int(array.pop()) + 3}_0_log.out"
        wait_for(lambda: any("\n3\n" in path.read_text() for path in report.parent.glob("*_log.out")))

    def test_a_job_that_is_killed_is_submitted_again_one_that_is_warned_is_put_back_and_both_go_on(
        self, tmp_path: Path
    ) -> None:
        """One loses its step, another its batch script too; the third is put back by itself."""
        runs, run_tickets = tmp_path / "runs", [*tickets(2, fault="hang"), *tickets(1, fault="wait")]
        warned_jobs: list[str] = []
        with (
            in_the_middle(runs, run_tickets[0], scancel("--signal=KILL")),
            in_the_middle(runs, run_tickets[1], scancel("--signal=KILL", "--full")),
            in_the_middle(runs, run_tickets[2], lambda job: (warned_jobs.append(job), warn(job))),
        ):
            summary, output = go(runs, run_tickets)
        assert [row.state for row in summary.rows] == [State.FINISHED] * 3
        assert [finishes(runs, ticket) for ticket in run_tickets] == [1, 1, 1]
        assert [attempts(runs, ticket) for ticket in run_tickets] == [2, 2, 2]
        assert 1 < output.count("submitted") <= 3 and jobs(runs)[run_tickets[2].key] == warned_jobs[0]
        assert metrics(runs, run_tickets) == never_interrupted(tmp_path / "quiet", run_tickets)

    def test_runs_that_start_from_others_wait_for_their_jobs_and_a_chain_whose_first_fails_says_why(
        self, tmp_path: Path
    ) -> None:
        """All are submitted at once, so that they continue without the command."""
        runs, run_tickets = tmp_path / "runs", chained(4, 10, 5)
        summary, output = go(runs, run_tickets)
        assert [row.state for row in summary.rows] == [State.FINISHED] * 3, output
        assert [finishes(runs, ticket) for ticket in run_tickets] == [1, 1, 1]
        assert (
            output.count("submitted 3 runs to SLURM") == 1
            and len({one.split("_")[0] for one in jobs(runs).values()}) == 3
        )
        assert metrics(runs, run_tickets) == alone(4, 10, 5, runs=tmp_path / "quiet")
        broken = chained(4, 3, fault="raise")
        summary, _ = go(tmp_path / "broken", broken)
        assert [row.state for row in summary.rows] == [State.FAILED] * 2
        assert summary.rows[1].reason == f"its source {broken[0].key} failed: RuntimeError: something broke"

    def test_ranks_of_a_run_are_spread_over_nodes_and_go_on_together_after_a_warning(self, tmp_path: Path) -> None:
        runs, run_tickets = tmp_path / "runs", tickets(1, fault="wait", devices=2)
        steps: list[str] = []

        def warn_all_nodes(job: str) -> None:
            steps.append(output_of("squeue", "--noheader", "--steps", "--format=%N"))
            warn(job)

        with in_the_middle(runs, run_tickets[0], warn_all_nodes):
            summary, _ = go(runs, run_tickets, nodes=2)
        assert [row.state for row in summary.rows] == [State.FINISHED]
        assert "node[1-2]" in steps[0].split()
        assert finishes(runs, run_tickets[0]) == 1 and attempts(runs, run_tickets[0]) == 2
        assert metrics(runs, run_tickets) == never_interrupted(tmp_path / "quiet", run_tickets)

    def test_a_command_is_a_job_that_is_put_back_when_it_is_warned_and_begins_anew(self, tmp_path: Path) -> None:
        """The signal reaches all processes of the job."""
        (ticket,) = run_tickets = [command_ticket()]
        output = ticket.directory(tmp_path) / "output.txt"

        def act() -> None:
            warn(jobs(tmp_path)[ticket.key])
            (ticket.directory(tmp_path) / "go").touch()

        with when(lambda: output.exists() and output.read_text() == "begun\n", act):
            summary, printed = go(tmp_path, run_tickets, options=COMMANDS)
        assert [(row.state, row.value) for row in summary.rows] == [(State.FINISHED, 2.0)], printed
        assert attempts(tmp_path, ticket) == 2 and output.read_text().count("begun") == 1

    def test_a_typed_plugin_reaches_the_jobs(self, tmp_path: Path) -> None:
        project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
        study = write_small_project(project)
        elsewhere.mkdir()
        typed = ["run", str(study), "--plugin", str(project / "my_parts.py"), *SMALL, "--set", "training.device=cpu"]
        jobs = ["--launcher", "slurm", "--slurm", "time=5", "--slurm", "cpus_per_task=1"]
        command = [sys.executable, "-m", "ablations", *typed, *jobs]
        done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
        ends = [json.loads(path.read_text()) for path in elsewhere.glob("runs/*/record.json")]
        mixers = [(record["outcome"], record["config"]["model"]["mixer"]["kind"]) for record in ends]
        assert sorted(mixers) == [("finished", "attention"), ("finished", "decay")]

    def test_what_slurm_refuses_is_one_line(self, tmp_path: Path) -> None:
        rows, _ = survey(tmp_path, tickets(1), OPTIONS.metric, retry_failed=False)
        ledger = Ledger(tmp_path)
        cluster = slurm.Cluster({"partition": "nowhere"}, None, ())
        with pytest.raises(ConfigError, match=r"SLURM refused the jobs: .*partition"):
            slurm.launch_on_slurm(tmp_path, ledger, Board(Console(file=StringIO())), rows, OPTIONS, cluster)
        ledger.close()


@pytest.mark.parametrize(
    ("resume", "seconds", "is_put_back"), [("anew", 0.0, False), ("anew", 600.0, True), ("folder", 0.0, True)]
)
def test_a_job_whose_time_was_up_is_put_back_only_if_its_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: str, seconds: float, is_put_back: bool
) -> None:
    """A command that begins anew would be put back for ever."""
    ticket, sent = command_ticket(resume=resume), list[int]()
    rows, _ = survey(tmp_path, [ticket], "loss", retry_failed=False)
    monkeypatch.setattr(slurm.RemoteRun, "perform", lambda *_: Summary(rows, signal.SIGUSR2))
    monkeypatch.setattr(slurm.signal, "raise_signal", sent.append)
    job = slurm.Job(slurm.RemoteRun(tmp_path, ticket, COMMANDS, 1, 4), 1, seconds)
    with pytest.raises(SystemExit) if is_put_back else nullcontext():
        assert job() == State.FAILED
    record = read_record(ticket.directory(tmp_path)).record
    assert (record is None, bool(sent)) == (is_put_back, is_put_back)
    assert record is None or (record.resumable and "--slurm time=8h" in (record.reason or ""))
    assert slurm.Cluster({"time": 10}, None, ()).seconds == 600 - 120 - 60


def test_the_ranks_of_a_job_share_its_cores_unless_the_environment_asks_for_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (ticket,) = tickets(1)
    assert slurm._share(ticket).threads == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert slurm._share(ticket).threads == 8


def test_the_ranks_on_a_node_share_its_cores_and_nodes_that_cannot_share_the_ranks_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (ticket,) = tickets(1, devices=4)
    assert slurm._share(ticket, nodes=2).threads == 4
    message = r"--slurm nodes: 3 nodes cannot share 4 ranks of a run equally; give --devices 3, or a multiple"
    with pytest.raises(ConfigError, match=message):
        go(tmp_path, [ticket], nodes=3)


def test_a_rank_that_does_not_know_the_secret_is_not_let_in_and_a_silent_client_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meeting_module, "SECRET_SECONDS", 5.0)
    with meeting_point(socket.gethostname()) as meeting, ThreadPoolExecutor(1) as rank:
        host, _, port = meeting.address.rpartition(":")
        silent = socket.create_connection((host, int(port)))
        monkeypatch.setenv(SECRET, "a guess")
        guess = rank.submit(connected, meeting.address)
        assert meeting.accept() is None
        with pytest.raises(AuthenticationError):
            guess.result(timeout=30)
        monkeypatch.setenv(SECRET, meeting.secret)
        connection = rank.submit(connected, meeting.address)
        accepted = meeting.accept()
        assert accepted is not None
        accepted.send("order")
        assert connection.result(timeout=30).recv() == "order"
        accepted.close()
        silent.close()


def test_parameters_are_what_submitit_calls_them() -> None:
    assert slurm.parse_parameters(["partition=gpu", "time=90", "mem=8GiB", "gpus_per_node=2"]) == {
        "partition": "gpu",
        "time": 90,
        "mem": 8.0,
        "gpus_per_node": 2,
    }
    assert slurm.parse_parameters(["time=1h30m"]) == {"time": 90}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("partitoin=gpu", "--slurm: no parameter 'partitoin'; did you mean partition"),
        ("partition", "--slurm: write name=value, not 'partition'"),
        ("time=2:00:00", "--slurm time: '2:00:00' is no time"),
        ("mem=much", "--slurm mem: 'much' is no amount of memory"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_in_one_line(typed: str, message: str) -> None:
    with pytest.raises(ConfigError, match="--slurm") as error:
        slurm.parse_parameters([typed])
    assert str(error.value).startswith(message)
