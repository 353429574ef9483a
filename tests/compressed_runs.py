"""A small run with any compressions, and its task with their callback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from golden.runs import RUNS
from torch import nn

from lit_transformers.compression import CompressionConfig
from lit_transformers.compression.callback import CompressionCallback
from lit_transformers.compression.compression import matrices_of
from lit_transformers.runs import RunConfig
from lit_transformers.tasks import Task

BASE = RunConfig.from_dict({**RUNS["deformer"], "training": {"steps": 12, "device": "cpu", "log_every": 4}})


def compressed(*parts: Mapping[str, Any], **changes: Any) -> RunConfig:
    """The run with compressions, given as plain data, and overrides."""
    return BASE.override({"compression": tuple(CompressionConfig.from_dict(part) for part in parts), **changes})


def built(*parts: Mapping[str, Any]) -> tuple[Task, CompressionCallback]:
    """The run's task, with matrices of normal numbers, and the callback that compresses it."""
    config = compressed(*parts)
    data = config.build_data()
    torch.manual_seed(0)
    task = config.build_task(data)
    for matrix in matrices_of(task, ["network"]).values():
        nn.init.normal_(matrix, std=0.1)
    return task, CompressionCallback(config.compression, task, data.train_dataloader)
