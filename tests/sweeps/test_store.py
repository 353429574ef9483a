"""Runs in an object store: on a server of S3 or of Google Cloud Storage where a test is of a server, else in a folder
by its address, file://."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path

import fsspec
import pytest
from ports import free_port
from rich.console import Console
from standin.chains import alone, chained
from standin.run import RELEASED
from standin_runs import OPTIONS, go, never_interrupted, states, tickets
from waiting import wait_for

from ablations.__main__ import main
from lit_transformers.config import ConfigError
from lit_transformers.records.files import CHECKPOINT, COMMAND_OUTPUT, DOCUMENTS, RECORD
from sweeps.addresses import secrets_of, without_secrets
from sweeps.launchers.remote import RemoteRun, update_rows
from sweeps.ledger import leases
from sweeps.ledger.leases import Leases
from sweeps.ledger.ledger import Ledger, Pulse
from sweeps.ledger.owner import identify
from sweeps.ledger.run_records import read_record, write_failure
from sweeps.ledger.ticket import State, Ticket
from sweeps.live import Board
from sweeps.object_store import CACHE, LEASES, Store, prepared
from sweeps.process.order import Spread
from sweeps.survey import survey

SERVICES = Path(__file__).parent.parent / "services"
STUDY = """
from ablations.ablation import Ablation, Metric
from standin.run import RunConfig

ABLATION = Ablation(
    question="Does width help?",
    baseline=RunConfig().override({"training.fault": "wait"}),
    factors={"width": {"16": {}, "32": {"model.width": 32}}},
    seeds=1,
    metric=Metric("val/bpb", goal="minimize"),
)
"""


class Server:
    """A server that a script starts. It can be stopped and started again at the same address, and then holds
    nothing."""

    def __init__(self, script: str, folder: Path) -> None:
        self.script, self.folder, self.port = SERVICES / script, folder, free_port()
        self.address = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = [self.script, "start", self.folder, str(self.port)]
        environment = {**os.environ, "PYTHON": sys.executable}
        completed = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=90)
        if completed.returncode == 3:
            pytest.skip(f"no server: {completed.stderr.strip()}")
        assert completed.returncode == 0, completed.stderr

    def stop(self) -> None:
        subprocess.run([self.script, "stop", self.folder], check=True, timeout=30)


@contextmanager
def serving(script: str) -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="store-"))
    server = Server(script, folder)
    try:
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    with serving("s3.sh") as server:
        yield server


@pytest.fixture(scope="session")
def gs_server() -> Iterator[Server]:
    pytest.importorskip("gcsfs", reason="pip install gcsfs")
    with serving("gcs.sh") as server:
        yield server


@pytest.fixture
def s3(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, by the variables that the library of its clients reads."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_MAX_ATTEMPTS": "1"}
    for name, value in ({"AWS_ENDPOINT_URL": s3_server.address} | keys).items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def gs(gs_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server, by the variables that the library of its clients reads."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gs_server.address)
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    return gs_server


@pytest.fixture(params=["s3", "gs"])
def bucket(request: pytest.FixtureRequest) -> str:
    """The address of a bucket of each kind of server."""
    request.getfixturevalue(request.param)
    return f"{request.param}://runs"


def on_machine(number: int, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store as one of several machines has it, with its own working copy."""
    monkeypatch.setenv(CACHE, str(tmp_path / f"machine{number}"))
    return prepared(address)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket/prefix"


@pytest.fixture
def one(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    return on_machine(1, address, tmp_path, monkeypatch)


@pytest.fixture
def other(one: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    return on_machine(2, one.address, tmp_path, monkeypatch)


def command(verb: str, study: Path, address: str, machine: Path) -> subprocess.Popen[str]:
    """The command on a machine whose working copies are in a folder."""
    words = [sys.executable, "-m", "ablations", verb, str(study), "--runs", address, "--workers", "2"]
    environment = {**os.environ, CACHE: str(machine)}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def objects(address: str, name: str) -> list[str]:
    files, root = fsspec.core.url_to_fs(address)
    files.invalidate_cache()
    return sorted(path for path in files.find(root) if path.endswith(f"/{name}"))


def records(address: str) -> list[dict[str, object]]:
    files, _ = fsspec.core.url_to_fs(address)
    return [json.loads(files.cat_file(path)) for path in objects(address, RECORD)]


def undisturbed(run_records: list[dict[str, object]], folder: Path) -> list[object]:
    """The metrics of the same runs, each done at once."""
    run_tickets = [Ticket(str(one["key"]), "", 0, dict(one["config"])) for one in run_records]  # type: ignore[call-overload]
    return never_interrupted(folder, run_tickets)


@pytest.mark.slow
def test_a_machine_with_an_empty_disk_goes_on_from_the_checkpoint_in_the_store(bucket: str, tmp_path: Path) -> None:
    """Runs wait at step 5 where they have begun at step 0: a run that is done anew would not end."""
    study, address, lost = tmp_path / "width.py", f"{bucket}/killed", tmp_path / "lost"
    study.write_text(STUDY)
    process = command("worker", study, address, lost)
    wait_for(lambda: len(objects(address, CHECKPOINT)) == 2, every=0.2)
    process.kill()
    process.wait()
    shutil.rmtree(lost)
    assert not objects(address, RECORD)
    output, _ = (second := command("run", study, address, tmp_path / "new")).communicate(timeout=60)
    assert second.returncode == 0, output
    assert f"{address}: working copy {tmp_path}/new/stores/" in output
    assert [one["metrics"] for one in records(address)] == undisturbed(records(address), tmp_path / "undisturbed")
    assert len(objects(address, "report.md")) == 1


@pytest.mark.slow
def test_results_wait_for_a_store_that_is_away(s3: Server, tmp_path: Path) -> None:
    study, address, machine = tmp_path / "width.py", "s3://runs/away", tmp_path / "machine"
    study.write_text(STUDY)
    process = command("worker", study, address, machine)
    wait_for(lambda: len(objects(address, CHECKPOINT)) == 2, every=0.2)
    s3.stop()
    runs = [path.parent for path in machine.glob(f"stores/*/*/{CHECKPOINT}")]
    for run in runs:
        (run / RELEASED).touch()
    wait_for(lambda: all("trying again" in (run / "log.txt").read_text() for run in runs))
    s3.start()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert len(records(address)) == len(objects(address, CHECKPOINT)) == 2
    assert [one["metrics"] for one in records(address)] == undisturbed(records(address), tmp_path / "undisturbed")


def test_a_machine_brings_what_its_runs_start_from(one: Store, other: Store, tmp_path: Path) -> None:
    """The first stage was done elsewhere, and the working copy of this machine is empty."""
    first, second, last = chained(4, 10, 5)
    assert states(go(one.folder, [first, second])) == [State.FINISHED] * 2
    assert states(go(other.folder, [first, second, last])) == [State.FINISHED] * 3
    assert not (other.folder / first.key / CHECKPOINT).exists(), "no run here starts from it"
    done = [read_record(other.folder / ticket.key).record for ticket in (first, second, last)]
    assert [one.metrics for one in done if one] == alone(4, 10, 5, runs=tmp_path / "quiet")
    assert not (other.folder / first.key / "finishes.txt").exists()


def test_a_run_whose_results_do_not_reach_the_store_has_failed_and_goes_on_later(one: Store, tmp_path: Path) -> None:
    (ticket,) = tickets(1)
    obstacle = tmp_path / "bucket" / "prefix" / ticket.key
    obstacle.touch()
    (row,) = go(one.folder, [ticket]).rows
    assert row.state == State.FAILED and one.address in str(row.reason)
    record = read_record(ticket.directory(one.folder)).record
    assert record is not None and record.resumable
    obstacle.unlink()
    assert states(go(one.folder, [ticket])) == [State.FINISHED]
    assert len(records(one.address)) == 1


def test_no_record_is_in_the_store_without_the_files_of_its_run(one: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (ticket,) = tickets(1)
    never_interrupted(one.folder, [ticket])
    (ticket.directory(one.folder) / DOCUMENTS).write_text("document,nats\n")
    (ticket.directory(one.folder) / COMMAND_OUTPUT).write_text("what a command has printed\n")
    put_file = one.files.put_file

    def fail_once(source: str, target: str) -> None:
        if target.endswith((DOCUMENTS, CHECKPOINT)):
            raise PermissionError(target)
        put_file(source, target)

    monkeypatch.setattr(one.files, "put_file", fail_once)
    with pytest.raises(ConfigError, match=one.address):
        one.push_run(ticket.key)
    assert not objects(one.address, RECORD)
    monkeypatch.undo()
    one.push()
    assert all(objects(one.address, name) for name in (RECORD, DOCUMENTS, CHECKPOINT, COMMAND_OUTPUT))


def test_a_record_is_here_after_the_files_of_its_run(one: Store, other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (ticket,) = tickets(1)
    never_interrupted(one.folder, [ticket])
    (ticket.directory(one.folder) / DOCUMENTS).write_text("document,nats\n")
    one.push_run(ticket.key)
    other.files  # noqa: B018
    monkeypatch.setattr(other.files, "get_file", lambda source, target: (_ for _ in ()).throw(PermissionError(source)))
    with pytest.raises(ConfigError):
        other.pull()
    assert read_record(ticket.directory(other.folder)).record is None
    monkeypatch.undo()
    other.pull()
    assert read_record(ticket.directory(other.folder)).record is not None
    assert (ticket.directory(other.folder) / DOCUMENTS).exists()


HOSTILE = (
    "../../outside/record.json", "/outside/record.json", "a/../../outside/record.json", "a//record.json",
    "./record.json", "studies/../../../outside/plan.json", "studies//plan.json", "studies/a\\..\\plan.json",
    "studies/C:/plan.json", "studies/a\0/plan.json", "studies/a\n/plan.json", "/studies/plan.json",
)  # fmt: skip


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", [pytest.param(name, id=repr(name)) for name in HOSTILE])
def test_a_name_in_a_store_leads_nowhere_but_into_the_working_copy(
    one: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    content, root = json.dumps({"outcome": "finished"}).encode(), one.path("").removesuffix("/")
    before = files_below(tmp_path)
    monkeypatch.setattr(one.files, "find", lambda *_, **__: {f"{root}/{name}": {"size": len(content)}})
    monkeypatch.setattr(one.files, "cat_file", lambda path: content)
    monkeypatch.setattr(one.files, "get_file", lambda source, target: Path(target).write_bytes(content))
    monkeypatch.setattr(one.files, "info", lambda path: {"size": len(content)})
    with pytest.raises(ConfigError, match=r"the name .*remove the object") as refused:
        one.pull()
    assert repr(name) in str(refused.value) and "\n" not in str(refused.value)
    assert files_below(tmp_path) == before


def test_a_link_in_the_working_copy_is_not_followed_out_of_it(one: Store, other: Store, tmp_path: Path) -> None:
    (ticket,) = tickets(1)
    never_interrupted(one.folder, [ticket])
    one.push_run(ticket.key)
    (tmp_path / "outside").mkdir()
    ticket.directory(other.folder).symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match="a link in the working copy"):
        other.pull()
    assert not files_below(tmp_path / "outside")
    (tmp_path / "outside" / "secret").write_text("of this machine")
    (one.folder / "studies").mkdir()
    (one.folder / "studies" / "report.md").symlink_to(tmp_path / "outside" / "secret")
    with pytest.raises(ConfigError, match="a link in the working copy"):
        one.push()
    assert not objects(one.address, "report.md")


def test_what_has_finished_is_not_replaced_by_what_has_not(one: Store, other: Store) -> None:
    (ticket,) = tickets(1)
    write_failure(other.folder, ticket, "killed", resumable=True)
    never_interrupted(one.folder, [ticket])
    one.push_run(ticket.key)
    other.push_run(ticket.key)
    assert [record["outcome"] for record in records(one.address)] == ["finished"]
    here = read_record(ticket.directory(other.folder)).record
    assert here is not None and here.outcome == "finished"


def test_a_run_that_failed_is_replaced_by_one_that_has_finished(one: Store, other: Store) -> None:
    (ticket,) = tickets(1)
    write_failure(other.folder, ticket, "killed", resumable=True)
    other.push_run(ticket.key)
    never_interrupted(one.folder, [ticket])
    one.push_run(ticket.key)
    assert [record["outcome"] for record in records(one.address)] == ["finished"]


def test_finished_runs_in_the_store_are_not_done_again(one: Store, other: Store) -> None:
    run_tickets = tickets(2)
    assert states(go(one.folder, run_tickets)) == [State.FINISHED] * 2
    assert states(go(other.folder, run_tickets)) == [State.FINISHED] * 2  # though it has not looked before
    assert not list(other.folder.glob("*/finishes.txt"))


def test_a_node_of_a_cluster_works_in_a_working_copy_of_its_own(one: Store, other: Store) -> None:
    (ticket,) = tickets(1)
    run = RemoteRun(one.folder, ticket, OPTIONS, heartbeat=1, grace=4, address=one.address)
    assert states(run.perform(OPTIONS.share, None, Spread())) == [State.FINISHED]
    assert (ticket.directory(other.folder) / "finishes.txt").exists()
    assert not ticket.directory(one.folder).exists()
    one.pull_records([ticket.key])
    assert read_record(ticket.directory(one.folder)).record is not None


def test_the_record_of_a_run_whose_task_has_ended_is_brought_at_once(
    one: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks for all records are seconds apart: a task that ended between two of them was done again, and had failed
    when it had ended so several times."""
    run_tickets, console = tickets(2), Console(file=StringIO())
    rows, _ = survey(one.folder, run_tickets, OPTIONS.metric, retry_failed=False)
    ledger = Ledger(one.folder, heartbeat=1, grace=4)
    look = partial(update_rows, one.folder, ledger, Board(console, OPTIONS.metric), rows, OPTIONS.metric)
    try:
        assert look() == set()
        go(other.folder, run_tickets)
        assert look(gone={run_tickets[1].key}) == set()
        assert [row.state for row in rows] == [State.WAITING, State.FINISHED]
        monkeypatch.setattr(Store, "listing", lambda store, below="": store.ask(lambda: 1 / 0))
        assert look(gone={run_tickets[0].key}) == {run_tickets[0].key}, "it may have ended: the store does not say"
    finally:
        ledger.close()


def test_a_newer_checkpoint_of_another_machine_wins_and_an_older_one_does_not(one: Store, other: Store) -> None:
    (here, there) = (store.folder / "run" / CHECKPOINT for store in (one, other))
    here.parent.mkdir()
    here.write_text("step 3")
    one.push_checkpoint("run")
    here.write_text("step 6, not there yet")
    one.pull_run("run")
    assert here.read_text() == "step 6, not there yet"
    other.pull_run("run")
    there.write_text("step 30")
    other.push_checkpoint("run")
    one.pull_run("run")
    assert here.read_text() == "step 30"


def holders(one: Store, other: Store) -> tuple[Leases, Leases]:
    """Two machines that are alive, with a heartbeat that is never due."""
    first, second = (identify("", store.folder, token=str(store.folder)) for store in (one, other))
    return Leases(one, first, 1e6, grace=60), Leases(other, second._replace(host="elsewhere"), 1e6, grace=60)


def quiet(line: str) -> None:
    raise AssertionError(line)


def test_of_two_machines_one_has_a_run_until_it_gives_it_back(
    one: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.0)
    first, second = holders(one, other)
    assert first.take("run", quiet) and not second.take("run", quiet)
    first.release("run")
    assert second.take("run", quiet) and not first.take("run", quiet)


def test_of_two_machines_one_has_a_run_of_a_server_and_sees_what_the_other_has_replaced(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.0)
    one, other = (on_machine(number, f"{bucket}/shared", tmp_path, monkeypatch) for number in (1, 2))
    first, second = holders(one, other)
    assert first.take("run", quiet) and not second.take("run", quiet)
    here, there = (store.folder / "run" / CHECKPOINT for store in (one, other))
    here.parent.mkdir()
    for step in ("step 3", "step 6"):
        here.write_text(step)
        one.push_checkpoint("run")
        other.pull_run("run")
        assert there.read_text() == step
    first.release("run")
    assert second.take("run", quiet) and not first.take("run", quiet)


def test_a_silent_machine_loses_its_run_and_hears_of_it(
    one: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.monotonic()
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.0)
    first, second = holders(one, other)
    first = Leases(one, first.owner._replace(host="silent"), 0.05, grace=60)
    assert first.take("run", quiet)
    first.close()  # no heartbeat any more
    monkeypatch.setattr(leases.time, "monotonic", lambda: clock)
    assert not second.take("run", quiet)
    clock += 59
    assert not second.take("run", quiet)
    clock += 2
    assert second.take("run", quiet)
    assert first.is_overtaken("run")


def test_the_ledger_tells_a_command_that_another_machine_has_taken_over_its_run(one: Store) -> None:
    (ticket,) = tickets(1)
    ledger = Ledger(one.folder, heartbeat=1, grace=4)
    try:
        claim = ledger.claim(ticket)
        assert claim is not None and ledger.beat({claim: Pulse()}) == []
        one.write(f"{LEASES}/{ticket.key}/000002", b"{}")
        wait_for(lambda: ledger.beat({claim: Pulse()}) == [claim])
    finally:
        ledger.close()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("nosuch://bucket/runs", "Protocol not known"),
        ("file://", "names no bucket"),
        ("memory://runs", "gone with the process"),
    ],
)
def test_a_wrong_address_is_one_line(wrong: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        prepared(wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        "s3://key:s3cr3t@bucket/runs",
        "s3://key:s3cr3t/a+b=@bucket/runs",
        "sftp://user:s3cr3t%20x@host:22/runs",
        "memory://user:s3cr3t@runs",
        "https://host/runs?X-Amz-Signature=s3cr3t",
    ],
)
def test_a_password_in_an_address_is_refused_and_neither_printed_nor_written(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "copies"))
    assert main(["status", "xl_recurrence", "--runs", wrong]) == 2
    printed = capsys.readouterr()
    assert "holds a password" in printed.err and "***" in printed.err
    assert "s3cr3t" not in printed.err + printed.out and not (tmp_path / "copies").exists()


def test_an_error_of_a_store_does_not_repeat_the_password_of_its_server(one: Store) -> None:
    def operation() -> None:
        raise ConnectionError('no answer of "http://me:s3cr3t@127.0.0.1:1/bucket?prefix=x&token=s3cr3t"')

    with pytest.raises(ConfigError, match=r'no answer of "http://\*\*\*@127\.0\.0\.1:1/bucket\?prefix=x&token=\*\*\*"'):
        replace(one, patience=0.0).ask(operation)


@pytest.mark.parametrize(
    "address", ["s3://bucket/a@b", "s3://bucket/a:b@c", "sftp://me@host:22/a@b", "file:///a/b=c?d=e"]
)
def test_what_is_no_password_is_taken_for_none(address: str) -> None:
    assert secrets_of(address) == set() and without_secrets(address, address) == address


def test_a_missing_bucket_is_one_line(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    with pytest.raises(ConfigError, match=r"^s3://nosuch/runs: The specified bucket does not exist[^\n]*$"):
        prepared("s3://nosuch/runs")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ConfigError, match=r"^gcs://bucket/runs: .*pip install 'lit-transformers\[gcs\]'$"):
        prepared("gcs://bucket/runs")  # by a scheme that no other test has had imported


def test_a_store_that_is_away_is_waited_for(one: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([ConnectionError("away"), None])

    def operation() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "there"

    monkeypatch.setattr("sweeps.object_store.RETRY_SECONDS", 0.0)
    assert one.ask(operation) == "there"
    answers = iter([ConnectionError("away"), None])
    with pytest.raises(ConfigError, match="away"):
        replace(one, patience=0.0).ask(operation)
