"""Runs in real processes: they end as their records say, whichever process is killed on the way."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from rich.console import Console
from standin.chains import alone, chained
from standin.run import RELEASED
from standin_runs import (
    OPTIONS,
    finishes,
    go,
    metrics,
    never_interrupted,
    states,
    tickets,
    workers_of,
)
from waiting import wait_for, when

from lit_transformers.config import ConfigError
from sweeps.launchers import devices, local
from sweeps.launchers.local import LaunchError
from sweeps.launchers.share import Share, memory_of, share_machine
from sweeps.ledger.ledger import Ledger
from sweeps.ledger.lock import LockError, is_locked, locked
from sweeps.ledger.ticket import State
from sweeps.survey import survey


def command_for(runs: Path, count: int, pause: float, steps: int) -> list[str]:
    return [sys.executable, __file__, str(runs), str(count), str(pause), str(steps)]


def test_every_run_ends_once_and_a_second_command_repeats_none(tmp_path: Path) -> None:
    run_tickets = tickets(4)
    assert states(go(tmp_path, run_tickets)) == [State.FINISHED] * 4
    rows, _ = survey(tmp_path, run_tickets, "val/bpb", retry_failed=False)
    assert all(row.state == State.FINISHED and row.value is not None for row in rows)
    go(tmp_path, run_tickets)
    assert [finishes(tmp_path, ticket) for ticket in run_tickets] == [1] * 4


REASONS = {
    "nan": "not-a-number",
    "memory": "out of memory",
    "raise": "RuntimeError: something broke",
    "kill always": "its process was killed (signal 9), and 3 times before: most likely out of memory",
    "exit": "its process ended with status 3",
}


def test_a_run_that_fails_says_why_and_stops_no_other(tmp_path: Path) -> None:
    run_tickets = [*(ticket for fault in REASONS for ticket in tickets(1, fault=fault)), *tickets(2)]
    summary = go(tmp_path, run_tickets)
    assert states(summary) == [State.FAILED] * len(REASONS) + [State.FINISHED] * 2
    for row, reason in zip(summary.rows, REASONS.values(), strict=False):
        record = json.loads((row.ticket.directory(tmp_path) / "record.json").read_text())
        assert (row.reason or "").startswith(reason)
        assert record["outcome"] == "failed" and record["reason"].startswith(reason)


def test_a_run_waits_for_a_source_that_another_worker_does(tmp_path: Path) -> None:
    (first, last), expected = chained(4, 5), alone(4, 5, runs=tmp_path / "quiet")
    other, console = Ledger(tmp_path, heartbeat=1), Console(file=StringIO(), width=200)
    claim = other.claim(first)
    assert claim is not None

    def finish() -> None:
        shutil.copytree(first.directory(tmp_path / "quiet"), first.directory(tmp_path))
        other.settle(claim, "finished")

    with when(lambda: "elsewhere" in console.file.getvalue(), finish):  # type: ignore[attr-defined]
        summary = go(tmp_path, [first, last], console=console)
    other.close()
    assert states(summary) == [State.FINISHED] * 2 and summary.rows[1].taken == 1
    assert metrics(tmp_path, [first, last]) == expected


def test_a_run_that_another_one_measures_in_another_way_ends_before_that_begins(tmp_path: Path) -> None:
    """Otherwise both would train the same at the same time; one that fails leaves the other to itself."""
    for fault, state in (("none", State.FINISHED), ("raise", State.FAILED)):
        donor, borrower = tickets(1, fault=fault)[0], tickets(2)[1]
        console = Console(file=StringIO(), width=200)
        summary = go(tmp_path / fault, [borrower._replace(donor=donor.key), donor], console=console)
        assert states(summary) == [State.FINISHED, state]
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        ended = next(number for number, line in enumerate(lines) if f"seed 0  {state}" in line)
        assert not any("seed 1" in line for line in lines[:ended])


def test_a_source_that_no_command_does_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "DISK_SECONDS", 0.5)
    first, last = chained(4, 5)
    (row,) = go(tmp_path, [last]).rows
    assert (
        row.state == State.FAILED
        and row.reason == f"its source {first.key} is not done; run the study, which does it first"
    )


@pytest.mark.slow
def test_a_failed_run_is_repeated_only_when_asked(tmp_path: Path) -> None:
    run_tickets = tickets(1, fault="raise")
    go(tmp_path, run_tickets)
    log = run_tickets[0].directory(tmp_path) / "log.txt"
    assert go(tmp_path, run_tickets).failed == 1
    assert log.read_text().count("RuntimeError: something broke") == 1
    assert go(tmp_path, run_tickets, OPTIONS._replace(retry_failed=True)).failed == 1
    assert log.read_text().count("RuntimeError: something broke") == 2


@pytest.mark.parametrize(
    "fault,reason",
    [
        ("kill", "its process was killed (signal 9)"),
        ("loader", "one of its ranks or data loaders, or its command, was killed"),
    ],
)
def test_a_run_killed_from_outside_goes_on_by_itself(tmp_path: Path, fault: str, reason: str) -> None:
    run_tickets, console = tickets(1, fault=fault), Console(file=StringIO(), width=300)
    assert states(go(tmp_path / "runs", run_tickets, console=console)) == [State.FINISHED]
    assert f"plain, seed 0: {reason}; it restarts" in console.file.getvalue()  # type: ignore[attr-defined]
    assert metrics(tmp_path / "runs", run_tickets) == never_interrupted(tmp_path / "quiet", run_tickets)


def is_warm(process: psutil.Process) -> bool:
    """Whether a process is the one from which other tests fork their programs."""
    with suppress(psutil.NoSuchProcess):  # it has ended since, or nobody has waited for it
        return any(word.endswith("warm_python.py") for word in process.cmdline())
    return False


@pytest.mark.parametrize("victims", ["their server", "all but the command"])
def test_runs_go_on_by_themselves_when_their_server_or_all_but_the_command_is_killed(
    tmp_path: Path, victims: str
) -> None:
    """Without their server runs would live on and hold their directories."""
    runs, run_tickets = tmp_path / "runs", [*tickets(2, fault="wait"), *tickets(1)]

    def kill() -> None:
        server = workers_of(runs)[0].parent()
        children = [process for process in psutil.Process().children(recursive=True) if not is_warm(process)]
        assert server in children and len(children) >= 3
        for process in children if victims == "all but the command" else [server]:
            process.kill()

    with when(lambda: len(list(runs.glob("*/checkpoint.ckpt"))) == 2, kill):
        summary = go(runs, run_tickets)
    assert states(summary) == [State.FINISHED] * 3
    assert [finishes(runs, ticket) for ticket in run_tickets] == [1] * 3
    assert metrics(runs, run_tickets) == never_interrupted(tmp_path / "quiet", run_tickets)
    assert not workers_of(runs)


def test_a_run_that_ends_with_the_status_of_a_dead_server_has_failed(tmp_path: Path) -> None:
    run_tickets = tickets(1, fault="exit 255")
    summary = go(tmp_path, run_tickets)
    assert states(summary) == [State.FAILED]
    assert (summary.rows[0].reason or "").startswith("its process ended with status 255")


def test_a_damaged_record_is_moved_aside_and_its_run_repeated(tmp_path: Path) -> None:
    run_tickets = tickets(2)
    go(tmp_path, run_tickets)
    path = run_tickets[0].directory(tmp_path) / "record.json"
    path.write_text(path.read_text()[:40])
    console = Console(file=StringIO(), width=300)
    assert states(go(tmp_path, run_tickets, console=console)) == [State.FINISHED] * 2
    assert "record.json: not JSON" in console.file.getvalue()  # type: ignore[attr-defined]
    assert [finishes(tmp_path, ticket) for ticket in run_tickets] == [2, 1]
    assert path.with_name("record.json.damaged").exists()


def test_a_run_in_other_hands_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tickets = tickets(1)
    script = (
        "import sys; from pathlib import Path; from sweeps.ledger.lock import locked\n"
        "with locked(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    directory = run_tickets[0].directory(tmp_path)
    directory.mkdir(parents=True)
    command = [sys.executable, "-c", script, str(directory / "lock")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin and holder.stdout and holder.stdout.readline() == b"held\n"
    let_go, looks = holder.stdin.close, list[bool]()

    def look(path: Path) -> bool:
        looks.append(is_locked(path))
        let_go()
        return looks[-1]

    monkeypatch.setattr("sweeps.launchers.local.is_locked", look)
    assert states(go(tmp_path, run_tickets)) == [State.FINISHED]
    assert holder.wait() == 0 and looks[0]
    assert finishes(tmp_path, run_tickets[0]) == 1


@pytest.mark.slow
def test_two_commands_share_the_runs_and_do_none_twice(tmp_path: Path) -> None:
    """The first has two runs under way when the second begins."""
    run_tickets = tickets(6, pause=0.02, steps=20)
    command = subprocess.Popen(command_for(tmp_path, 6, 0.02, 20))
    wait_for(lambda: len(list(tmp_path.glob("*/checkpoint.ckpt"))) >= 2)
    assert states(go(tmp_path, run_tickets)) == [State.FINISHED] * 6
    assert command.wait(timeout=240) == 0
    assert [finishes(tmp_path, ticket) for ticket in run_tickets] == [1] * 6


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_stopped_leaves_checkpoints_and_no_process(tmp_path: Path, number: signal.Signals) -> None:
    run_tickets = tickets(3, fault="wait")
    with when(lambda: len(list(tmp_path.glob("*/checkpoint.ckpt"))) == 2, lambda: os.kill(os.getpid(), number)):
        summary = go(tmp_path, run_tickets)
    assert summary.stopped_by == number
    assert states(summary) == [State.STOPPED, State.STOPPED, State.WAITING]
    paths = [ticket.directory(tmp_path) / "checkpoint.ckpt" for ticket in run_tickets]
    assert all(json.loads(path.read_text())[0] > 3 for path in paths[:2]), "those of every third step: they were killed"
    assert not paths[2].exists()
    assert not workers_of(tmp_path)


@pytest.mark.slow
def test_a_worker_dies_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(command_for(tmp_path, 2, 0.05, 400_000))  # their runs would take hours
    wait_for(lambda: len(workers_of(tmp_path)) == 2, every=0.1)
    parent.kill()
    parent.wait()
    try:
        wait_for(lambda: not workers_of(tmp_path), every=0.1)
    finally:
        for worker in workers_of(tmp_path):
            worker.kill()


@pytest.mark.slow
def test_whatever_is_stopped_or_killed_at_any_moment_every_run_finishes_once_with_the_same_numbers(
    tmp_path: Path,
) -> None:
    """By any of three signals, to the command and to its runs; more kills are in
    ``tests/reliability/test_killed_anywhere.py``."""
    random_moments = random.Random(0)
    runs, run_tickets = tmp_path / "runs", tickets(4, pause=0.03, steps=40)
    command = command_for(runs, 4, 0.03, 40)
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        parent = subprocess.Popen(command)
        wait_for(lambda parent=parent: workers_of(runs) or parent.poll() is not None, every=0.1)
        time.sleep(random_moments.uniform(0, 0.5))
        if number != signal.SIGINT:  # which a run ignores
            strike(random_moments.choice([parent.pid, *(worker.pid for worker in workers_of(runs))]), number)
        strike(parent.pid, number)
        parent.wait(timeout=240)
    while subprocess.run(command, timeout=240).returncode:
        continue
    assert [finishes(runs, ticket) for ticket in run_tickets] == [1] * 4
    assert metrics(runs, run_tickets) == never_interrupted(tmp_path / "quiet", run_tickets)
    assert not workers_of(runs)


def strike(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def have_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    """Makes this many cores usable, and unsets OMP_NUM_THREADS."""
    monkeypatch.setattr("sweeps.launchers.share.usable_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_cores_go_to_processes_before_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cores(monkeypatch, 6)
    assert share_machine(todo=1, memory=1) == Share(1, 6)
    assert share_machine(todo=1000, memory=1) == Share(6, 1)
    assert share_machine(12, workers=3) == Share(3, 2)
    assert share_machine(12, threads=6) == Share(1, 6)


def test_a_run_gets_the_threads_that_the_environment_asks_for_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    have_cores(monkeypatch, 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert share_machine(todo=12, memory=1) == Share(4, 2)
    assert share_machine(todo=12, workers=1) == Share(1, 2)
    assert share_machine(todo=12, workers=1, threads=5) == Share(1, 5)


def have_devices(monkeypatch: pytest.MonkeyPatch, models: Mapping[str | None, Sequence[str]]) -> None:
    """Has torch see these models of devices, by values of CUDA_VISIBLE_DEVICES; none under another one."""
    monkeypatch.setattr(devices, "_devices", cache(devices._devices.__wrapped__))
    monkeypatch.setattr(devices, "_has_driver", lambda: True)
    monkeypatch.setattr(devices, "call_forked", lambda runner, function, visible: [*models.get(visible, ())])


@pytest.mark.parametrize(
    ("visible", "models", "names"),
    [
        (None, [], ()),
        (None, ["NVIDIA RTX A2000"], ("0",)),  # such as in WSL2, which has no /dev/nvidia0
        (None, ["H100"] * 2, ("0", "1")),
        ("1", ["H100"], ("1",)),
        ("", [], ()),
        ("0,7,1", ["H100"], ("0",)),  # there is no 7, so CUDA does not read on
        ("GPU-8f, GPU-02", ["H100", "H100"], ("GPU-8f", "GPU-02")),
        (None, ["A100 MIG 3g.20gb"], ("0",)),  # one instance of several
    ],
)
def test_devices_are_those_that_torch_sees(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, models: list[str], names: tuple[str, ...]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    have_devices(monkeypatch, {visible: models})
    assert devices.cuda_devices() == names and devices.cuda_models() == (*models,)


def test_each_instance_of_a_device_in_mig_mode_is_one_though_a_process_sees_the_first_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-gone,MIG-b")
    have_devices(monkeypatch, {"MIG-a,MIG-gone,MIG-b": ["A100 1g"], "MIG-a": ["A100 1g"], "MIG-b": ["A100 2g"]})
    assert devices.cuda_devices() == ("MIG-a", "MIG-b") and devices.cuda_models() == ("A100 1g", "A100 2g")
    assert share_machine(todo=12, cuda=True).workers == 2


def test_torch_is_asked_where_there_is_a_driver_and_initialises_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch  # not above, for the processes that this file starts

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for has_driver in (False, True):
        monkeypatch.setattr(devices, "_devices", cache(devices._devices.__wrapped__))
        monkeypatch.setattr(devices, "DRIVER", "libc.so.6" if has_driver else "libcuda.so.of-nobody")
        assert devices.cuda_devices() == ()
    assert not torch.cuda.is_initialized()


def test_every_cuda_device_gets_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    have_devices(monkeypatch, {"2,5": ["H100", "H100"]})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    share = share_machine(todo=12, cuda=True)
    assert (share.workers, share.devices) == (2, ("2", "5"))
    assert share.place(["2"]) == "5"
    assert share_machine(todo=12, cuda=False).place([]) is None


def test_as_many_runs_are_done_at_a_time_as_their_declared_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5 << 30))
    have_cores(monkeypatch, 16)
    assert share_machine(todo=12, memory=2 << 30) == Share(2, 8)
    assert share_machine(todo=12, memory=8 << 30) == Share(1, 16)
    assert share_machine(todo=12, memory=memory_of(parameters=200_000_000)).workers == 1
    assert share_machine(todo=12, memory=memory_of(parameters=1_000_000)).workers == 4


def test_ranks_share_cores_and_each_has_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    have_cores(monkeypatch, 8)
    have_devices(monkeypatch, {"0,1,2,3": ["H100"] * 4})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert share_machine(todo=12, threads=1, ranks=4, memory=1 << 20) == Share(2, 1)
    share = share_machine(todo=12, cuda=True, ranks=2)
    assert share == Share(2, 2, ("0", "1", "2", "3"))
    assert share.place([], ranks=2) == "0,1" and share.place(["0,1"], ranks=2) == "2,3"
    with pytest.raises(
        ConfigError, match=r"training.devices: asks for 8 devices, and 4 can be found; give --devices 4 or fewer"
    ):
        share_machine(todo=12, cuda=True, ranks=8)


def test_several_runs_share_a_device_where_its_memory_allows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the output of nvidia-smi: 20 and 4 GiB are free."""
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text("#!/bin/sh\necho '0, GPU-a, 20480'\necho '1, GPU-b, 4096'\n")
    nvidia_smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    have_cores(monkeypatch, 16)
    have_devices(monkeypatch, {"0,1": ["H100"] * 2, "GPU-b": ["H100"]})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert share_machine(todo=12, cuda=True).workers == 2
    assert share_machine(todo=12, cuda=True, memory=8 << 30).workers == 3
    assert share_machine(todo=12, cuda=True, memory=2 << 30).workers == 12
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert share_machine(todo=12, cuda=True, memory=2 << 30) == Share(2, 8, ("GPU-b",))


def test_no_run_is_claimed_after_one_that_the_disk_was_full_for(tmp_path: Path) -> None:
    run_tickets = [*tickets(1, fault="full"), *tickets(3)]
    with pytest.raises(LaunchError, match=r"the disk is full; no further run is begun; make room"):
        go(tmp_path, run_tickets, OPTIONS._replace(share=Share(workers=1, threads=1)))
    assert [ticket.directory(tmp_path).exists() for ticket in run_tickets] == [True, False, False, False]
    record = json.loads((run_tickets[0].directory(tmp_path) / "record.json").read_text())
    assert record["reason"] == "the disk is full" and record["resumable"]


def test_a_run_is_claimed_where_its_checkpoint_has_room_beside_those_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed: list[int] = []

    def lack(folder: Path, amount: int) -> str | None:
        needed.append(amount)
        return "no room" if len(needed) > 2 else None

    monkeypatch.setattr("sweeps.launchers.local.lack_of_space", lack)
    run_tickets, options = [*tickets(2, fault="wait"), *tickets(1)], OPTIONS._replace(parameters={"plain": 1e6})
    options = options._replace(share=Share(workers=3, threads=1))
    started = when(lambda: len(list(tmp_path.glob("*/checkpoint.ckpt"))) == 2, lambda: release(tmp_path))
    with started, pytest.raises(LaunchError, match="no room"):
        go(tmp_path, run_tickets, options)
    assert needed[1] == 2 * needed[0] > 4e6
    assert [finishes(tmp_path, ticket) for ticket in run_tickets] == [1, 1, 0]


def release(runs: Path) -> None:
    for checkpoint in runs.glob("*/checkpoint.ckpt"):
        checkpoint.with_name(RELEASED).touch()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "lock").touch()
    monkeypatch.setattr("sweeps.ledger.lock.fcntl.lockf", refuse)
    message = rf"lock: its file system gives no locks \({errno.errorcode[number]}: .*take a folder on another one"
    with pytest.raises(LockError, match=message):
        is_locked(tmp_path / "lock")
    with pytest.raises(LockError, match=message), locked(tmp_path / "lock", patience=1000):
        pass


def test_a_lock_is_held_by_one_process_and_may_be_nested(tmp_path: Path) -> None:
    script = "import sys, pathlib, sweeps.ledger.lock as lock; sys.exit(lock.is_locked(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", script, str(tmp_path / "lock")]
    with locked(tmp_path / "lock"), locked(tmp_path / "lock"):
        assert subprocess.run(command).returncode == 1
    assert subprocess.run(command).returncode == 0


if __name__ == "__main__":  # the command that tests start as a separate process, to kill it
    folder, count, pause, steps = sys.argv[1:]
    summary = go(Path(folder), tickets(int(count), pause=float(pause), steps=int(steps)))
    sys.exit(0 if all(row.state == State.FINISHED for row in summary.rows) else 1)
