"""Runs that are stopped by a signal amid training."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from lit_transformers.runs import RunConfig, fit
from lit_transformers.tasks import Task
from lit_transformers.training.stopping import Interrupted


def stop_run(config: RunConfig, directory: Path, task: type[Task], steps: int) -> None:
    """Trains a run until a signal stops it after ``steps`` updates. task: the class of its task."""
    step, calls = task.training_step, iter(range(1000))

    def step_and_stop(self: Task, batch: Any, index: int) -> Any:
        if next(calls) == steps:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task, "training_step", step_and_stop)
        with pytest.raises(Interrupted, match=f"stopped at step {steps};"):
            fit(config, directory)
