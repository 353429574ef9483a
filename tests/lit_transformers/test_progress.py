"""The progress of a run without a terminal: a few plain lines, and none among the metrics."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lit_transformers.cli.progress import PlainLines
from lit_transformers.runs import RunConfig
from lit_transformers.train_command import fit
from lit_transformers.training.callbacks import DivergenceCheck
from lit_transformers.training.reporting import Progress, ProgressReporter


def lines_of(steps: int, seconds_a_step: float) -> list[str]:
    """The lines of a run whose steps take ``seconds_a_step`` each."""
    lines: list[str] = []
    time = 0.0
    listener = PlainLines(lines.append, lambda: time)
    listener(Progress(3, 9, math.nan, {}, None, "gates"))
    for step in range(1, steps + 1):
        time += seconds_a_step
        listener(Progress(step, steps, 3.21, {}, seconds_a_step * (steps - step), "fit"))
    listener(Progress(steps, steps, math.nan, {}, None, "evaluate"))
    return lines


def test_a_line_comes_with_every_phase_and_every_tenth() -> None:
    lines = lines_of(200, seconds_a_step=1.0)
    tenth_lines = [f"step {step}/200 loss 3.2100, {clock} left" for step, clock in [(20, "3:00"), (200, "0:00")]]
    assert lines[:3] == ["gates 3/9", "step 1/200 loss 3.2100, 3:19 left", tenth_lines[0]]
    assert lines[-2:] == [tenth_lines[1], "evaluate"] and len(lines) == 13


class Shown:
    """A trainer after some updates of labelled rows."""

    is_global_zero, max_steps, callback_metrics = True, 100, {}

    def __init__(self, step: int) -> None:
        self.global_step = step


def test_the_speed_is_that_of_the_examples_of_this_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    reporter, task = ProgressReporter(PlainLines(lines.append), examples=32), Any
    reporter.on_train_start(Shown(step=40), task)  # type: ignore[arg-type]
    now[0] = 5.0
    reporter.on_train_batch_end(Shown(step=50), task, {"nats": 0.5}, None, 0)  # type: ignore[arg-type]
    assert lines == ["step 50/100 loss 0.5000, 64 examples a second, 0:25 left"]


def test_a_slow_run_is_heard_of_twice_a_minute_and_a_quick_one_not_too_often() -> None:
    assert len(lines_of(60, seconds_a_step=30.0)) == 1 + 60 + 1
    assert len(lines_of(200, seconds_a_step=0.01)) == 4


class Loss:
    """A loss on a device, which is waited for when it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __float__(self) -> float:
        self.reads += 1
        return 1.0


def test_a_device_is_waited_for_now_and_then_also_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first step, too, of a machine that was started a second ago."""
    monkeypatch.setattr("time.monotonic", lambda: 1.0)
    trainer: Any = SimpleNamespace(is_global_zero=True, global_step=1, max_steps=100)
    task: Any = SimpleNamespace(device=torch.device("cuda"))
    check, loss = DivergenceCheck(every=math.inf), Loss()
    for step in range(5):
        check.on_train_batch_end(trainer, task, {"nats": loss}, None, step)
    assert loss.reads == 1


@pytest.mark.slow
def test_fit_without_a_terminal_tells_how_it_goes_beside_its_metrics(
    small_run: RunConfig, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(small_run.to_yaml())
    fit(tmp_path / "run.yaml", tmp_path / "runs" / "alone")  # where no other test has left trained weights
    output, errors = capfd.readouterr()
    assert all(line.startswith("val/") for line in output.splitlines()) and "val/bpb" in output
    progress_lines = errors.splitlines()
    assert progress_lines[0].startswith("gates ") and progress_lines[-1] == "evaluate"
    assert any(line.startswith("step ") and "/30 loss " in line and line.endswith(" left") for line in progress_lines)
