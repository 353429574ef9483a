"""Floors of labels: the most frequent class or the mean number, and a linear model over bags of n-grams."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.optimize
import scipy.sparse
import scipy.special

from datamodules.core.errors import DataError
from datamodules.labelled.labelled import LabelledData
from datamodules.labelled.mixed import MixedData
from lit_transformers.batch import ClassLabels, LabelledBatch, NumberLabels
from lit_transformers.scores import confusion, matthews

__all__ = ["labelled_floors", "mixed_floors"]

ORDERS = (1, 2, 3)
COLUMNS = 1 << 16
"""Number of columns of a bag, into which n-grams are hashed."""
MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: the multiplicative hash of Knuth, The Art of Computer Programming, 6.4."""
PENALTY = 1e-4
MOST_SYMBOLS = 1 << 22
"""The most symbols of training rows that are read; of more, the first ones of the order of training."""

Floats = npt.NDArray[np.float64]


class _Bags(NamedTuple):
    """A row of features and a label of every example."""

    features: scipy.sparse.csr_matrix[np.float64]
    labels: Floats


def labelled_floors(data: LabelledData, metric: str, batches: int) -> dict[str, float]:
    """Returns accuracy or nats of classes, or Matthews correlation of two, by the most frequent class and by logistic
    regression over bags of n-grams; or mse or nats (half of it) of numbers, by the mean of training.

    They are fitted on so many batches of training. Raises DataError for other metrics.
    """
    labels = data.description.labels
    if not isinstance(labels, ClassLabels | NumberLabels):
        raise DataError(f"no simple predictor of {labels.kind} is known")
    scores = ("accuracy", *["matthews"] * (labels.count == 2)) if isinstance(labels, ClassLabels) else ("mse",)
    if metric not in ("nats", *scores):
        raise DataError(f"no predictor of labels has a value of {metric}")
    batch_symbols = data.config.tokens_per_step
    training = _bags(islice(data.train_dataloader(), min(batches, max(MOST_SYMBOLS // batch_symbols, 1))))
    evaluation = _bags(data.val_dataloader())
    if not isinstance(labels, ClassLabels):
        squared_error = float(np.mean((evaluation.labels - training.labels.mean()) ** 2))
        return {"mean of the labels": squared_error / (2 if metric == "nats" else 1)}
    frequencies = np.bincount(training.labels.astype(np.int64), minlength=labels.count) + 1.0
    predictions = {
        "frequencies of classes": np.tile(np.log(frequencies / frequencies.sum()), (len(evaluation.labels), 1)),
        "logistic regression over bags of n-grams": _logistic_regression(training, evaluation.features, labels.count),
    }
    truth = evaluation.labels.astype(np.int64)
    if metric == "matthews":
        return {name: _matthews(values.argmax(axis=1), truth) for name, values in predictions.items()}
    if metric == "accuracy":
        return {name: float(np.mean(values.argmax(axis=1) == truth)) for name, values in predictions.items()}
    return {name: float(-values[np.arange(len(truth)), truth].mean()) for name, values in predictions.items()}


def mixed_floors(data: MixedData, metric: str, batches: int) -> dict[str, float]:
    """Returns ``labelled_floors`` of one source for a metric of its task, such as "sst2_accuracy". They are fitted on n
    batches of this source alone. Raises DataError for other metrics, such as means over tasks."""
    sources = [name for name in data.config.names if metric.startswith(f"{name}_")]
    if not sources:
        raise DataError(f"no predictor of several sources has a value of {metric}")
    source = max(sources, key=len)
    return labelled_floors(data.of_source(source), metric.removeprefix(f"{source}_"), batches)


def _matthews(predicted: npt.NDArray[np.int64], truth: npt.NDArray[np.int64]) -> float:
    return float(matthews(confusion(predicted == truth, truth).sum(axis=0)))


def _bags(batches: Iterable[LabelledBatch]) -> _Bags:
    """Returns the bags of n-grams of all rows: logarithms of counts, scaled to a sum of squares of 1."""
    parts, labels = [], []
    for batch in batches:
        symbols, real = batch.inputs.numpy().astype(np.uint64), batch.padding_mask.numpy()
        codes = np.zeros_like(symbols)
        rows, columns = [], []
        for order in ORDERS:
            earlier = symbols[:, : symbols.shape[1] + 1 - order] + np.uint64(order)
            codes[:, order - 1 :] = codes[:, order - 1 :] * np.uint64(MULTIPLIER) + earlier
            row, place = np.nonzero(real[:, order - 1 :])
            rows.append(row)
            columns.append(_hash(codes[row, place + order - 1]))
        row, column = np.concatenate(rows), np.concatenate(columns)
        counts = scipy.sparse.csr_matrix((np.ones(len(row)), (row, column)), shape=(len(symbols), COLUMNS))
        logarithms = counts.log1p()
        norms = np.sqrt(np.asarray(logarithms.multiply(logarithms).sum(axis=1)).ravel())
        parts.append(scipy.sparse.diags(1 / np.maximum(norms, 1e-9)) @ logarithms)
        labels.append(batch.labels.numpy())
    return _Bags(scipy.sparse.csr_matrix(scipy.sparse.vstack(parts)), np.concatenate(labels).astype(np.float64))


def _hash(codes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Returns the column of each n-gram: the upper bits of its product with a large odd number."""
    return ((codes * np.uint64(MULTIPLIER)) >> np.uint64(64 - COLUMNS.bit_length() + 1)).astype(np.int64)


def _logistic_regression(training: _Bags, features: scipy.sparse.csr_matrix[np.float64], classes: int) -> Floats:
    """Returns log probabilities of the classes [rows, classes] by multinomial logistic regression.

    It is fitted by L-BFGS with a penalty on squared weights.
    """
    count, width = training.features.shape
    inputs = scipy.sparse.csr_matrix(
        scipy.sparse.hstack([training.features, scipy.sparse.csr_matrix(np.ones((count, 1)))])
    )
    transposed = scipy.sparse.csr_matrix(inputs.transpose())
    truth = np.zeros((count, classes))
    truth[np.arange(count), training.labels.astype(np.int64)] = 1

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights = flat.reshape(width + 1, classes)
        log_probabilities = scipy.special.log_softmax(np.asarray(inputs @ weights), axis=1)
        gradient = np.asarray(transposed @ (np.exp(log_probabilities) - truth)) / count + PENALTY * weights
        return float(-(truth * log_probabilities).sum() / count + PENALTY / 2 * (weights**2).sum()), gradient.ravel()

    start = np.zeros((width + 1) * classes)
    fitted = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 100})
    weights = fitted.x.reshape(width + 1, classes)
    return np.asarray(scipy.special.log_softmax(np.asarray(features @ weights[:-1]) + weights[-1], axis=1))
