"""Floors of answers, of generated strings and of pairs: chance, as training strings show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from datamodules.core.data import Data
from datamodules.core.errors import DataError
from lit_transformers.batch import IGNORED

__all__ = ["answer_floors"]

MOST_BATCHES = 64
"""The most batches of training whose answers are counted."""


def answer_floors(data: Data, metric: str, batches: int) -> dict[str, float]:
    """Returns the values of chance: accuracy by the most frequent symbol, sequence_accuracy by the most frequent answer
    of training, nats per symbol by the frequencies of training; for one length where the metric ends in @length.

    The most frequent symbol is that of the evaluated answers, for training strings of other lengths may end more often.
    Raises DataError for other metrics.
    """
    name, _, length = metric.partition("@")
    if name not in ("accuracy", "sequence_accuracy", "nats"):
        raise DataError(f"no chance of answers has a value of {metric}")
    answers = _answers(data.measured_dataloader(), length)
    if not answers:
        raise DataError(f"no string of the evaluation has the length of {metric}")
    symbols = np.concatenate(answers)
    if name == "accuracy":
        return {"most frequent symbol": float(np.bincount(symbols).max() / len(symbols))}
    training = _answers(islice(data.train_dataloader(), min(batches, MOST_BATCHES)), "")
    if name == "sequence_accuracy":
        [(answer, _)] = Counter(map(bytes, training)).most_common(1)
        return {"most frequent answer": float(np.mean([bytes(item) == answer for item in answers]))}
    counts = np.bincount(np.concatenate(training), minlength=data.description.vocabulary.size) + 1
    return {"frequencies of symbols": float(-np.log(counts / counts.sum())[symbols].mean())}


def _answers(batches: Iterable[Any], length: str) -> list[npt.NDArray[np.int64]]:
    """Returns the symbols to predict of every string; of one requested length where it is named."""
    rows = []
    for batch in batches:
        for targets, requested in zip(batch.targets.numpy(), batch.requested_length.tolist(), strict=True):
            if length in ("", str(requested)):
                rows.append(targets[targets != IGNORED])
    return rows
