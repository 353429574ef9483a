"""Floors of language modelling: n-gram models of the text that a run trains on, and of the visible part of the text
that it predicts."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import Document, DocumentStream
from datamodules.core.errors import DataError
from datamodules.core.reading import beginning
from datamodules.core.tokenizers import Symbols, Tokenizer, encode_document
from datamodules.floors.cache import (
    CacheText,
    VisibleContext,
    cache_counts,
    fitted_weights,
    mixed_probabilities,
)
from datamodules.floors.ngrams import NgramText, ngram_nats
from datamodules.text.lanes import Lanes
from datamodules.text.language import LanguageData
from lit_transformers.batch import IGNORED, TextBatch
from lit_transformers.config import Plain

__all__ = ["language_cache_floors", "language_floors", "seen_text"]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LONGEST = 6
"""Number of symbols of the longest context."""
MOST_SYMBOLS = 1 << 24
"""The most symbols of training that are counted; of more, the first ones of the order of training."""
HELD_OUT = 0.1
"""The share of training that weights of a cache are fitted on: its last documents."""
MOST_HELD_OUT = 1 << 18
"""The most symbols of these."""


class ReadDocument(NamedTuple):
    """A document with its ordinal in its split, and its symbols."""

    ordinal: int
    document: Document
    symbols: Symbols


def language_floors(data: LanguageData, metric: str, batches: int) -> dict[str, float]:
    """Returns nats or perplexity per symbol, or bits per byte, of n-gram models with contexts of 1 to 6 symbols.

    They count the documents that ``batches`` batches of training read, each once, and are measured on the documents of
    the evaluation. Raises DataError for other metrics, and for bytes where symbols have no known ones.
    """
    _require_value(data, metric)
    evaluated, unit = _evaluated(data), data.vocabulary.unit
    text = NgramText.of(_symbols(_training(data, batches)), _symbols(evaluated), _size(data), LONGEST)
    results = {
        f"n-gram model, {order} {unit}{'s' if order > 1 else ''} of context": _value(data, metric, nats, evaluated)
        for order, nats in enumerate(ngram_nats(text))
    }
    return {name: value for order, (name, value) in enumerate(results.items()) if order > 0}


def language_cache_floors(
    data: LanguageData, metric: str, batches: int, context: VisibleContext | None
) -> dict[str, float]:
    """Returns the same values for n-gram models that are mixed with n-grams of the symbols that a network sees where it
    predicts a symbol, in the rows of the evaluation; and for a copy of the symbol at the first lag, where the source
    has lags and some row shows the second one too. A network that sees the first lag alone can know no more than the
    copy, which is then no floor.

    context: the symbols that it sees; None: the document up to there. Weights are fitted on the last documents of
    training, a tenth of their symbols, with n-gram models of the others; then the models count all. No measured
    document is among these. Without documents that can be left out there is no such model. Raises DataError as
    ``language_floors`` does.
    """
    _require_value(data, metric)
    training, evaluated, size = _training(data, batches), _evaluated(data), _size(data)
    text, order = seen_text(data, [read.document for read in evaluated], context)
    measured = {read.ordinal for read in evaluated} if data.measured_split == "train" else frozenset[int]()
    counted, held_out = _parted(training, data.tokenizer, measured)
    extent = f"up to {context.most(_row_length(data))} {data.vocabulary.unit}s" if context else "the whole document"
    if context and context.most(_row_length(data)) is None:
        extent = f"all {data.vocabulary.unit}s before"
    results = {}
    if counted and held_out:
        fitted, fitted_order = seen_text(data, [read.document for read in held_out], context)
        static = _static(counted, held_out, size, fitted_order)
        weights = fitted_weights(static, [*cache_counts(fitted)])
        static, probability = _static(training, evaluated, size, order), np.empty(len(order))
        for part, seen in text.parts():
            probability[part] = mixed_probabilities(static[:, part], cache_counts(seen), weights)
        results[f"n-gram model with a cache of {extent}"] = _value(data, metric, -np.log(probability), evaluated)
    copy = data.config.source.first_lag()
    if copy is not None and (text.last - text.first + 1 >= copy.further).any() and _reads_letters(data):
        lagged = copied_probabilities(text, copy.distance, copy.probability, copy.symbols)
        name = f"copy of the {data.vocabulary.unit} {copy.distance} back"
        results[name] = _value(data, metric, -np.log(lagged), evaluated)
    return results


def copied_probabilities(text: CacheText, distance: int, probability: float, symbols: int) -> Floats:
    """Returns the probabilities of targets for who knows that each repeats the symbol at a distance with a probability,
    and that all others of ``symbols`` are equally likely; where it is not seen, all are."""
    places = text.last + 1 - distance
    known = np.where(places >= text.first, text.symbols[np.maximum(places, 0)], text.boundary)
    repeated = np.where(known == text.targets, probability, (1 - probability) / (symbols - 1))
    return np.where(known == text.boundary, 1 / symbols, repeated)


def seen_text(
    data: LanguageData, documents: Sequence[Document], context: VisibleContext | None
) -> tuple[CacheText, Integers]:
    """Returns the symbols that a network reads of documents in an evaluation and those that it sees, lane after lane,
    and the order that sorts the predictions by documents. context: None for the document up to each prediction."""
    lanes = Lanes(_Listed(documents), data.tokenizer, data.evaluation_shape)
    read = [_ReadLane(context or VisibleContext()) for _ in lanes.lanes]
    while batches := [*lanes.chunk()]:
        for batch in batches:
            for row, lane in enumerate(read):
                lane.add(batch, row)
    read = [lane for lane in read if lane.length]
    starts = np.cumsum([0, *(lane.length for lane in read)])
    symbols, document, targets = (
        np.concatenate([np.concatenate(part) for part in parts]).astype(np.int64)
        for parts in zip(*((lane.symbols, lane.documents, lane.targets) for lane in read), strict=True)
    )
    first = np.concatenate([start + np.concatenate(lane.first) for start, lane in zip(starts, read, strict=False)])
    last = np.arange(len(symbols))  # each symbol that is read is the last one before a prediction
    begins = np.append(True, document[1:] != document[:-1])
    begins[starts[:-1]] = True
    symbols[begins] = _size(data)
    if context is None:
        first = np.maximum.accumulate(np.where(begins, last, 0))
    return CacheText(symbols, _size(data), last, first, targets), np.argsort(document, kind="stable")


class _ReadLane:
    """The symbols that one lane reads, each with the number of its document, the target after it, and the first place
    in the lane that is visible there.

    length: number of symbols. start: the place from which on the lane's state has read.
    """

    def __init__(self, context: VisibleContext) -> None:
        self.context, self.length, self.start = context, 0, 0
        self.symbols: list[Integers] = []
        self.documents: list[Integers] = []
        self.targets: list[Integers] = []
        self.first: list[Integers] = []

    def add(self, batch: TextBatch, row: int) -> None:
        """Adds a row of a batch. Where rows overlap, its first symbols were in the last one too, without targets."""
        end = int(batch.padding_mask[row].sum())
        targets = batch.targets[row, :end].numpy()
        again = int((targets == IGNORED).sum())
        if end == again:
            return
        begin = self.length - again
        if batch.fresh[row]:
            self.start = begin
        memory, window = self.context
        first = np.full(end - again, self.start if memory is None else max(begin - memory, self.start))
        if window is not None:
            first = np.maximum(first, np.arange(self.length, self.length + end - again) - window + 1)
        self.first.append(first)
        self.symbols.append(batch.inputs[row, again:end].numpy())
        self.documents.append(batch.document[row, again:end].numpy())
        self.targets.append(targets[again:])
        self.length += end - again


class _Listed(DocumentStream):
    """One pass over the documents of a list; its state is the number of the next one."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents, self.next = documents, 0

    def state(self) -> Plain:
        return self.next

    def go_to(self, state: Plain) -> None:
        self.next = int(state)

    def take(self) -> tuple[int, Document] | None:
        if self.next == len(self.documents):
            return None
        self.next += 1
        return self.next - 1, self.documents[self.next - 1]


def _parted(
    training: Sequence[ReadDocument], tokenizer: Tokenizer, measured: Set[int]
) -> tuple[list[ReadDocument], list[ReadDocument]]:
    """Returns the documents of training that n-gram models count while weights are fitted, and those that weights are
    fitted on. measured: ordinals of documents that are measured, which are never among these. The only document is
    divided, and of a long one the beginning suffices."""
    if len(training) == 1 and training[0].ordinal not in measured:
        document = training[0].document
        start = beginning(document.text, int((1 - HELD_OUT) * len(document.text)))
        rest = document.text[len(start) :]
        training = [
            ReadDocument(0, part, encode_document(tokenizer, part))
            for text in (start, rest)
            for part in [document._replace(text=text)]
        ]
    wanted = min(HELD_OUT * sum(len(read.symbols) for read in training), MOST_HELD_OUT)
    counted, held_out = [*training[:1]], list[ReadDocument]()
    for read in reversed(training[1:]):
        if wanted <= 0 or read.ordinal in measured:
            counted.append(read)
            continue
        if len(read.symbols) > MOST_HELD_OUT:
            share = MOST_HELD_OUT / len(read.symbols)
            part = read.document._replace(text=beginning(read.document.text, int(share * len(read.document.text))))
            read = ReadDocument(read.ordinal, part, encode_document(tokenizer, part))
        held_out.append(read)
        wanted -= len(read.symbols)
    return counted, [read for read in held_out if len(read.symbols)]


def _static(training: Sequence[ReadDocument], evaluated: Sequence[ReadDocument], size: int, order: Integers) -> Floats:
    """Returns the probabilities (s, p) of n-gram models with contexts of 0, 1, ... symbols. order: that sorts the
    predictions by documents."""
    text = NgramText.of(_symbols(training), _symbols(evaluated), size, LONGEST)
    static = np.empty((LONGEST + 1, len(order)))
    for length, nats in enumerate(ngram_nats(text)):
        static[length, order] = np.exp(-nats)
    return static


def _training(data: LanguageData, batches: int) -> list[ReadDocument]:
    """Returns the documents that ``batches`` batches of training read, each once."""
    tokens = min(batches * data.config.tokens_per_step, MOST_SYMBOLS)
    return _first(data.documents("train").training(data.config.seed), data.tokenizer, tokens)


def _evaluated(data: LanguageData) -> list[ReadDocument]:
    """Returns the documents that are measured."""
    stream = data.documents(data.measured_split).evaluation(data.config.evaluation.limit)
    return _first(stream, data.tokenizer, math.inf)


def _first(stream: DocumentStream, tokenizer: Tokenizer, tokens: float) -> list[ReadDocument]:
    """Returns the first documents of a stream, as many as reach ``tokens`` symbols, each document once."""
    documents: list[ReadDocument] = []
    ordinals: set[int] = set()
    while tokens > 0 and (item := stream.take()) is not None and item[0] not in ordinals:
        ordinals.add(item[0])
        documents.append(ReadDocument(*item, encode_document(tokenizer, item[1])))
        tokens -= len(documents[-1].symbols)
    return documents


def _symbols(documents: Sequence[ReadDocument]) -> list[Symbols]:
    return [read.symbols for read in documents]


def _row_length(data: LanguageData) -> int:
    """Returns the number of positions of a row of the evaluation."""
    return data.evaluation_shape.segment_length


def _size(data: LanguageData) -> int:
    """Returns the number of symbols of a text. A boundary that comes last is none of them; a pretrained tokenizer has
    its own among the others."""
    return data.vocabulary.size - (data.vocabulary.boundary == data.vocabulary.size - 1)


def _reads_letters(data: LanguageData) -> bool:
    """Returns whether each letter of an alphabet is one symbol."""
    return data.vocabulary.unit in ("byte", "character")


def _require_value(data: LanguageData, metric: str) -> None:
    vocabulary = data.vocabulary
    if metric not in ("nats", "perplexity", "bpb") or (metric == "bpb" and vocabulary.byte_lengths is None):
        raise DataError(f"no n-gram model of {vocabulary.unit}s has a value of {metric}")


def _value(data: LanguageData, metric: str, nats: Floats, evaluated: Sequence[ReadDocument]) -> float:
    """Returns the metric of predictions of all symbols of documents. nats: their -log p."""
    mean = float(nats.mean())
    if metric != "bpb":
        return mean if metric == "nats" else math.exp(mean)
    byte_lengths = np.asarray(data.vocabulary.byte_lengths)[np.concatenate(_symbols(evaluated))]
    return float(nats.sum()) / math.log(2) / max(int(byte_lengths.sum()), 1)
