"""Floors of retrieval: chance, and BM25 over the symbols that a question shares with a passage."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from datamodules.core.errors import DataError
from datamodules.pairs.retrieval import RetrievalData

__all__ = ["bm25", "retrieval_floors"]

SATURATION, LENGTH_SHARE = 1.2, 0.75
"""k1 and b of Robertson and Zaragoza 2009, The Probabilistic Relevance Framework, section 3.5."""
CHUNK = 1024
"""The number of questions that are scored with all passages at once, to bound memory."""

Floats = npt.NDArray[np.float64]


def retrieval_floors(data: RetrievalData, metric: str, batches: int) -> dict[str, float]:
    """Returns mrr, hit_1, hit_5 or nats of a random order of the split's passages and, except for nats, of BM25.
    Nothing is fitted on the training split. Raises DataError for other metrics."""
    questions, answers, passages = _texts(data)
    count = len(passages)
    by_chance = {
        "mrr": float((1 / np.arange(1, count + 1)).mean()),
        "hit_1": 1 / count,
        "hit_5": min(5 / count, 1.0),
        "nats": float(np.log(count)),
    }
    if metric not in by_chance:
        raise DataError(f"no predictor of passages has a value of {metric}")
    values = {"chance": by_chance[metric]}
    if metric != "nats":
        ranks = _ranks(questions, answers, passages, data.description.vocabulary.size)
        of_metric: dict[str, npt.NDArray[Any]] = {"mrr": 1 / ranks, "hit_1": ranks <= 1, "hit_5": ranks <= 5}
        values["BM25"] = float(np.mean(of_metric[metric]))
    return values


def bm25(
    questions: list[npt.NDArray[np.int64]], passages: list[npt.NDArray[np.int64]], symbols: int
) -> scipy.sparse.csr_matrix[np.float64]:
    """Returns the BM25 scores (questions, passages): sums over the symbols of each question. ``symbols`` is the size of
    the vocabulary."""
    in_questions, in_passages = _counts(questions, symbols), _counts(passages, symbols)
    having = np.bincount(in_passages.indices, minlength=symbols)
    rarity = np.log1p((len(passages) - having + 0.5) / (having + 0.5))
    lengths = np.asarray(in_passages.sum(axis=1)).ravel()
    penalties = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * lengths / max(lengths.mean(), 1e-9))
    of_rows = np.repeat(penalties, np.diff(in_passages.indptr))
    in_passages.data = rarity[in_passages.indices] * in_passages.data * (SATURATION + 1) / (in_passages.data + of_rows)
    return scipy.sparse.csr_matrix(in_questions @ in_passages.T)


def _texts(
    data: RetrievalData,
) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
    """Returns the symbols of the measured questions, the place of the answer of each, and the symbols of all
    passages."""
    questions, answers, passages = [], [], {}
    for batch in data.measured_dataloader():
        for row, real, number in zip(batch.inputs, batch.padding_mask, batch.passage.tolist(), strict=True):
            if real.any():
                passages[number] = row[real][1:].numpy()
        for row, real, number in zip(batch.source, batch.source_padding_mask, batch.answer.tolist(), strict=True):
            if real.any():
                questions.append(row[real][1:].numpy())
                answers.append(number)
    places = {number: place for place, number in enumerate(passages)}
    return questions, np.array([places[number] for number in answers]), [*passages.values()]


def _ranks(
    questions: list[npt.NDArray[np.int64]],
    answers: npt.NDArray[np.int64],
    passages: list[npt.NDArray[np.int64]],
    symbols: int,
) -> npt.NDArray[np.int64]:
    """Returns the rank of the passage that answers each question; among equal scores it has the last rank."""
    scores, parts = bm25(questions, passages, symbols), []
    for start in range(0, len(questions), CHUNK):
        rows, own = scores[start : start + CHUNK].toarray(), answers[start : start + CHUNK, None]
        parts.append((rows >= np.take_along_axis(rows, own, axis=1)).sum(axis=1))
    return np.concatenate(parts)


def _counts(texts: list[npt.NDArray[np.int64]], symbols: int) -> scipy.sparse.csr_matrix[np.float64]:
    """Returns the counts (texts, symbols) of each symbol in each text."""
    rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    columns = np.concatenate([np.zeros(0, np.int64), *texts])
    return scipy.sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(texts), symbols))
