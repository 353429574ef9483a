"""The command with the real library: stopped, killed and started again, its records equal those of quiet runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import prepare
from standin.recurrence import write_study
from waiting import wait_for, when

from ablations.__main__ import main

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


def checkpoint_times(runs: Path) -> list[int]:
    """When the checkpoints of all runs were written, in nanoseconds, in order."""
    return sorted(path.stat().st_mtime_ns for path in runs.glob("*/checkpoint.ckpt"))


def test_runs_that_are_stopped_and_killed_end_as_if_never_interrupted(tmp_path: Path) -> None:
    """Each once; more kills are in ``tests/reliability/test_killed_anywhere.py``.

    The command that is killed is a process. The others are called here, where torch is imported already.
    """
    prepare()
    study, quiet, interrupted = tmp_path / "recurrence.py", tmp_path / "quiet", tmp_path / "torn"
    write_study(study, tmp_path / "corpus", module="standin.frequent_checkpoints", steps=40, seeds=1)
    words = ["run", str(study), "--threads", "1", "--runs"]
    assert main([*words, str(quiet)]) == 0
    with when(lambda: checkpoint_times(interrupted), lambda: os.kill(os.getpid(), signal.SIGTERM)):
        assert main([*words, str(interrupted)]) == 128 + signal.SIGTERM
    assert not results(interrupted)
    stopped_at = checkpoint_times(interrupted)
    process = subprocess.Popen([sys.executable, "-m", "ablations", *words, str(interrupted)])
    wait_for(lambda: process.poll() is not None or checkpoint_times(interrupted)[-1] > stopped_at[-1])
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert main([*words, str(interrupted)]) == 0
    assert len(results(interrupted)) == 2
    assert results(interrupted) == results(quiet)
