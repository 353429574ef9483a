"""Two ranks on one device by gloo train and measure as one rank by NCCL does on the rows of both."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Forked
from shared_device import train_as_rank

from lit_transformers.records.files import RECORD
from lit_transformers.runs import RunConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REHEARSAL = "LIT_TRANSFORMERS_REHEARSAL"
"""The variable of the environment that has these tests run on a CPU."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        DEVICE == "cpu" and REHEARSAL not in os.environ, reason=f"needs a CUDA device, or {REHEARSAL}=1 for a rehearsal"
    ),
]


def start(config: RunConfig, ranks: int, backend: str, folder: Path) -> Forked:
    """Begins a run by ``ranks`` ranks, all on one device."""
    (folder / "run").mkdir(parents=True)
    return Forked(folder / "output.txt", train_as_rank, config, folder / "run", backend, ranks=ranks)


def metrics_of(process: Forked, folder: Path) -> dict[str, Any]:
    """Waits for a run, and returns its metrics."""
    process.finish()
    metrics: dict[str, Any] = json.loads((folder / "run" / RECORD).read_text())["metrics"]
    return metrics


def test_two_ranks_on_one_device_measure_what_one_rank_does(small_run: RunConfig, tmp_path: Path) -> None:
    """Gradients are summed in another order, so float32 weights differ in their last bits: 1e-4, not equality."""
    config = small_run.override(
        {
            "model.depth": 2,
            "data.evaluation.documents": 5,
            "training.steps": 20,
            "training.devices": 2,
            "training.device": DEVICE,
        }
    )
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    processes = {"two": start(config, 2, "gloo", tmp_path / "two"), "one": start(config, 1, backend, tmp_path / "one")}
    try:
        two_ranks, one_rank = (metrics_of(process, tmp_path / name) for name, process in processes.items())
    finally:
        for process in processes.values():
            process.send(signal.SIGTERM)
    assert two_ranks.keys() == one_rank.keys() and {"val/bpb", "val/nats"} <= two_ranks.keys()
    assert two_ranks == pytest.approx(one_rank, rel=1e-4)
