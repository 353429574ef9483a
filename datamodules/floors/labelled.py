"""Floors of labels: the frequencies of classes or the mean number, and a linear model over bags of n-grams and, for
pairs of texts, over their overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.optimize
import scipy.sparse
import scipy.special

from datamodules.core.errors import DataError
from datamodules.floors.answers import question_floors
from datamodules.floors.choices import choice_floors
from datamodules.floors.facts import fact_floors
from datamodules.floors.tags import tag_floors
from datamodules.labelled.facts import Facts
from datamodules.labelled.labelled import LabelledData
from datamodules.labelled.mixed import MixedData
from datamodules.labelled.questions import Questions
from lit_transformers.batch import (
    IGNORED,
    LABEL,
    ChoiceLabels,
    ClassLabels,
    ClassSetLabels,
    LabelledBatch,
    Labels,
    NumberLabels,
    WordTagLabels,
    labels_in,
)
from lit_transformers.scores import (
    class_counts,
    exact_sets,
    macro_f1,
    matthews,
    micro_f1,
    moments,
    pearson,
    set_counts,
    spearman,
)

__all__ = ["labelled_floors", "mixed_floors"]

ORDERS = (1, 2, 3)
COLUMNS = 1 << 16
"""The number of columns of a bag, into which n-grams are hashed."""
MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: the multiplicative hash of Knuth, The Art of Computer Programming, 6.4."""
PENALTY = 1e-4
MOST_SYMBOLS = 1 << 22
"""The most symbols of training rows that are read: the first in the order of training."""

Floats = npt.NDArray[np.float64]
Score = Callable[[Floats, Floats], float]
"""Computes a score from the predictions and labels of all examples."""


class _Bags(NamedTuple):
    """The features (examples, columns) and labels (examples, outputs) of examples. A label is a number, or 1 for each
    class of the example and 0 for other classes."""

    features: scipy.sparse.csr_matrix[np.float64]
    labels: Floats


class _Predictor(NamedTuple):
    """The predictors of a kind of labels, and its scores.

    common: the name of the predictor that reads no text. constant: returns its output, given the sums of labels and the
    number of training examples. linear: the name of the linear model. link: returns the sum of losses and its gradient,
    given outputs (examples, outputs) and labels. scores: by the names of metrics.
    """

    common: str
    constant: Callable[[Floats, int], Floats]
    linear: str
    link: Callable[[Floats, Floats], tuple[float, Floats]]
    scores: Mapping[str, Score]


def labelled_floors(data: LabelledData, metric: str, batches: int) -> dict[str, float]:
    """Returns the value of a metric of labels for two predictors: the frequencies of classes or the mean number, and a
    linear model over bags of n-grams (logistic regression, or ridge regression for numbers). Tags, questions, facts and
    choices have other predictors (``tag_floors``, ``question_floors``, ``fact_floors``, ``choice_floors``).

    metric: its name, with the column and a colon before it for columns except ``label``. batches: the number of
    training batches to fit on. Raises DataError for other metrics.
    """
    if isinstance(data.examples, Questions):
        return question_floors(data, metric)
    if isinstance(data.examples, Facts):
        return fact_floors(data, data.examples.config, metric, batches)
    column, _, name = metric.rpartition(":")
    column = column or LABEL
    labels = data.description.label_columns[column]
    if isinstance(labels, ChoiceLabels):
        return choice_floors(data, metric, batches)
    if isinstance(labels, WordTagLabels):
        return tag_floors(data, labels, metric, batches)
    predictor = _predictor(labels)
    if name not in predictor.scores:
        raise DataError(f"no predictor of labels has a value of {name}")
    score = predictor.scores[name]
    batch_symbols = data.config.tokens_per_step
    most = min(batches, max(MOST_SYMBOLS // batch_symbols, 1))
    training = _bags(islice(data.train_dataloader(), most), column, labels)
    evaluation = _bags(data.measured_dataloader(), column, labels)
    constant = predictor.constant(training.labels.sum(axis=0), len(training.labels))
    outputs = {
        predictor.common: np.tile(constant, (len(evaluation.labels), 1)),
        predictor.linear: _linear_model(training, evaluation.features, predictor.link),
    }
    return {name: score(values, evaluation.labels) for name, values in outputs.items()}


def _predictor(labels: Labels) -> _Predictor:
    """Returns the predictors of a kind of labels. Raises DataError for kinds without simple predictors."""
    match labels:
        case ClassLabels():
            return _CLASSES
        case ClassSetLabels():
            return _SETS
        case NumberLabels():
            return _NUMBERS
    raise DataError(f"{labels.kind} have no simple predictor")


def mixed_floors(data: MixedData, metric: str, batches: int) -> dict[str, float]:
    """Returns ``labelled_floors`` of one source for a metric of its task, such as "sst2_accuracy". The predictors are
    fitted on as many batches of this source as are among the first ``batches`` of training. Raises DataError for other
    metrics, such as means over tasks."""
    sources = [name for name in data.config.names if metric.startswith(f"{name}_")]
    if not sources:
        raise DataError(f"no predictor of several sources has a value of {metric}")
    source = max(sources, key=len)
    own_batches = data.batches_of(source, batches)
    return labelled_floors(data.of_source(source), metric.removeprefix(f"{source}_"), own_batches)


def _class_of(values: Floats) -> npt.NDArray[np.int64]:
    return values.argmax(axis=1)


def _matthews(values: Floats, truth: Floats) -> float:
    return float(matthews(class_counts(_class_of(truth), _class_of(values)).sum(axis=0)))


def _macro_f1(values: Floats, truth: Floats) -> float:
    return float(macro_f1(class_counts(_class_of(truth), _class_of(values)).sum(axis=0)))


def _nats_of_classes(values: Floats, truth: Floats) -> float:
    log_probabilities = scipy.special.log_softmax(values, axis=1)
    return float(-log_probabilities[np.arange(len(truth)), _class_of(truth)].mean())


def _softmax(outputs: Floats, truth: Floats) -> tuple[float, Floats]:
    log_probabilities = scipy.special.log_softmax(outputs, axis=1)
    return float(-(truth * log_probabilities).sum()), np.exp(log_probabilities) - truth


def _sigmoid(outputs: Floats, truth: Floats) -> tuple[float, Floats]:
    losses = np.logaddexp(0.0, outputs) - truth * outputs
    return float(losses.sum()), scipy.special.expit(outputs) - truth


def _squared(outputs: Floats, truth: Floats) -> tuple[float, Floats]:
    return float(((outputs - truth) ** 2).sum()) / 2, outputs - truth


def _codes(values: Floats, truth: Floats) -> Floats:
    """Returns 1 for each class of an example, plus 2 for each predicted class."""
    return truth + 2 * (values >= 0)


_CLASSES = _Predictor(
    "frequencies of classes",
    lambda totals, count: np.log((totals + 1.0) / (totals + 1.0).sum()),
    "logistic regression over bags of n-grams",
    _softmax,
    {
        "nats": _nats_of_classes,
        "accuracy": lambda values, truth: float(np.mean(_class_of(values) == _class_of(truth))),
        "matthews": _matthews,
        "macro_f1": _macro_f1,
    },
)
_SETS = _Predictor(
    "frequencies of classes",
    lambda totals, count: np.asarray(scipy.special.logit((totals + 1.0) / (count + 2.0))),
    "logistic regression over bags of n-grams",
    _sigmoid,
    {
        "nats": lambda values, truth: _sigmoid(values, truth)[0] / len(truth),
        "micro_f1": lambda values, truth: float(micro_f1(set_counts(_codes(values, truth)).sum(axis=0))),
        "macro_f1": lambda values, truth: float(macro_f1(set_counts(_codes(values, truth)).sum(axis=0))),
        "exact_match": lambda values, truth: float(exact_sets(_codes(values, truth)).mean()),
    },
)
_NUMBERS = _Predictor(
    "mean of the labels",
    lambda totals, count: totals / count,
    "ridge regression over bags of n-grams",
    _squared,
    {
        "nats": lambda values, truth: _squared(values, truth)[0] / len(truth),
        "mse": lambda values, truth: 2 * _squared(values, truth)[0] / len(truth),
        "pearson": lambda values, truth: float(pearson(moments(truth[:, 0], values[:, 0]).sum(axis=0))),
        "spearman": lambda values, truth: spearman(truth[:, 0], values[:, 0]),
    },
)


def _bags(batches: Iterable[LabelledBatch], column: str, kind: Labels) -> _Bags:
    """Returns the features and labels of all rows with a label. Features are bags of n-grams, separate for each text:
    logarithms of counts, scaled to a sum of squares of 1. For pairs of texts their overlap is added."""
    parts, labels = [], []
    for batch in batches:
        symbols, real = batch.inputs.numpy().astype(np.uint64), batch.padding_mask.numpy()
        segments = None if batch.segments is None else batch.segments.numpy().astype(np.uint64)
        # The n-grams of the second text have different numbers.
        own = symbols if segments is None else symbols + segments * np.uint64(MULTIPLIER >> 1)
        codes = np.zeros_like(symbols)
        rows, columns = [], []
        for order in ORDERS:
            earlier = own[:, : own.shape[1] + 1 - order] + np.uint64(order)
            codes[:, order - 1 :] = codes[:, order - 1 :] * np.uint64(MULTIPLIER) + earlier
            row, place = np.nonzero(real[:, order - 1 :])
            rows.append(row)
            columns.append(_hash(codes[row, place + order - 1]))
        row, place = np.concatenate(rows), np.concatenate(columns)
        counts = scipy.sparse.csr_matrix((np.ones(len(row)), (row, place)), shape=(len(symbols), COLUMNS))
        logarithms = counts.log1p()
        norms = np.sqrt(np.asarray(logarithms.multiply(logarithms).sum(axis=1)).ravel())
        features: Any = scipy.sparse.diags(1 / np.maximum(norms, 1e-9)) @ logarithms
        if segments is not None:
            features = scipy.sparse.hstack([features, scipy.sparse.csr_matrix(_shared(batch))])
        truth, has = _truth(batch, column, kind)
        parts.append(scipy.sparse.csr_matrix(features)[has])
        labels.append(truth[has])
    if not parts:
        raise DataError("the run reads no batch of these data, from which simple predictors could learn")
    return _Bags(scipy.sparse.csr_matrix(scipy.sparse.vstack(parts)), np.concatenate(labels))


def _truth(batch: LabelledBatch, column: str, kind: Labels) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Returns the labels of a batch (rows, outputs), and a mask of the rows with a label."""
    labels = labels_in(batch, column).numpy()
    has = np.asarray(batch.padding_mask.numpy().any(axis=1), np.bool_)
    if isinstance(kind, NumberLabels):
        return labels[:, None].astype(np.float64), has
    has = np.asarray(has & (labels.reshape(len(labels), -1)[:, 0] != IGNORED), np.bool_)
    if isinstance(kind, ClassLabels):
        return (labels[:, None] == np.arange(kind.count)).astype(np.float64), has
    return (labels == 1).astype(np.float64), has


def _shared(batch: LabelledBatch) -> Floats:
    """Returns the overlap of the two texts of each row (rows, 4): intersection over union of their symbols, and of
    their pairs of neighbouring symbols; the share of each text's symbols that occur in the other."""
    assert batch.segments is not None
    shares = []
    for inputs, real, segments in zip(batch.inputs, batch.padding_mask, batch.segments, strict=True):
        texts = inputs[real & (segments == 0)][1:-1].tolist(), inputs[real & (segments == 1)][:-1].tolist()
        one, other = ({*text} for text in texts)
        pairs, other_pairs = ({*pairwise(text)} for text in texts)
        both = len(one & other)
        shares.append(
            [
                both / max(len(one | other), 1),
                len(pairs & other_pairs) / max(len(pairs | other_pairs), 1),
                both / max(len(one), 1),
                both / max(len(other), 1),
            ]
        )
    return np.array(shares, np.float64)


def _hash(codes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Returns the column of each n-gram: the upper bits of its product with a large odd number."""
    return ((codes * np.uint64(MULTIPLIER)) >> np.uint64(64 - COLUMNS.bit_length() + 1)).astype(np.int64)


def _linear_model(
    training: _Bags,
    features: scipy.sparse.csr_matrix[np.float64],
    link: Callable[[Floats, Floats], tuple[float, Floats]],
) -> Floats:
    """Returns the outputs (rows, outputs) of a linear model, fitted by L-BFGS with a penalty on squared weights."""
    count, width = training.features.shape
    inputs = scipy.sparse.csr_matrix(
        scipy.sparse.hstack([training.features, scipy.sparse.csr_matrix(np.ones((count, 1)))])
    )
    transposed = scipy.sparse.csr_matrix(inputs.transpose())
    outputs = training.labels.shape[1]

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights = flat.reshape(width + 1, outputs)
        total, slope = link(np.asarray(inputs @ weights), training.labels)
        gradient = np.asarray(transposed @ slope) / count + PENALTY * weights
        return total / count + PENALTY / 2 * float((weights**2).sum()), gradient.ravel()

    start = np.zeros((width + 1) * outputs)
    fitted = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 100})
    weights = fitted.x.reshape(width + 1, outputs)
    return np.asarray(features @ weights[:-1]) + weights[-1]
