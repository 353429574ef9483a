"""Floors of symbols of rows, their frequencies and the symbol on one side of them, and of relations of segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.errors import DataError
from datamodules.floors.cache import CacheCounts, VisibleContext, fitted_weights, mixed_probabilities
from datamodules.rows.rows import RowData
from lit_transformers.batch import IGNORED, RowBatch

__all__ = ["MOST_SYMBOLS", "Beside", "SymbolPrediction", "bigram", "row_cache_floors", "row_floors"]

MOST_SYMBOLS = 1 << 22
"""The most symbols of training rows that are counted: the first in the order of training."""
NAMES = ("frequencies of symbols", "the symbol to the left", "the symbol to the right")
DIRECTIONS = {"forward": NAMES[:2], "backward": (NAMES[0], NAMES[2])}
"""The predictors of the symbols of a row that is read in a direction."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


HELD_OUT = 10
"""Every tenth row of training is one that weights of a cache are fitted on."""
MOST_ROWS = 4096
"""The most of these rows."""


class Beside(NamedTuple):
    """Symbols to predict, each with its neighbours in the inputs: ``beside`` (k, n); for symbols between two others, to
    the left and to the right."""

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

    They count the targets of ``batches`` batches of training. Bigrams have Witten-Bell smoothing (``ngrams``). Raises
    DataError for other metrics.
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


def row_cache_floors(data: RowData, metric: str, batches: int, context: VisibleContext | None) -> dict[str, float]:
    """Returns nats of hidden symbols, or forward_nats or backward_nats of all symbols, of the frequencies and bigrams
    of ``row_floors`` that are mixed with those of the visible symbols of the row itself; nothing for other metrics.

    Visible symbols are those that are not to be predicted, which are never special ones, or those on the side that is
    read; at most ``context.window`` symbols away, and only those that the row's masks of attention show. Weights are
    fitted on every tenth row of training, with the counts of the others; then all rows count. Accuracy has no such
    predictor, because its likeliest symbol would have to be searched for among all; nor have rows of training that are
    measured, because weights would be fitted on them.
    """
    predicted, _, measure = metric.rpartition("_")
    if measure != "nats" or predicted not in ("", *DIRECTIONS) or data.measured_split == "train":
        return {}
    window, size = context.window if context else None, data.description.vocabulary.size
    reading = _VisibleRows(data, predicted, window)
    batches = min(batches, max(MOST_SYMBOLS // data.config.tokens_per_step, 1))
    choose = partial(_symbols, data) if predicted else _hidden
    sides = {"": (0, 1), "forward": (0,), "backward": (1,)}[predicted]
    rows = (part for batch in islice(data.train_dataloader(), batches) for part in reading.rows(batch, HELD_OUT))
    held_out = [*islice(rows, MOST_ROWS)]
    counted = choose(map(_without_held_out, islice(data.train_dataloader(), batches)))
    if not held_out or not len(counted.symbols):
        return {}
    fitted = joined_rows(held_out)
    weights = fitted_weights(_row_static(counted, fitted.beside, size, sides), fitted.counts)
    training = choose(islice(data.train_dataloader(), batches))
    measured = joined_rows([part for batch in _rows(data) for part in reading.rows(batch)])
    static = _row_static(training, measured.beside, size, sides)
    nats = -np.log(mixed_probabilities(static, measured.counts, weights))
    return {"neighbours, with a cache of the row": float(nats.mean())}


class SeenRow(NamedTuple):
    """The symbols to predict of rows, with their neighbours, and the counts of the visible symbols of the rows: of all,
    and of those with an equal neighbour to the left and to the right."""

    beside: Beside
    counts: tuple[CacheCounts, ...]


class _VisibleRows:
    """Reads the visible symbols of rows. predicted: "" for hidden symbols, or the direction in which all are."""

    def __init__(self, data: RowData, predicted: str, window: int | None) -> None:
        described = data.description
        self.special = [described.vocabulary.boundary, described.separator, described.mask]
        self.predicted, self.window = predicted, window

    def rows(self, batch: RowBatch, every: int = 1) -> Iterator[SeenRow]:
        """Yields the rows of a batch in which something is predicted; of those of training every tenth, by ordinals."""
        orders = batch.order.numpy() if batch.order is not None else np.zeros_like(batch.inputs.numpy())
        for row, mask in enumerate(batch.padding_mask.numpy()):
            if int(batch.example[row]) % every == 0 and mask.any():
                seen = self._row(batch.inputs[row].numpy()[mask], batch.targets[row].numpy()[mask], orders[row][mask])
                if len(seen.beside.symbols):
                    yield seen

    def _row(self, inputs: Integers, targets: Integers, order: Integers) -> SeenRow:
        is_hidden = (targets != IGNORED) & (self.predicted == "")
        symbols, places = np.where(targets == IGNORED, inputs, targets), np.arange(len(inputs))
        is_special = np.isin(symbols, self.special)
        at = np.flatnonzero(is_hidden if self.predicted == "" else ~is_special)
        distance = places - at[:, None]
        seen = ~is_hidden & (order <= order[at][:, None])
        if self.predicted:
            seen &= (distance < 0) if self.predicted == "forward" else (distance > 0)
        if self.window is not None:
            seen &= np.abs(distance) <= self.window
        contexts = np.where(is_hidden, -1, symbols)  # a hidden symbol is no context
        nothing = np.zeros_like(symbols)
        beside = [np.concatenate([[-1], contexts[:-1]]), np.concatenate([contexts[1:], [-1]])]
        counts = [self._counts(nothing, symbols, at, seen & ~is_special)]
        for side, step in ((0, -1), (1, 1)):
            if self.predicted != ("forward", "backward")[1 - side]:
                neighbour = np.clip(places + step, 0, len(places) - 1)
                both = seen & seen[:, neighbour] & ~is_special & (beside[side] >= 0)
                known = seen[np.arange(len(at)), at + step] & (beside[side][at] >= 0)
                counts.append(self._counts(beside[side], symbols, at, both & known[:, None]))
        original = inputs if self.predicted == "" else symbols
        return SeenRow(Beside(symbols[at], np.stack([original[at - 1], original[at + 1]])), tuple(counts))

    def _counts(self, contexts: Integers, symbols: Integers, at: Integers, seen: npt.NDArray[np.bool_]) -> CacheCounts:
        """Returns the counts of the visible contexts at places (m,). contexts: of each symbol (t,). seen (m, t)."""
        events = seen & (contexts == contexts[at][:, None])
        by_symbol = np.argsort(symbols, kind="stable")
        sorted_events = events[:, by_symbol]
        starts = np.flatnonzero(np.diff(symbols[by_symbol], prepend=-1))
        kinds = (np.add.reduceat(sorted_events, starts, axis=1, dtype=np.int64) > 0).sum(axis=1)
        right = (events & (symbols == symbols[at][:, None])).sum(axis=1)
        return CacheCounts(events.sum(axis=1), kinds, right)


def joined_rows(rows: Sequence[SeenRow]) -> SeenRow:
    """Returns the symbols and counts of several rows as one."""
    beside = Beside(
        np.concatenate([row.beside.symbols for row in rows]),
        np.concatenate([row.beside.beside for row in rows], axis=1),
    )
    counts = zip(*(row.counts for row in rows), strict=True)
    return SeenRow(beside, tuple(CacheCounts(*map(np.concatenate, zip(*part, strict=True))) for part in counts))


def _without_held_out(batch: RowBatch) -> RowBatch:
    """Returns a batch without the rows that weights are fitted on: nothing is predicted of them."""
    held_out = (batch.example % HELD_OUT == 0)[:, None]
    hidden = batch.targets.masked_fill(held_out, IGNORED)
    return batch._replace(targets=hidden, padding_mask=batch.padding_mask & ~held_out)


def _row_static(training: Beside, evaluated: Beside, size: int, sides: Sequence[int]) -> Floats:
    """Returns the probabilities (s, p) of symbols by their frequencies and by bigrams of each side."""
    counts = np.bincount(training.symbols, minlength=size) + 1.0
    frequencies: Floats = (counts / counts.sum()).astype(np.float64)
    bigrams = [bigram(training, evaluated, side, frequencies).probability for side in sides]
    return np.stack([frequencies[evaluated.symbols], *bigrams])


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
    return (batch for batch in data.measured_dataloader() if batch.rule is None)


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

    The likely symbol next to c is the most probable one of those that stood there.
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
