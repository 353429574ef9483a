"""Features of a frozen network, or the outputs of its frozen lowest layers, computed once and cached below
LIT_CACHE."""

from __future__ import annotations

import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from datamodules import Data, LabelledData, Split, cache_folder
from datamodules.core.index import make_once
from datamodules.core.preparing import TextCount
from lit_transformers.batch import LabelledBatch, needed_mask
from lit_transformers.config import ConfigError, Plain, canonical_hash
from lit_transformers.encodings.positions import Positions
from lit_transformers.models.capabilities import CACHED_LAYERS, RowNetwork, lowest_layers
from lit_transformers.runs.code import code_hash
from lit_transformers.runs.config import RunConfig
from lit_transformers.tasks import Task
from lit_transformers.tasks.features import META, FeatureTable, FeatureWriter, row_keys, weights_digest
from lit_transformers.tasks.labelled import LabelledTask, marks
from lit_transformers.training.arithmetic import arithmetic

__all__ = ["cached_features", "decisive_rows", "examples_of", "moved", "splits_of"]

PLACE = "training.cache_features"
FREEZE = "set training.groups to [{parameters: [network], frozen: true, mode: eval}], or cache_features to false"


@contextmanager
def cached_features(config: RunConfig, task: Task, data: Data) -> Iterator[float]:
    """Within the block, a task reads the outputs of its frozen network, or of the lowest layers, from a table, if
    ``training.cache_features`` or ``training.cached_layers`` is set and the run trains. The table is computed first if
    the cache has none.

    Yields the seconds that this took, 0 if nothing was computed. Raises ConfigError if the cached part learns, or is in
    training mode, where dropout changes its outputs, or if the network cannot be divided above it.
    """
    fields = config.training
    if not (fields.cache_features or fields.cached_layers) or not fields.steps:
        yield 0.0
        return
    if not isinstance(task, LabelledTask) or not isinstance(data, LabelledData):
        place, off = (PLACE, "false") if fields.cache_features else (CACHED_LAYERS, "0")
        raise ConfigError(f"{config.task.kind} reads no labelled sequences; set it to {off}", place)
    if fields.cached_layers:
        require_constant(task, fields.cached_layers)
    else:
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


def require_constant(task: LabelledTask, layers: int) -> None:
    """Raises ConfigError if the outputs of the lowest ``layers`` layers may change while a task is trained, or if the
    task reads layers below their output."""
    lowest_read = min(task.combination.layers)
    if lowest_read < layers:
        reason = f"task.combined_layers reads layer {lowest_read}"
        raise ConfigError(f"{reason}; set it to {lowest_read} or less", CACHED_LAYERS)
    if task.distillation is not None:
        raise ConfigError("a teacher is compared with every layer; set it to 0, or drop distillation", CACHED_LAYERS)
    was_training = task.training
    task.train()
    lowest = lowest_layers(task.network, layers)
    task.train(was_training)
    freeze = f"set training.groups to [{{parameters: [embeddings, layers 1-{layers}], frozen: true, mode: eval}}]"
    if learning := [name for name, parameter in lowest.named_parameters() if parameter.requires_grad]:
        reason = f"network.{learning[0]} learns, which changes the outputs of the lowest {layers} layers"
        raise ConfigError(f"{reason}; {freeze}", CACHED_LAYERS)
    predicting = {id(parameter) for parameter in lowest.prediction_only()}
    if any(module.training and may_draw(module, predicting) for module in lowest.modules()):
        reason = "cached layers are in training mode, where dropout may change their outputs"
        raise ConfigError(f"{reason}; {freeze}, or model.dropout to 0", CACHED_LAYERS)


def may_draw(module: nn.Module, unused: Set[int]) -> bool:
    """Whether the output of a module itself, without those within it, may be random in training mode. unused: the ids
    of parameters that compute nothing."""
    if isinstance(module, nn.Dropout):
        return module.p > 0
    if isinstance(module, Positions):
        return module.offset > 0
    return any(id(parameter) not in unused for parameter in module.parameters(recurse=False))


def table_of(config: RunConfig, task: LabelledTask, data: LabelledData) -> tuple[FeatureTable, float]:
    """Returns the table of all rows of training and validation, and the seconds of computing it. Its key covers the
    weights that compute it, the texts, the tokenizer, the layers that are read, the arithmetic and the code."""
    lower, start = config.training.cached_layers, time.monotonic()
    network = lowest_layers(task.network, lower) if lower else task.network
    weights = weights_digest(network, network.prediction_only())
    code = code_hash(config.override({"training.callbacks": ()}), (__name__,))
    layers: Plain = {"lowest": lower} if lower else list(task.combination.layers)
    decisive = {"weights": weights, "layers": layers, "code": code, **decisive_rows(config, data)}
    folder = cache_folder() / "features" / canonical_hash(decisive, 32)
    width = (1 if lower else len(task.combination.layers)) * task.model_config.dim
    is_new = not (folder / META).exists()
    progress = TextCount(sum(len(data.ordinals(split)) for split in splits_of(data)))

    def make(temporary: Path) -> None:
        write_table(config, task, network, data, FeatureWriter(temporary, {"weights": weights}, width), progress)

    make_once(folder, META, make, progress)
    return FeatureTable(folder, weights, lower), time.monotonic() - start if is_new else 0.0


def decisive_rows(config: RunConfig, data: LabelledData) -> dict[str, Plain]:
    """Returns all that decides a table next to the weights, the layers that are read and the code: the network, the
    rows and the arithmetic."""
    fields = config.training
    return {
        "model": config.model.to_dict(),
        "rows": [data.examples.fingerprint, data.config.evaluation.to_dict(), *splits_of(data)],
        "batch": data.config.batch_size,
        "arithmetic": [fields.tf32, fields.attention_kernel, fields.device],
    }


@torch.no_grad()
def write_table(
    config: RunConfig,
    task: LabelledTask,
    network: RowNetwork,
    data: LabelledData,
    writer: FeatureWriter,
    progress: TextCount,
) -> None:
    """Computes the features of every row by a network: that of the task, or a copy of its lowest layers. The order
    depends only on the data, so that tables of the same rows hold the same numbers."""
    was_training, home = task.training, task.device
    device = torch.device("cuda" if config.training.device != "cpu" and torch.cuda.is_available() else "cpu")
    task.to(device).eval()
    network.to(device).eval()
    with arithmetic(config.training):
        for batch in chain.from_iterable(examples_of(data, split) for split in splits_of(data)):
            progress.done += len(batch.inputs)
            rows = task.rows_read(batch)
            keys = [row for row in row_keys(rows) if not writer.has(row.key)]
            if not keys:
                continue
            vectors = computed(task, network, moved(rows, device))
            for row in keys:
                if not writer.has(row.key):
                    writer.add(row.key, vectors[row.number, : row.tokens])
    writer.finish()
    task.to(home).train(was_training)


def computed(task: LabelledTask, network: RowNetwork, rows: LabelledBatch) -> Float[Tensor, "b t w"]:
    """Returns the features (b, t, w) of rows. Raises ConfigError if the lowest layers add a loss, which no cache
    holds."""
    if network is task.network:
        return torch.cat(task.chosen_layers(network, rows).layers, dim=-1)
    output = network.read_row(rows.inputs, needed_mask(rows), marks(rows), rows.segments)
    if output.aux:
        reason = f"cached layers add the loss {min(output.aux)}, which the cache does not hold"
        raise ConfigError(f"{reason}; set it to 0", CACHED_LAYERS)
    return output.hidden


def splits_of(data: LabelledData) -> tuple[Split, ...]:
    """Returns the splits whose features are computed: of training, of its validations, and of the measurement."""
    return tuple(dict.fromkeys(("train", data.validated_split, data.measured_split)))


def examples_of(data: LabelledData, split: Split) -> Iterator[LabelledBatch]:
    """Yields batches: for training all examples, sorted by length; else the examples that a validation measures."""
    yield from (data.every_example(split) if split == "train" else data.evaluation(split)).batches()


def moved(batch: LabelledBatch, device: torch.device) -> LabelledBatch:
    """Returns a batch whose inputs, masks, marks and segments are on a device."""
    inputs, padding_mask = batch.inputs.to(device), batch.padding_mask.to(device)
    marked, segments = (None if part is None else part.to(device) for part in (batch.marked, batch.segments))
    return batch._replace(inputs=inputs, padding_mask=padding_mask, marked=marked, segments=segments)
