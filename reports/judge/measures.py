"""Metrics as functions of sums per document or example: each metric is computed from the totals of such sums.

Every metric is thus a smooth function of totals over documents, and all get intervals by the same resampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lit_transformers.scores import (
    ENTITY_COLUMNS,
    ENTITY_SCORES,
    class_columns,
    class_counts,
    entity_counts,
    entity_ratio,
    exact_sets,
    macro_f1,
    matthews,
    micro_f1,
    moments,
    pearson,
    set_counts,
    spearman_values,
)
from reports.read.measurements import Array, DocumentLosses, as_documents
from reports.read.outputs import BLEU_COLUMNS, bleu

__all__ = ["DocumentMeasure", "measure_of"]

Sums = Callable[[DocumentLosses], Array]


@dataclass(frozen=True)
class DocumentMeasure:
    """A metric as a function of totals over documents.

    ``sums`` returns the sums of each document [documents, k], the last of which is its size; NaN for a document that
    the metric does not measure. ``value`` maps totals [..., k] to [...]. Documents are weighted by their size: bytes,
    tokens, or one for each example. ``needs`` names the columns that are required beyond nats, tokens and bytes.
    """

    sums: Sums
    value: Callable[[Array], Array]
    needs: tuple[str, ...] = ()


def measure_of(metric: str, columns: Collection[str] = ()) -> DocumentMeasure | None:
    """Returns the measure of a metric such as ``val/bpb`` or ``val/accuracy@20``, or None where there is none.

    The number after ``@`` is a length: only examples of that length count. columns: the names of the columns of
    documents; a metric that is among them is its mean over the documents. A metric of a head, such as
    ``val/sst2_accuracy``, is computed from the columns of the head, of the documents that it has targets in; one of a
    group, such as ``val/two_hops_f1``, from the documents of which the column of the group is not 0.
    """
    name, _, length = metric.rpartition("/")[2].partition("@")
    measure = _named(name, columns)
    if measure is None or not length:
        return measure
    if not length.isdigit():
        return None
    return DocumentMeasure(_of_length(measure.sums, float(length)), measure.value, (*measure.needs, "length"))


def _named(name: str, columns: Collection[str]) -> DocumentMeasure | None:
    known = {**_MEASURES, **(_OF_SETS if class_columns(1)[0] in columns else {})}
    ends = [end for end in (*_MEASURES, *_OF_SETS) if name.endswith(f"_{end}")]
    head = name.removesuffix(max(ends, key=len)) if ends and name not in known else ""
    own = {column.removeprefix(head) for column in columns if column.startswith(head)}
    if not head or not {"nats", "tokens"} <= own:
        group = next((column for column in columns if name.startswith(f"{column}_")), "")
        if name in columns or name in known or not group:
            return _mean_of(name) if name in columns else known.get(name)
        measure = _named(name.removeprefix(f"{group}_"), [column for column in columns if column != group])
        return measure and DocumentMeasure(_of_group(measure.sums, group), measure.value, (group, *measure.needs))
    of_head = name.removeprefix(head)
    measure = _named(of_head, own - {of_head})
    is_computed = measure is not None and own.issuperset(measure.needs)
    if of_head in own and not is_computed:
        measure = _mean_of(of_head)
    if measure is None:
        return None
    return DocumentMeasure(_of_head(measure.sums, head), measure.value, tuple(f"{head}{one}" for one in measure.needs))


def _of_head(sums: Sums, head: str) -> Sums:
    """Returns the sums of the columns whose names begin with that of a head, of documents that it has a target in."""

    def selected(documents: DocumentLosses) -> Array:
        own = {name.removeprefix(head): column for name, column in documents.others.items() if name.startswith(head)}
        there = own["tokens"] > 0
        columns = {name: column[there] for name, column in own.items()}
        names = tuple(name for name, is_there in zip(documents.names, there, strict=True) if is_there)
        return _spread(sums(as_documents(names, {"bytes": np.zeros(len(names)), **columns})), there)

    return selected


def _of_group(sums: Sums, group: str) -> Sums:
    """Returns the sums of the documents of a group."""

    def selected(documents: DocumentLosses) -> Array:
        own = documents.others[group] > 0
        columns = {name: getattr(documents, name)[own] for name in ("nats", "tokens", "bytes")}
        columns |= {name: column[own] for name, column in documents.others.items()}
        names = tuple(name for name, is_there in zip(documents.names, own, strict=True) if is_there)
        return _spread(sums(as_documents(names, columns)), own)

    return selected


def _of_length(sums: Sums, length: float) -> Sums:
    def selected(documents: DocumentLosses) -> Array:
        there = documents.others["length"] == length
        return _spread(sums(documents)[there], there)

    return selected


def _spread(rows: Array, there: NDArray[np.bool_]) -> Array:
    """Returns the rows [n, k] of some documents at the places of these among all documents, and NaN at the others.
    there: which documents these are [documents]."""
    spread = np.full((len(there), rows.shape[1]), np.nan)
    spread[there] = rows
    return spread


def _rate(top: Callable[[DocumentLosses], Array], size: Callable[[DocumentLosses], Array]) -> Sums:
    return lambda documents: np.column_stack([top(documents), size(documents)])


def _ratio(totals: Array) -> Array:
    """Returns the first total divided by the second [...]: NaN where both are zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: Array = totals[..., 0] / totals[..., 1]
    return ratio


def _nats(documents: DocumentLosses) -> Array:
    return documents.nats


def _tokens(documents: DocumentLosses) -> Array:
    return documents.tokens


def _ones(documents: DocumentLosses) -> Array:
    return np.ones(len(documents.names))


def _entities(name: str) -> DocumentMeasure:
    return DocumentMeasure(
        lambda documents: entity_counts(name, documents.others), partial(entity_ratio, name), ENTITY_COLUMNS
    )


def _mean_of(column: str) -> DocumentMeasure:
    return DocumentMeasure(_rate(lambda documents: documents.others[column], _ones), _ratio, (column,))


def _sets(documents: DocumentLosses) -> Array:
    """Returns the columns of the classes of each document [documents, classes]."""
    names = class_columns(len(documents.others))
    return np.column_stack([documents.others[name] for name in names if name in documents.others])


_OF_SETS: Mapping[str, DocumentMeasure] = {
    "micro_f1": DocumentMeasure(lambda documents: set_counts(_sets(documents)), micro_f1),
    "macro_f1": DocumentMeasure(lambda documents: set_counts(_sets(documents)), macro_f1),
    "exact_match": DocumentMeasure(
        _rate(lambda documents: exact_sets(_sets(documents)).astype(np.float64), _ones), _ratio
    ),
}
"""The measures of documents that have any number of classes."""
_MEASURES: Mapping[str, DocumentMeasure] = {
    "bpb": DocumentMeasure(
        _rate(lambda documents: documents.nats / math.log(2), lambda documents: documents.bytes), _ratio
    ),
    "nats": DocumentMeasure(_rate(_nats, _tokens), _ratio),
    "perplexity": DocumentMeasure(_rate(_nats, _tokens), lambda totals: np.exp(_ratio(totals))),
    "accuracy": DocumentMeasure(_rate(lambda documents: documents.others["correct"], _tokens), _ratio, ("correct",)),
    "sequence_accuracy": DocumentMeasure(
        _rate(lambda documents: (documents.others["correct"] == documents.tokens).astype(np.float64), _ones),
        _ratio,
        ("correct",),
    ),
    "matthews": DocumentMeasure(
        lambda documents: class_counts(documents.others["label"], documents.others["predicted"]),
        matthews,
        ("label", "predicted"),
    ),
    "macro_f1": DocumentMeasure(
        lambda documents: class_counts(documents.others["label"], documents.others["predicted"]),
        macro_f1,
        ("label", "predicted"),
    ),
    "pearson": DocumentMeasure(
        lambda documents: moments(documents.others["number"], documents.others["predicted"]),
        pearson,
        ("number", "predicted"),
    ),
    "spearman": DocumentMeasure(
        _rate(lambda documents: spearman_values(documents.others["number"], documents.others["predicted"]), _ones),
        _ratio,
        ("number", "predicted"),
    ),
    "mse": DocumentMeasure(
        _rate(lambda documents: documents.others["squared_error"], _tokens), _ratio, ("squared_error",)
    ),
    "bleu": DocumentMeasure(
        lambda documents: np.column_stack([documents.others[name] for name in BLEU_COLUMNS]), bleu, BLEU_COLUMNS
    ),
    **{name: _entities(name) for name in ENTITY_SCORES},
    **{name: _mean_of(name) for name in ("rouge1", "rouge2", "rougeL")},
}
