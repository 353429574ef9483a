"""Runs on CUDA: they learn, resume after an interruption, and name the device."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
import torch

from lit_transformers.decoding.generate import sample
from lit_transformers.decoding.sampling import SamplingConfig
from lit_transformers.records.files import CHECKPOINT
from lit_transformers.runs import RunConfig, evaluate, fit, load
from lit_transformers.training.reporting import Progress
from lit_transformers.training.stopping import Interrupted

STEPS = 300


def config_of(small_run: RunConfig, device: str, precision: str) -> RunConfig:
    """With dropout, and measured with a longer memory than it is trained with, so that buffers have to move."""
    changes = {"precision": precision, "device": device, "steps": STEPS, "log_every": 5, "validate_every": 100}
    mixer = {"mixer.encoding": "rotary", "mixer.dropout": 0.1, "depth": 2, "dropout": 0.1}
    named = {f"training.{name}": value for name, value in changes.items()}
    model = {f"model.{name}": value for name, value in mixer.items()}
    return small_run.override(named | model | {"task.evaluation": {"mixer.memory": 16}})


def curve(directory: Path) -> list[float]:
    """Training losses in the order of their steps."""
    with (directory / "metrics.csv").open() as file:
        return [float(row["value"]) for row in csv.DictReader(file) if row["name"] == "train/nats"]


def check_learning_and_resuming(config: RunConfig, folder: Path) -> dict[str, object]:
    """Stopped after a third of its steps and asked for again, it ends near one that never was stopped. Its record."""
    steps = config.training.steps
    uninterrupted = fit(config, folder / "whole")
    assert uninterrupted["outcome"] == "finished", uninterrupted["reason"]
    losses = curve(folder / "whole")
    assert len(losses) == steps // 5 and sum(losses[-4:]) < 0.8 * sum(losses[:4])

    def stop(progress: Progress) -> None:
        if progress.phase == "fit" and progress.step >= steps // 3:
            raise Interrupted("stopped by the test")

    with pytest.raises(Interrupted):
        fit(config, folder / "stopped", report=stop, keep_every=0.0)
    resumed = fit(config, folder / "stopped")
    assert resumed["outcome"] == "finished" and len(curve(folder / "stopped")) == len(losses)
    assert curve(folder / "stopped")[:10] == pytest.approx(losses[:10], rel=0.02)
    assert resumed["metrics"]["val/bpb"] == pytest.approx(uninterrupted["metrics"]["val/bpb"], rel=0.02)
    measured = evaluate(folder / "stopped" / CHECKPOINT)
    assert measured["val/bpb"] == pytest.approx(resumed["metrics"]["val/bpb"], rel=0.01)
    return uninterrupted


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_a_run_on_cuda_learns_goes_on_and_names_the_device(
    small_run: RunConfig, tmp_path: Path, precision: str
) -> None:
    record = check_learning_and_resuming(config_of(small_run, "cuda", precision), tmp_path)
    assert record["environment"]["hardware"] == torch.cuda.get_device_name()  # type: ignore[index]
    assert record["measured"]["peak_memory_bytes"] <= torch.cuda.max_memory_allocated()  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.skipif("LIT_TRANSFORMERS_REHEARSAL" not in os.environ, reason="rehearses the run on CUDA, on a CPU")
def test_a_rehearsed_run_learns_and_goes_on(small_run: RunConfig, tmp_path: Path) -> None:
    check_learning_and_resuming(config_of(small_run, "cpu", "32").override({"training.steps": 60}), tmp_path)


@pytest.mark.gpu
def test_a_text_is_sampled_on_cuda_by_its_seed_alone(small_run: RunConfig, tmp_path: Path) -> None:
    fit(small_run.override({"training.steps": 2}), tmp_path)
    network, prompt = load(tmp_path / CHECKPOINT)[0].network.cuda(), torch.tensor([256, 97], device="cuda")
    sampling = SamplingConfig(temperature=1.0, top_k=40, top_p=0.9)
    first, second = (list(sample(network, prompt, 20, sampling)) for _ in range(2))
    other_seed = list(sample(network, prompt, 20, sampling.override({"seed": 1})))
    assert first == second != other_seed
