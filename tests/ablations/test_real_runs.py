"""The command with the real library: killed and started again, its records equal those of runs never interrupted."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from standin.recurrence import write_study
from waiting import wait_for

pytestmark = pytest.mark.slow


def results(runs: Path) -> dict[str, Any]:
    """What must not depend on interruptions: metrics, curves and losses per document, by run."""
    return {
        path.parent.name: (
            json.loads(path.read_text())["metrics"],
            (path.parent / "metrics.csv").read_text(),
            (path.parent / "documents.csv").read_text(),
        )
        for path in runs.glob("*/record.json")
    }


def test_runs_killed_at_random_moments_end_as_if_never_interrupted(tmp_path: Path) -> None:
    """Stopped once and killed once; fifty kills are in ``tests/reliability/test_killed_anywhere.py``."""
    study = tmp_path / "recurrence.py"
    write_study(study, tmp_path / "corpus", steps=200, seeds=1)
    command = [sys.executable, "-m", "ablations", "run", str(study), "--threads", "1", "--runs"]
    assert subprocess.run([*command, str(tmp_path / "quiet")], timeout=300).returncode == 0
    interrupted, generator = tmp_path / "torn", random.Random(1)
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen([*command, str(interrupted)])
        wait_for_a_step(interrupted, process)
        time.sleep(generator.uniform(0, 1))
        process.send_signal(number)
        process.wait(timeout=120)
    assert subprocess.run([*command, str(interrupted)], timeout=300).returncode == 0
    assert len(results(interrupted)) == 2
    assert results(interrupted) == results(tmp_path / "quiet")


def wait_for_a_step(runs: Path, process: subprocess.Popen[bytes]) -> None:
    """Waits until some run has written to its log."""
    before = log_bytes(runs)
    wait_for(lambda: process.poll() is not None or log_bytes(runs) != before)


def log_bytes(runs: Path) -> int:
    """The size of all logs in bytes."""
    return sum(path.stat().st_size for path in runs.glob("*/log.txt"))
