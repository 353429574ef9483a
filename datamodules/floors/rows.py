"""Floors of symbols of rows, their frequencies and the symbol on one side of them, and of relations of segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.errors import DataError
from datamodules.rows.rows import RowData
from lit_transformers.batch import IGNORED, RowBatch

__all__ = ["MOST_SYMBOLS", "Beside", "SymbolPrediction", "bigram", "row_floors"]

MOST_SYMBOLS = 1 << 22
"""The most symbols of training rows that are counted: the first in the order of training."""
NAMES = ("frequencies of symbols", "the symbol to the left", "the symbol to the right")
DIRECTIONS = {"forward": NAMES[:2], "backward": (NAMES[0], NAMES[2])}
"""What may predict the symbols of a row that is read in a direction."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Beside(NamedTuple):
    """Symbols to predict with what stands beside each in the inputs: ``beside`` (k, n); of symbols that are between two
    others, to the left and to the right."""

    symbols: Integers
    beside: Integers


class SymbolPrediction(NamedTuple):
    """The probability of every symbol to predict, and whether it is the one that counts as likely."""

    probability: Floats
    right: npt.NDArray[np.bool_]


def row_floors(data: RowData, metric: str, batches: int) -> dict[str, float]:
    """Returns nats or accuracy of hidden symbols, by their frequencies and by bigrams of the symbol on either side; or
    forward_nats, forward_accuracy, backward_nats or backward_accuracy of all symbols, by bigrams of the side that such
    a language model has read; or relation_nats or relation_accuracy, phrase_nats or phrase_accuracy, by the frequencies
    of relations and of phrases that were replaced; or of minimal pairs the share of a guess.

    They count what is predicted in so many batches of training. Bigrams have Witten-Bell smoothing (``ngrams``).
    Raises DataError for other metrics.
    """
    if metric.removesuffix("_accuracy") in ("pairs", *data.config.rules):
        return {"a guess": 0.5}
    predicted, _, measure = metric.rpartition("_")
    if predicted not in ("", *DIRECTIONS, "relation", "phrase") or measure not in ("nats", "accuracy"):
        raise DataError(f"no predictor of hidden symbols has a value of {metric}")
    batches = min(batches, max(MOST_SYMBOLS // data.config.tokens_per_step, 1))
    if predicted == "relation":
        return {"frequencies of relations": _of_relations(data, metric, batches)}
    if predicted == "phrase":
        return {"frequencies of replaced phrases": _of_phrases(data, metric, batches)}
    choose = partial(_symbols, data) if predicted else _hidden
    training, evaluated = choose(islice(data.train_dataloader(), batches)), choose(_rows(data))
    values = _by_bigrams(training, evaluated, data.description.vocabulary.size, measure)
    return {name: values[name] for name in DIRECTIONS.get(predicted, NAMES)}


def _by_bigrams(training: Beside, evaluated: Beside, size: int, measure: str) -> dict[str, float]:
    """Returns nats or accuracy of symbols by their frequencies, and by bigrams of the symbol on either side."""
    frequencies = np.bincount(training.symbols, minlength=size) + 1.0
    likely = np.full(len(evaluated.symbols), frequencies.argmax())
    unigram = SymbolPrediction((frequencies / frequencies.sum())[evaluated.symbols], likely == evaluated.symbols)
    sides = [bigram(training, evaluated, side, frequencies / frequencies.sum()) for side in range(2)]
    return {
        name: float(-np.log(prediction.probability).mean() if measure == "nats" else prediction.right.mean())
        for name, prediction in zip(NAMES, [unigram, *sides], strict=True)
    }


def _of_relations(data: RowData, metric: str, batches: int) -> float:
    """Returns the metric of the frequencies of relations. Raises DataError if the data have no relation."""
    if not data.description.relations:
        raise DataError(f"rows without a relation of segments have no {metric}; set data.relation")
    training, evaluated = (
        np.concatenate([batch.relation.numpy()[batch.padding_mask.any(dim=1).numpy()] for batch in part])
        for part in (islice(data.train_dataloader(), batches), _rows(data))
    )
    return _by_frequency(training, evaluated, data.description.relations, metric)


def _of_phrases(data: RowData, metric: str, batches: int) -> float:
    """Returns the metric of the frequency of replaced phrases. Raises DataError if no phrases are replaced."""
    training, evaluated = (
        np.concatenate(
            [np.empty(0, np.int64), *(b.phrases[..., 2].numpy().ravel() for b in part if b.phrases is not None)]
        )
        for part in (islice(data.train_dataloader(), batches), _rows(data))
    )
    if not len(evaluated):
        raise DataError(f"rows without phrases that may have been replaced have no {metric}; set data.noise.kind")
    return _by_frequency(training[training != IGNORED], evaluated[evaluated != IGNORED], 2, metric)


def _by_frequency(training: Integers, evaluated: Integers, classes: int, metric: str) -> float:
    """Returns accuracy or nats of the frequencies of classes."""
    counts = np.bincount(training, minlength=classes) + 1.0
    if metric.endswith("accuracy"):
        return float((evaluated == counts.argmax()).mean())
    return float(-np.log(counts / counts.sum())[evaluated].mean())


def _rows(data: RowData) -> Iterator[RowBatch]:
    """Yields the batches of the evaluation without minimal pairs."""
    return (batch for batch in data.val_dataloader() if batch.rule is None)


def _hidden(batches: Iterable[RowBatch]) -> Beside:
    """Returns the hidden symbols of batches. A row begins and ends with special symbols, which are never hidden."""
    symbols, beside = [], []
    for batch in batches:
        inputs, targets = batch.inputs.numpy(), batch.targets.numpy()
        row, place = np.nonzero(targets != IGNORED)
        symbols.append(targets[row, place])
        beside.append(np.stack([inputs[row, place - 1], inputs[row, place + 1]]))
    return Beside(np.concatenate(symbols), np.concatenate(beside, axis=1))


def _symbols(data: RowData, batches: Iterable[RowBatch]) -> Beside:
    """Returns all symbols of batches but special ones, as they were before some were hidden."""
    described = data.description
    special = [described.vocabulary.boundary, described.separator, described.mask]
    symbols, beside = [], []
    for batch in batches:
        inputs, targets = batch.inputs.numpy(), batch.targets.numpy()
        original = np.where(targets == IGNORED, inputs, targets)
        row, place = np.nonzero(batch.padding_mask.numpy() & ~np.isin(original, special))
        symbols.append(original[row, place])
        beside.append(np.stack([original[row, place - 1], original[row, place + 1]]))
    return Beside(np.concatenate(symbols), np.concatenate(beside, axis=1))


def bigram(training: Beside, evaluated: Beside, side: int, unigram: Floats) -> SymbolPrediction:
    """Returns p(w | c) = (n(c w) + T(c) p(w)) / (n(c) + T(c)) with the symbol c on one side; p(w) where c is new.

    The symbol that is likely beside c is the most probable one of those that stood there.
    """
    size = len(unigram)
    context, symbols = evaluated.beside[side], evaluated.symbols
    pairs, counts = np.unique(training.beside[side] * size + training.symbols, return_counts=True)
    contexts, followers = np.divmod(pairs, size)
    totals = np.bincount(contexts, weights=counts, minlength=size)[context]
    kinds = np.bincount(contexts, minlength=size)[context]
    places = np.minimum(np.searchsorted(pairs, context * size + symbols), len(pairs) - 1)
    count = np.where(pairs[places] == context * size + symbols, counts[places], 0)
    probability = np.where(
        kinds > 0, (count + kinds * unigram[symbols]) / np.maximum(totals + kinds, 1), unigram[symbols]
    )
    likely = np.full(size, unigram.argmax())
    weights = counts + np.bincount(contexts, minlength=size)[contexts] * unigram[followers]
    by_weight = np.argsort(weights, kind="stable")
    likely[contexts[by_weight]] = followers[by_weight]
    return SymbolPrediction(probability, likely[context] == symbols)
