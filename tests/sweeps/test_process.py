"""Processes of runs: what all runs need is imported once, before them, and each begins as soon as the last ended."""

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
    """In a process of its own, whose fork server serves nobody else. The seconds are those of the real library in
    ``benchmarks.orchestration``."""
    completed = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=240)
    assert completed.returncode == 0, completed.stderr
    directories = [ticket.directory(tmp_path) for ticket in tickets(COUNT)]
    importers, processes = zip(*(json.loads((directory / NOTE).read_text()) for directory in directories), strict=True)
    assert len(set(importers)) == 1 and len(set(processes)) == COUNT and not set(importers) & set(processes)
    for first, second in pairwise(directories):
        assert (second / "lock").stat().st_mtime > (first / "record.json").stat().st_mtime


if __name__ == "__main__":
    single_worker = OPTIONS._replace(runner=RUNNER, share=Share(workers=1, threads=1))
    assert states(go(Path(sys.argv[1]), tickets(COUNT), single_worker)) == [State.FINISHED] * COUNT
