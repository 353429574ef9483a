"""Fifty SIGKILLs, to runs, to the fork server and to the command itself: no run is lost, and none is done twice."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from ordeal import Ordeal, finished_records, run_command, what_training_left
from standin.recurrence import write_study

pytestmark = pytest.mark.slow

KILLS, RUNS, WORKERS = 50, 8, 2


def test_fifty_kills_leave_every_run_finished_once_with_the_numbers_of_a_quiet_study(tmp_path: Path) -> None:
    study, log = tmp_path / "recurrence.py", tmp_path / "commands.txt"
    write_study(study, tmp_path / "corpus", module="standin.frequent_checkpoints", steps=120, seeds=RUNS // 2)
    quiet, interrupted = tmp_path / "quiet", tmp_path / "torn"
    assert subprocess.run(run_command(study, quiet), timeout=300).returncode == 0
    assert len(finished_records(quiet)) == RUNS

    # Kills come faster than runs can end, so that all of them fall on a study that is not over; where the machine has
    # become faster since, as soon as there is somebody to kill.
    gap = 0.3 * training_seconds(quiet) / WORKERS / KILLS
    with closing(Ordeal(interrupted, run_command(study, interrupted), log)) as ordeal:
        while ordeal.kills < KILLS:
            assert len(ordeal.finished) < RUNS, f"all is over after {ordeal.kills} kills"
            is_late = len(ordeal.finished) / RUNS > ordeal.kills / KILLS
            ordeal.kill_somebody(0.0 if is_late else gap)
        ordeal.go_on_undisturbed()

    assert len(ordeal.finished) == RUNS
    assert what_training_left(interrupted) == what_training_left(quiet)
    assert all(ordeal.hit.values()) and ordeal.had_checkpoint, "not everything was tried that should be"
    assert "Traceback" not in log.read_text(encoding="utf-8")
    assert not ordeal.left_behind()


def training_seconds(runs: Path) -> float:
    return float(sum(json.loads(path.read_text())["measured"]["seconds"] for path in runs.glob("*/record.json")))
