"""Temporary files of processes are gone after them, or, where they were killed, after the next command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from standin_runs import OPTIONS, finishes, go, states, tickets, workers_of
from waiting import wait_for

from sweeps.ledger.ticket import State

STARTS = "from sweeps.process.temporary import temporary_folder; print(temporary_folder(), flush=True); input()"
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


@pytest.fixture
def system() -> Iterator[Path]:
    """A folder for temporary files, with a name short enough for sockets below it."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    yield folder
    shutil.rmtree(folder)


def command_for(runs: Path, fault: str, ranks: int) -> list[str]:
    return [sys.executable, __file__, str(runs), fault, str(ranks)]


@pytest.mark.slow
def test_what_a_killed_command_and_its_ranks_left_is_removed_by_the_next_one(system: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(system)}
    (ticket,) = tickets(1, fault="wait", devices=2)
    command = subprocess.Popen(command_for(tmp_path, "wait", 2), env=environment)
    try:
        wait_for((ticket.directory(tmp_path) / "checkpoint.ckpt").exists)
        (folder,) = system.iterdir()
        assert {path.name.partition("-")[0] for path in folder.iterdir()} == {".lit", "pymp", "ranks"}
    finally:
        command.kill()
    assert command.wait() == -signal.SIGKILL
    wait_for(lambda: not workers_of(tmp_path))
    assert [*folder.glob("*-*")], "nothing was left"
    (other,) = tickets(1)
    assert subprocess.run(command_for(tmp_path / "other", "none", 1), env=environment, timeout=240).returncode == 0
    assert finishes(tmp_path / "other", other) == 1 and not [*system.iterdir()]


def test_folders_of_commands_that_live_stay_and_so_do_those_of_others(system: Path) -> None:
    (system / "lit-notes").mkdir()
    environment = {**os.environ, "TMPDIR": str(system)}
    commands, folders = [], []
    for _ in range(2):
        command = subprocess.Popen([sys.executable, "-c", STARTS], env=environment, **PIPES)
        commands.append(command)
        folders.append(Path(command.stdout.readline().strip()))
    assert sorted(system.glob("lit-*")) == sorted([*folders, system / "lit-notes"])
    for command in commands:
        command.communicate("\n", timeout=60)
    assert [*system.iterdir()] == [system / "lit-notes"]


if __name__ == "__main__":
    runs, fault, ranks = sys.argv[1:]
    assert states(go(Path(runs), tickets(1, fault=fault, devices=int(ranks)), OPTIONS)) == [State.FINISHED]
