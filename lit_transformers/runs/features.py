"""Features of a frozen network, computed once and cached below LIT_CACHE."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import torch

from datamodules import Data, LabelledData, Split, cache_folder
from datamodules.core.index import made_aside
from datamodules.core.preparing import TextCount
from lit_transformers.batch import LabelledBatch
from lit_transformers.config import ConfigError, Plain, canonical_hash
from lit_transformers.runs.code import code_hash
from lit_transformers.runs.config import RunConfig
from lit_transformers.tasks import Task
from lit_transformers.tasks.features import META, FeatureTable, FeatureWriter, row_keys, weights_digest
from lit_transformers.tasks.labelled import LabelledTask
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["cached_features", "decisive_rows", "examples_of", "moved", "splits_of"]

PLACE = "training.cache_features"
FREEZE = "set training.groups to [{parameters: [network], frozen: true, mode: eval}], or cache_features to false"


@contextmanager
def cached_features(config: RunConfig, task: Task, data: Data) -> Iterator[float]:
    """Within the block, a task reads the outputs of its frozen network from a table, if ``training.cache_features`` is
    set and the run trains. The table is computed first if the cache has none.

    Yields the seconds that this took, 0 if nothing was computed. Raises ConfigError if the network learns, or is in
    training mode, where dropout changes its outputs.
    """
    if not config.training.cache_features or not config.training.steps:
        yield 0.0
        return
    if not isinstance(task, LabelledTask) or not isinstance(data, LabelledData):
        raise ConfigError(f"{config.task.kind} reads no labelled sequences; set it to false", PLACE)
    require_frozen(task)
    task.features, seconds = table_of(config, task, data)
    try:
        yield seconds
    finally:
        task.features = None


def require_frozen(task: LabelledTask) -> None:
    """Raises ConfigError if the network of a task learns, or is in training mode while its heads are trained."""
    groups, was_training = task.groups, task.training
    learning = any(parameter.requires_grad for parameter in task.network.parameters())
    task.train()
    dropping = any(module.training for module in task.network.modules())
    task.train(was_training)
    if learning or not groups.configs:
        raise ConfigError(f"the network learns, which changes its outputs; {FREEZE}", PLACE)
    if dropping:
        raise ConfigError(f"the network is in training mode, where dropout may change its outputs; {FREEZE}", PLACE)


def table_of(config: RunConfig, task: LabelledTask, data: LabelledData) -> tuple[FeatureTable, float]:
    """Returns the table of all rows of training and validation, and the seconds of computing it. Its key covers the
    weights, the texts, the tokenizer, the layers that are read, the arithmetic and the code."""
    weights, start = weights_digest(task.network, task.network.prediction_only()), time.monotonic()
    code = code_hash(config.override({"training.callbacks": ()}), (__name__,))
    layers: Plain = list(task.combination.layers)
    decisive = {"weights": weights, "layers": layers, "code": code, **decisive_rows(config, data)}
    folder = cache_folder() / "features" / canonical_hash(decisive, 32)
    is_new = not (folder / META).exists()
    if is_new:
        progress = TextCount(sum(len(data.ordinals(split)) for split in splits_of(data)))
        with made_aside(folder, META, progress) as temporary:
            write_table(config, task, data, temporary, weights, progress)
    return FeatureTable(folder, weights), time.monotonic() - start if is_new else 0.0


def decisive_rows(config: RunConfig, data: LabelledData) -> dict[str, Plain]:
    """Returns all that decides a table next to the weights, the layers that are read and the code: the network, the
    rows and the arithmetic."""
    fields = config.training
    return {
        "model": config.model.to_dict(),
        "rows": [data.examples.fingerprint, data.config.evaluation.to_dict(), data.validated_split],
        "batch": data.config.batch_size,
        "arithmetic": [fields.tf32, fields.attention_kernel, fields.device],
    }


@torch.no_grad()
def write_table(
    config: RunConfig, task: LabelledTask, data: LabelledData, folder: Path, weights: str, progress: TextCount
) -> None:
    """Computes the features of every row. The order depends only on the data, so that tables of the same rows hold the
    same numbers."""
    width = len(task.combination.layers) * task.model_config.dim
    writer, was_training, home = FeatureWriter(folder, {"weights": weights}, width), task.training, task.device
    device = torch.device("cuda" if config.training.device != "cpu" and torch.cuda.is_available() else "cpu")
    task.to(device).eval()
    with arithmetic(config.training):
        for batch in chain.from_iterable(examples_of(data, split) for split in splits_of(data)):
            progress.done += len(batch.inputs)
            rows = task.rows_read(batch)
            keys = [row for row in row_keys(rows) if not writer.has(row.key)]
            if not keys:
                continue
            vectors = torch.cat(task.chosen_layers(task.network, moved(rows, device)).layers, dim=-1)
            for row in keys:
                if not writer.has(row.key):
                    writer.add(row.key, vectors[row.number, : row.tokens])
    writer.finish()
    task.to(home).train(was_training)


def splits_of(data: LabelledData) -> tuple[Split, ...]:
    """Returns the splits whose features are computed."""
    return ("train", data.validated_split)


def examples_of(data: LabelledData, split: Split) -> Iterator[LabelledBatch]:
    """Yields batches: for training all examples, sorted by length; else the examples that a validation measures."""
    yield from (data.every_example(split) if split == "train" else data.evaluation(split)).batches()


def moved(batch: LabelledBatch, device: torch.device) -> LabelledBatch:
    """Returns a batch whose inputs, masks, marks and segments are on a device."""
    inputs, padding_mask = batch.inputs.to(device), batch.padding_mask.to(device)
    marked, segments = (None if part is None else part.to(device) for part in (batch.marked, batch.segments))
    return batch._replace(inputs=inputs, padding_mask=padding_mask, marked=marked, segments=segments)
