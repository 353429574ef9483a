"""SIGTERM at the moments when a trainer is not training."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_transformers.records.files import CHECKPOINT, RECORD
from lit_transformers.runs import Interrupted, RunConfig, fit
from lit_transformers.tasks.causal_lm import CausalLM
from lit_transformers.training.reporting import Progress
from lit_transformers.training.stopping import Stop, stop_requests


@pytest.fixture(scope="module")
def config(small_run: RunConfig) -> RunConfig:
    """With dropout, so that random numbers have to resume where they stopped."""
    return small_run.override({"model.dropout": 0.1})


def request_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def reproducible(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "measured"}


@pytest.mark.slow
def test_a_run_that_is_stopped_while_it_is_measured_is_measured_when_it_goes_on(
    config: RunConfig, tmp_path: Path
) -> None:
    def stop(progress: Progress) -> None:
        if progress.phase == "evaluate":
            request_stop()

    with pytest.raises(Interrupted, match="while it was measured"):
        fit(config, tmp_path / "stopped", stop)
    assert not (tmp_path / "stopped" / RECORD).exists()
    record = fit(config, tmp_path / "stopped")
    assert record["outcome"] == "finished"
    assert reproducible(record) == reproducible(fit(config, tmp_path / "alone" / "whole"))


@pytest.mark.slow
def test_a_validation_within_training_is_ended_before_the_run_stops(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config.override({"training.validate_every": 10})
    step = CausalLM.validation_step

    def step_and_stop(task: CausalLM, batch: Any, index: int) -> None:
        step(task, batch, index)
        if task.global_step == 10 and index == 0:
            request_stop()

    with monkeypatch.context() as patch:
        patch.setattr(CausalLM, "validation_step", step_and_stop)
        with pytest.raises(Interrupted, match="stopped at step 10"):
            fit(config, tmp_path / "stopped")
    assert torch.load(tmp_path / "stopped" / CHECKPOINT, weights_only=True)["global_step"] == 10
    fit(config, tmp_path / "stopped")
    fit(config, tmp_path / "whole")
    resumed_metrics, whole_metrics = ((tmp_path / name / "metrics.csv").read_bytes() for name in ("stopped", "whole"))
    assert resumed_metrics == whole_metrics


def test_a_signal_is_heard_for_as_long_as_it_is_listened_to() -> None:
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda received, frame: signals.append(received))
    try:
        with stop_requests() as stop:
            assert not stop()
            request_stop()
            assert stop() and not signals
        request_stop()
        assert signals == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_nothing_is_heard_and_nothing_breaks() -> None:
    stops: list[Stop] = []

    def listen() -> None:
        with stop_requests() as stop:
            stops.append(stop)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert len(stops) == 1 and not stops[0]()
