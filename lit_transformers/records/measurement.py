"""The data that the metrics of a run were measured on, and their units and goals, by which two runs are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from lit_transformers.records.measure import Goal, Measure

__all__ = ["PREFIXES", "SPLIT", "Measurement", "named_on", "split_of"]

SPLIT = "data.evaluation.split"
"""The field of a run that names the split which it measures at its end."""
PREFIXES: Mapping[str, str] = {"train": "train", "validation": "val", "test": "test"}
"""The first word of a metric in a record, by the split that it was measured on."""


def split_of(metric: str) -> str | None:
    """Returns the split that the first word of a metric names: validation for ``val/bpb``; None for a metric of no
    split."""
    first = metric.partition("/")[0]
    return next((split for split, prefix in PREFIXES.items() if prefix == first), None)


def named_on(metric: str, split: str) -> str:
    """Returns the name that a metric has where it is measured on another split: ``test/bpb`` for ``val/bpb``. A metric
    of no split, such as ``measured/seconds``, has one name."""
    _, slash, name = metric.partition("/")
    return f"{PREFIXES[split]}/{name}" if slash and split_of(metric) else metric


@dataclass(frozen=True)
class Measurement:
    """The split that was measured; a fingerprint of its ``documents`` or examples, equal for all tokenizers, and the
    number of ``examples``; None where these are not known.

    units: by the name of each metric without its split, the unit that it is a mean over: "symbol", "byte", "example"
    and others; empty where nothing is known of the metrics. goals: whether less or more of each is better; empty in
    records from before they held it. definitions: the definition of a unit in this run, where that follows from its
    data: a symbol is "byte" or "word" and a fingerprint of its tokenizer.
    """

    split: str
    documents: str | None = None
    examples: int | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    definitions: Mapping[str, str] = field(default_factory=dict)
    goals: Mapping[str, Goal] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        split: str,
        documents: str | None,
        examples: int | None,
        measures: Mapping[str, Measure],
        definitions: Mapping[str, str] | None = None,
    ) -> Self:
        """Returns a measurement by the measures of its metrics."""
        units = {name: measure.unit for name, measure in measures.items()}
        goals = {name: measure.goal for name, measure in measures.items()}
        return cls(split, documents, examples, units, definitions or {}, goals)
