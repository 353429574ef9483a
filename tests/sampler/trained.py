"""Trains a drawn run in a folder, undisturbed or stopped, and reads the files that it has left there."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from datamodules import Data
from lit_transformers.records.files import CHECKPOINT, CURVES, DOCUMENTS, RECORD
from lit_transformers.runs import Interrupted, RunConfig, fit
from lit_transformers.runs.fit import gates

COMPARED = ("steps", "measured_step", "cut", "ranks")
"""The fields under ``measured`` of a record that are no time, no speed and no name of another run."""


class Left(NamedTuple):
    """The results of a run. record: without times and surroundings. weights: those of the checkpoint."""

    record: dict[str, Any]
    curves: bytes
    documents: list[dict[str, str]]
    weights: dict[str, Tensor]

    @property
    def metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = self.record["metrics"]
        return metrics

    @property
    def finished(self) -> bool:
        return bool(self.record["outcome"] == "finished")


def left(folder: Path) -> Left:
    """Reads the folder of a run that has ended."""
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    del record["environment"]
    record["measured"] = {name: value for name, value in record["measured"].items() if name in COMPARED}
    weights, curves, documents = {}, b"", []
    if record["outcome"] == "finished":
        weights = torch.load(folder / CHECKPOINT, weights_only=True)["state_dict"]
        curves = (folder / CURVES).read_bytes()
        with (folder / DOCUMENTS).open(encoding="utf-8") as file:
            documents = [*csv.DictReader(file)]
    return Left(record, curves, documents, weights)


@contextmanager
def without_gates() -> Iterator[None]:
    """Leaves the probes of a network out, which ``test_sampled_configs`` tries over configs like these."""
    with patch.object(gates, "check", lambda *_: []):
        yield


class Batches:
    """Counts the batches that the trainer hands to a task, of training and of evaluation, and may stop a run at one."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.count, self.stop_at = 0, stop_at

    @contextmanager
    def counted(self) -> Iterator[Batches]:
        original = Data.on_before_batch_transfer

        def counting(data: Data, batch: Any, dataloader_idx: int) -> Any:
            self.count += 1
            if self.count == self.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return original(data, batch, dataloader_idx)

        with patch.object(Data, "on_before_batch_transfer", counting):
            yield self


def trained(config: RunConfig, folder: Path) -> Left:
    """Trains a run, or resumes it, and returns its results."""
    with without_gates():
        fit(config, folder)
    return left(folder)


def stopped(config: RunConfig, folder: Path, batch: int) -> bool:
    """Trains a run and asks it to stop at a batch. Returns whether it stopped before its end."""
    with without_gates(), Batches(batch).counted():
        try:
            fit(config, folder)
        except Interrupted:
            return True
    return False


def same_weights(first: Left, second: Left) -> bool:
    """Whether the weights are equal to the bit."""
    return first.weights.keys() == second.weights.keys() and all(
        torch.equal(weight, second.weights[name]) for name, weight in first.weights.items()
    )


def differences(first: Left, second: Left) -> list[str]:
    """The results of two runs that are not equal to the bit."""
    names = [
        name for name in first.record.keys() | second.record.keys() if first.record.get(name) != second.record.get(name)
    ]
    lines = [f"{name}: {first.record.get(name)} and {second.record.get(name)}" for name in sorted(names)]
    lines += ["curves"] if first.curves != second.curves else []
    lines += ["documents"] if first.documents != second.documents else []
    return lines + (["weights"] if not same_weights(first, second) else [])
