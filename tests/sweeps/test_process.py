"""Processes of runs: modules that all runs need are imported once, before them, and each begins as soon as the last
ended."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from standin.imported import NOTE
from standin_runs import OPTIONS, go, states, tickets

from sweeps.launchers.share import Share
from sweeps.ledger.ticket import State

COUNT = 3
RUNNER = "standin.imported:RUNNER"


@pytest.mark.slow
def test_what_runs_need_is_imported_once_for_all_of_them(tmp_path: Path) -> None:
    """In a separate process, whose fork server serves nobody else. ``benchmarks.orchestration`` measures the seconds of
    the real library."""
    completed = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=240)
    assert completed.returncode == 0, completed.stderr
    directories = [ticket.directory(tmp_path) for ticket in tickets(COUNT)]
    importers, processes = zip(*(json.loads((directory / NOTE).read_text()) for directory in directories), strict=True)
    assert len(set(importers)) == 1 and len(set(processes)) == COUNT and not set(importers) & set(processes)
    for first, second in pairwise(directories):
        assert (second / "lock").stat().st_mtime > (first / "record.json").stat().st_mtime


SERVER = """
import os
import socket
from multiprocessing import forkserver
from sweeps.process.child import prepare_server
prepare_server("standin.run:RUNNER")
with socket.socket(socket.AF_UNIX) as killed:
    killed.connect(forkserver._forkserver._forkserver_address)
os.waitpid(forkserver._forkserver._forkserver_pid, 0)
"""
"""A command whose connection to its server ends before the request for a process, as where it is killed then."""


def test_a_command_that_is_killed_as_it_requests_a_process_leaves_no_traceback() -> None:
    completed = subprocess.run([sys.executable, "-c", SERVER], capture_output=True, text=True, timeout=240)
    assert (completed.returncode, completed.stderr) == (0, "")


if __name__ == "__main__":
    single_worker = OPTIONS._replace(runner=RUNNER, share=Share(workers=1, threads=1))
    assert states(go(Path(sys.argv[1]), tickets(COUNT), single_worker)) == [State.FINISHED] * COUNT
