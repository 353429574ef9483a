"""What a metric is made of: sums per document or example, and the number that their totals give.

So every metric is a smooth function of totals over documents, and all of them get intervals by the same resampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from reports.measurements import Array, Documents
from reports.outputs import BLEU_COLUMNS, bleu

__all__ = ["Measure", "measure_of"]

Sums = Callable[[Documents], Array]


@dataclass(frozen=True)
class Measure:
    """``sums`` of each document are [documents, k], the last of them its size; ``value`` of totals [..., k] is [...].

    Documents are weighed by their size: bytes, tokens, or one for each example. ``needs`` are columns beyond nats,
    tokens and bytes.
    """

    sums: Sums
    value: Callable[[Array], Array]
    needs: tuple[str, ...] = ()


def measure_of(metric: str) -> Measure | None:
    """The measure behind a metric's name, such as ``val/bpb`` or ``val/accuracy@20``; None where there is none.

    What follows ``@`` is a length: only examples of that length count.
    """
    name, _, length = metric.rpartition("/")[2].partition("@")
    found = _MEASURES.get(name)
    if found is None or not length:
        return found
    if not length.isdigit():
        return None
    return Measure(_of_length(found.sums, float(length)), found.value, (*found.needs, "length"))


def _of_length(sums: Sums, length: float) -> Sums:
    def selected(documents: Documents) -> Array:
        found = sums(documents)
        return found[documents.others["length"] == length]

    return selected


def _rate(top: Callable[[Documents], Array], size: Callable[[Documents], Array]) -> Sums:
    return lambda documents: np.column_stack([top(documents), size(documents)])


def _ratio(totals: Array) -> Array:
    """Not a number where the totals hold nothing that is measured."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = totals[..., 0] / totals[..., 1]
    return found


def _nats(documents: Documents) -> Array:
    return documents.nats


def _tokens(documents: Documents) -> Array:
    return documents.tokens


def _ones(documents: Documents) -> Array:
    return np.ones(len(documents.names))


def _mean_of(column: str) -> Measure:
    return Measure(_rate(lambda documents: documents.others[column], _ones), _ratio, (column,))


_MEASURES: Mapping[str, Measure] = {
    "bpb": Measure(_rate(lambda documents: documents.nats / math.log(2), lambda documents: documents.bytes), _ratio),
    "nats": Measure(_rate(_nats, _tokens), _ratio),
    "perplexity": Measure(_rate(_nats, _tokens), lambda totals: np.exp(_ratio(totals))),
    "accuracy": Measure(_rate(lambda documents: documents.others["correct"], _tokens), _ratio, ("correct",)),
    "sequence_accuracy": Measure(
        _rate(lambda documents: (documents.others["correct"] == documents.tokens).astype(np.float64), _ones),
        _ratio,
        ("correct",),
    ),
    "mse": Measure(_rate(lambda documents: documents.others["squared_error"], _tokens), _ratio, ("squared_error",)),
    "bleu": Measure(
        lambda documents: np.column_stack([documents.others[name] for name in BLEU_COLUMNS]), bleu, BLEU_COLUMNS
    ),
    **{name: _mean_of(name) for name in ("rouge1", "rouge2", "rougeL")},
}
