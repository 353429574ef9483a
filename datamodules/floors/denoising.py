"""Floors of the targets of damaged texts: frequencies, the symbol before, and copies of the source."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.errors import DataError
from datamodules.denoising.denoising import DenoisingData
from datamodules.floors.rows import MOST_SYMBOLS, Beside, bigram
from lit_transformers.batch import IGNORED, PairBatch

__all__ = ["denoising_floors"]

NAMES = ("frequencies of symbols", "the symbol before", "copy of the source")


class _Predicted(NamedTuple):
    """Symbols that are predicted, each with the input before it, and the copy of the source: -1 where there is none."""

    beside: Beside
    copied: npt.NDArray[np.int64]


def denoising_floors(data: DenoisingData, metric: str, batches: int) -> dict[str, float]:
    """Returns nats or accuracy per symbol that is written, by the frequencies of training, by bigrams of the input
    before it, and by a copy: the symbol that follows this input where it first stands in the source, and the source's
    first symbol at the beginning. In nats, a copy has the probability that it had in training, and bigrams predict the
    rest.

    Raises DataError for other metrics.
    """
    if metric not in ("nats", "accuracy"):
        raise DataError(f"no predictor of damaged texts has a value of {metric}")
    batches = min(batches, max(MOST_SYMBOLS // data.config.tokens_per_step, 1))
    size = data.description.vocabulary.size
    training = _predicted(islice(data.train_dataloader(), batches))
    evaluated = _predicted(data.measured_dataloader())
    frequencies = np.bincount(training.beside.symbols, minlength=size) + 1.0
    frequencies = (frequencies / frequencies.sum()).astype(np.float64)
    symbols = evaluated.beside.symbols
    unigram = frequencies[symbols]
    beside = bigram(training.beside, evaluated.beside, 0, frequencies)
    trust = (np.sum(training.copied == training.beside.symbols) + 1) / (np.sum(training.copied >= 0) + 2)
    is_copied, has_copy = evaluated.copied == symbols, evaluated.copied >= 0
    copied = np.where(has_copy, trust * is_copied + (1 - trust) * beside.probability, beside.probability)
    right = (symbols == frequencies.argmax(), beside.right, np.where(has_copy, is_copied, beside.right))
    values = right if metric == "accuracy" else (-np.log(unigram), -np.log(beside.probability), -np.log(copied))
    return {name: float(np.mean(value)) for name, value in zip(NAMES, values, strict=True)}


def _predicted(batches: Iterable[PairBatch]) -> _Predicted:
    symbols, before, copies = [], [], []
    for batch in batches:
        for source, mask, inputs, targets in zip(
            batch.source.numpy(), batch.source_padding_mask.numpy(), batch.inputs.numpy(), batch.targets.numpy(),
            strict=True,
        ):  # fmt: skip
            scored = targets != IGNORED
            read = source[mask]
            following = dict(zip(read[-2::-1].tolist(), read[:0:-1].tolist(), strict=True))  # the first of equal ones
            copy = [following.get(symbol, -1) for symbol in inputs[scored].tolist()]
            if copy:
                copy[0] = int(read[0])
            symbols.append(targets[scored])
            before.append(inputs[scored])
            copies.append(np.array(copy, np.int64))
    return _Predicted(Beside(np.concatenate(symbols), np.stack([np.concatenate(before)])), np.concatenate(copies))
