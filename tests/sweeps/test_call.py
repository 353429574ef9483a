"""A function that is called in a forked process returns, raises and dies as its caller is to see it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil
import pytest
from waiting import wait_for

from lit_transformers.config import ConfigError
from sweeps.process.call import call_forked
from sweeps.process.child import LaunchError, prepare_server

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
RUNNER = "standin.run:RUNNER"
CALL = "import pathlib, sys, test_call as test; test.call_forked(test.RUNNER, test.linger, pathlib.Path(sys.argv[1]))"


def difference(left: int, right: int = 0) -> int:
    if left < right:
        raise ConfigError("is less than the other", "left")
    return left - right


def faults_of_large_tensors() -> int:
    """How many pages the system brings for four tensors of 64 MiB."""
    import torch

    torch.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def linger(note: Path) -> None:
    note.with_suffix(".part").write_text(str(os.getpid()))
    note.with_suffix(".part").replace(note)
    time.sleep(1000)


def test_a_forked_call_returns_and_raises_what_its_function_does() -> None:
    assert call_forked(RUNNER, difference, 5, right=3) == 2
    with pytest.raises(ConfigError, match="left: is less than the other") as error:
        call_forked(RUNNER, difference, 3, right=5)
    assert "in difference" in "".join(error.value.__notes__)


@pytest.mark.skipif(
    not HUGE_PAGES.is_file() or "[never]" in HUGE_PAGES.read_text(), reason="the system has no transparent huge pages"
)
def test_large_tensors_are_in_huge_pages() -> None:
    pages = 4 * 2**26 // resource.getpagesize()
    assert call_forked(RUNNER, faults_of_large_tensors) < pages / 8


def test_a_forked_call_that_dies_is_one_clear_error() -> None:
    with pytest.raises(LaunchError, match="the process that was to die ended with status -9"):
        call_forked(RUNNER, die)


def test_a_call_whose_server_is_killed_as_it_starts_is_started_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is killed between the request for a process and its answer, which it is stopped before to give."""
    launch, read, killed = ForkServerProcess._Popen, forkserver.read_signed, list[int]()

    def launch_by_a_stopped_server(process: ForkServerProcess) -> object:
        if not killed:
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGSTOP)
        return launch(process)

    def read_after_a_kill(file: int) -> int:
        if not killed:
            killed.append(forkserver._forkserver._forkserver_pid)
            os.kill(killed[0], signal.SIGKILL)
        return read(file)

    prepare_server(RUNNER)
    monkeypatch.setattr(ForkServerProcess, "_Popen", staticmethod(launch_by_a_stopped_server))
    monkeypatch.setattr(forkserver, "read_signed", read_after_a_kill)
    assert call_forked(RUNNER, difference, 5, right=3) == 2
    assert killed


@pytest.mark.slow
def test_a_forked_call_ends_with_its_caller_and_prints_nothing(tmp_path: Path) -> None:
    note = tmp_path / "process.txt"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-c", CALL, str(note)]
    caller = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment)
    wait_for(note.exists)
    caller.kill()
    _, errors = caller.communicate()
    wait_for(lambda: not psutil.pid_exists(int(note.read_text())))
    assert not errors
