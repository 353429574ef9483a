"""The input of a measurement of a module: a fingerprint of its examples, which does not depend on their batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from lit_transformers.config import ConfigError, canonical_hash
from lit_transformers.lightning_runs.metrics import stated_measures
from lit_transformers.records.measure import Measure
from lit_transformers.records.measurement import Measurement

__all__ = ["MeasuredBatches"]

SIZE = 16
"""The bytes of a hash of an example."""
PLAIN = (str, bytes, bool, int, float)
DEEPEST = 8
"""How many containers may stand in one another, in which the content of a batch is looked for."""


class MeasuredBatches(Callback):
    """Counts and hashes the examples of a measurement. Their hashes are added up, so that neither the order of examples
    nor the size of batches matters.

    Where all parts of a batch have rows, as many of each, a row of all of them is an example; else the batch is one. A
    batch that pads its rows to the longest one has other rows than a larger one: a data module with such batches states
    the fingerprint of its examples in ``evaluation_fingerprint``, a text or a method that returns one, which replaces
    the hashes.
    """

    def __init__(self) -> None:
        self.total = self.examples = 0
        self.offered: str | None = None
        self.measures: Mapping[str, Measure] = {}

    def on_validation_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.total = self.examples = 0
        self.measures = stated_measures(task)
        data = getattr(trainer, "datamodule", None)
        offered = getattr(data, "evaluation_fingerprint", None)
        self.offered = offered() if callable(offered) else offered
        if self.offered is not None and not isinstance(self.offered, str):
            reason = f"the evaluation_fingerprint of {type(data).__name__} is no text but {self.offered!r}"
            raise ConfigError(reason, "data.class_path")

    def on_validation_batch_start(
        self, trainer: L.Trainer, task: L.LightningModule, batch: Any, i: int, loader: int = 0
    ) -> None:
        for example in examples_of(batch):
            self.examples += 1
            self.total += int.from_bytes(hashlib.blake2b(example, digest_size=SIZE, salt=str(loader).encode()).digest())

    def on_test_start(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self.on_validation_start(trainer, task)

    def on_test_batch_start(
        self, trainer: L.Trainer, task: L.LightningModule, batch: Any, i: int, loader: int = 0
    ) -> None:
        self.on_validation_batch_start(trainer, task, batch, i, loader)

    def measurement(self, split: str) -> Measurement:
        """Returns the measurement of a split, with the measures that the module states for its metrics."""
        documents = canonical_hash([self.offered] if self.offered is not None else [self.examples, self.total], 32)
        return Measurement.of(split, documents, self.examples, self.measures)


def examples_of(batch: Any) -> Iterator[bytes]:
    """Yields the content of each example of a batch, or of the whole batch where its parts have not the same number of
    rows."""
    parts = list(parts_of(batch))
    counts = {
        None if isinstance(part, str) or (isinstance(part, torch.Tensor) and not part.dim()) else len(part)
        for part in parts
    }
    if len(counts) == 1 and None not in counts:
        yield from (b"".join(map(content_of, row)) for row in zip(*parts, strict=True))
    else:
        yield b"".join(map(content_of, parts))


def parts_of(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yields the tensors and arrays of a batch of any type, its lists of plain values, and single values as text;
    nothing for values without content, such as None."""
    if isinstance(value, torch.Tensor):
        yield value.detach().cpu().to_dense() if value.is_sparse else value.detach().cpu()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield torch.from_numpy(value) if value.dtype.kind in "biufc" else value.tolist()
    elif isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, list | tuple) and value and all(isinstance(entry, PLAIN) for entry in value):
        yield list(value)
    elif depth < DEEPEST and value is not None:
        inside = value if isinstance(value, list | tuple) else value.values() if isinstance(value, Mapping) else None
        for entry in getattr(value, "__dict__", {}).values() if inside is None else inside:
            yield from parts_of(entry, depth + 1)


def content_of(part: Any) -> bytes:
    """Returns a part of a batch, or a row of one, as bytes: the shape, type and numbers of a tensor."""
    if not isinstance(part, torch.Tensor):
        return f"{part!r} ".encode()
    real = torch.view_as_real(part) if part.is_complex() else part
    numbers = real.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tuple(part.shape)} {part.dtype} ".encode() + numbers
