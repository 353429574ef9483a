"""Ranks that share one device, for a machine with a single one; and one process that reads the data of two ranks.

NCCL refuses two ranks on one device, gloo does not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy

from datamodules import LanguageData, Shard
from datamodules.text.lanes import LaneShape
from datamodules.text.language import reading_lanes
from lit_transformers.batch import TextBatch
from lit_transformers.records.files import RECORD
from lit_transformers.runs import RunConfig, fit, train
from lit_transformers.training.config import TrainingConfig
from lit_transformers.training.stopping import Stop


def batches_of_both(data: LanguageData) -> Iterator[TextBatch]:
    """The batches of two ranks joined: the first rank's rows, then the second rank's."""
    config = data.config
    shape = LaneShape(config.batch_size // 2, config.segment_length, config.segment_length, joined=False)
    ranks = []
    for number in range(2):
        documents = partial(data.documents("train").training, seed=config.seed)
        reading = reading_lanes(documents, data.tokenizer, shape, Shard(number, 2), 0)
        ranks.append(reading.batches(reading.start()))
    for first, second in zip(*ranks, strict=False):
        inputs, targets, padding_mask, document, fresh = (
            torch.cat(pair) for pair in zip(first[:5], second[:5], strict=True)
        )
        yield TextBatch(inputs, targets, padding_mask, document, fresh, stream=0, cursor="")


class Both:
    """A loader of ``batches_of_both``."""

    def __init__(self, data: LanguageData) -> None:
        self.data = data

    def __iter__(self) -> Iterator[TextBatch]:
        return batches_of_both(self.data)


def train_on_rows_of_both(config: RunConfig, directory: Path) -> None:
    """One process trains on the rows of two ranks, and writes a record of its metrics."""
    single = config.override({"training.devices": 1})
    data = LanguageData(single.data)
    data.train_dataloader = lambda: Both(data)  # type: ignore[method-assign, assignment, return-value]
    metrics, _, _ = train.train(single, data, directory, "its own", Stop())
    (directory / RECORD).write_text(json.dumps({"metrics": metrics}))


def share_one_device(device: torch.device, backend: str) -> None:
    """Makes all ranks of a run train on ``device`` and communicate by ``backend``."""
    world, make = int(os.environ["WORLD_SIZE"]), train.make_trainer

    def strategy_of(training: TrainingConfig) -> DDPStrategy:
        return DDPStrategy(parallel_devices=[device] * world, process_group_backend=backend)

    def make_trainer(
        training: TrainingConfig, directory: Path, callbacks: list[L.Callback], loggers: Sequence[Logger] = ()
    ) -> L.Trainer:
        # Lightning counts devices, not ranks.
        return make(training.override({"devices": 1}), directory, callbacks, loggers)

    train.strategy_of = strategy_of  # type: ignore[assignment]
    train.make_trainer = make_trainer


def train_as_rank(config: RunConfig, directory: Path, backend: str) -> None:
    """One rank of a run on one device: of two, or the only one, which trains on the rows of two; for ``Forked``."""
    share_one_device(torch.device(config.training.device, 0 if config.training.device == "cuda" else None), backend)
    if int(os.environ["WORLD_SIZE"]) == 1:
        train_on_rows_of_both(config, directory)
    else:
        record = fit(config, directory)
        assert record["outcome"] == "finished", record["reason"]
