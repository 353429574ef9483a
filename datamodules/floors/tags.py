"""Floors of tags: the most frequent tag, and the most frequent tag of each word."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from datamodules.core.errors import DataError
from datamodules.labelled.labelled import LabelledData
from lit_transformers.batch import IGNORED, LabelledBatch, WordTagLabels
from lit_transformers.entities import EntityRules, entities_of_words
from lit_transformers.scores import ENTITY_COLUMNS, ENTITY_SCORES, entity_score

__all__ = ["tag_floors"]

OVERALL, OF_WORD = "most frequent tag", "most frequent tag of each word"
Pieces = tuple[int, ...]


class TaggedRow(NamedTuple):
    """The words of a row, each as its symbols, without symbols if it was cut from the row; and their labels (words,
    2)."""

    words: list[Pieces]
    labels: npt.NDArray[np.int64]


def tag_floors(data: LabelledData, labels: WordTagLabels, metric: str, batches: int) -> dict[str, float]:
    """Returns nats or accuracy per word, or a score of entities, of two predictors: the frequencies of tags over all
    words, and the frequencies of tags of each word. A new word has the frequencies of all words.

    The frequencies come from ``batches`` batches of training, and are smoothed by one more word with the frequencies of
    all words. A word is known by its pieces, as the network reads them. Words that were cut from a row count as wrong,
    as for a network (``TagLabel``). Raises DataError for other metrics.
    """
    scores = ENTITY_SCORES if labels.scheme else ()
    if metric not in ("nats", "accuracy", *scores):
        raise DataError(f"no predictor of tags has a value of {metric}")
    overall, of_word = Counter[int](), defaultdict[Pieces, Counter[int]](Counter)
    for row in _rows(islice(data.train_dataloader(), batches)):
        for word, (tag, _) in zip(row.words, row.labels.tolist(), strict=True):
            overall[tag] += bool(word)
            of_word[word][tag] += bool(word)
    count = len(labels.names)
    frequencies = np.array([overall[tag] + 1.0 for tag in range(count)])
    frequencies /= frequencies.sum()
    known = {word: _smoothed(tags, frequencies) for word, tags in of_word.items()}
    rows = [*_rows(data.measured_dataloader())]
    rules = EntityRules(labels.names, labels.scheme) if labels.scheme else None
    return {
        name: _value(metric, rows, predictor, frequencies, rules)
        for name, predictor in ((OVERALL, {}), (OF_WORD, known))
    }


def _smoothed(tags: Counter[int], frequencies: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    counts = np.array([tags[tag] for tag in range(len(frequencies))]) + frequencies
    return counts / counts.sum()


def _value(
    metric: str,
    rows: Iterable[TaggedRow],
    known: Mapping[Pieces, npt.NDArray[np.float64]],
    frequencies: npt.NDArray[np.float64],
    rules: EntityRules | None,
) -> float:
    """Returns a metric of predictions by the frequencies of each known word, and of all words for other words."""
    nats, right, words, columns = 0.0, 0, 0, list[npt.NDArray[np.float64]]()
    for row in rows:
        tags, predicted = row.labels[:, 0], np.full(len(row.words), IGNORED)
        for place, (word, tag) in enumerate(zip(row.words, tags.tolist(), strict=True)):
            probabilities = known.get(word, frequencies)
            nats -= math.log(probabilities[tag]) if word else -math.log(len(frequencies))
            predicted[place] = probabilities.argmax() if word else IGNORED
        right, words = right + int((predicted == tags).sum()), words + len(tags)
        if rules is not None:
            pair = (torch.from_numpy(values)[None] for values in (predicted, row.labels))
            columns.append(np.array([int(part.sum()) for part in entities_of_words(rules, *pair)], np.float64))
    if metric in ("nats", "accuracy"):
        return nats / words if metric == "nats" else right / words
    return float(entity_score(metric, dict(zip(ENTITY_COLUMNS, np.array(columns).T, strict=True))))


def _rows(batches: Iterable[LabelledBatch]) -> Iterator[TaggedRow]:
    """Yields the rows of batches, without rows of padding."""
    for batch in batches:
        assert batch.words is not None, "batches with labels of words have words"
        for inputs, numbers, labels in zip(batch.inputs.tolist(), batch.words.tolist(), batch.labels, strict=True):
            words = defaultdict[int, list[int]](list)
            for symbol, number in zip(inputs, numbers, strict=True):
                words[number].append(symbol)
            own = labels[labels[:, 0] != IGNORED].numpy()
            if len(own):
                yield TaggedRow([tuple(words.get(number, ())) for number in range(1, len(own) + 1)], own)
