"""Floors of questions on facts: a random fact, a random fact of the last relation, and the fact that answered the
question most often in training."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from datamodules.core.errors import DataError
from datamodules.labelled.facts import HOPS, FactsConfig
from datamodules.labelled.labelled import LabelledData
from lit_transformers.batch import GROUP, IGNORED, LabelledBatch

__all__ = ["fact_floors"]

MOST_ROWS = 50_000
"""The largest number of training rows to read."""


class FactRow(NamedTuple):
    """A row of questions on facts. question, facts: their symbols. answer: number of the fact that answers. group: of
    the question; None if the data have no groups."""

    question: tuple[int, ...]
    facts: list[int]
    answer: int
    group: str | None


def fact_floors(data: LabelledData, config: FactsConfig, metric: str, batches: int) -> dict[str, float]:
    """Returns the floors of a metric by name.

    Exact match and F1, which are equal for answers of one symbol, in percent: a random fact; a random fact of the last
    relation of the question; and, among the facts of the passage, the fact that answered the question in the largest
    share of the training passages that hold it, counted in ``batches`` batches of training. Nats: equal probability for
    all facts and [CLS]. If the metric begins with the name of a group, the floors are those of this group. Raises
    DataError for other metrics.
    """
    group = next((name for name in data.description.groups if metric.startswith(f"{name}_")), None)
    name = metric.removeprefix(f"{group}_")
    count = config.entities * config.relations
    if name == "nats":
        return {"all facts alike": float(np.log(count + 1))}
    if name not in ("exact_match", "f1"):
        raise DataError(f"no predictor of answers has a value of {metric}")
    held, answered = defaultdict[tuple[int, ...], Counter[int]](Counter), Counter[tuple[tuple[int, ...], int]]()
    most = min(batches, max(MOST_ROWS // data.config.batch_size, 1))
    for row in _rows(islice(data.train_dataloader(), most)):
        held[row.question].update(row.facts)
        answered[row.question, row.facts[row.answer]] += 1
    hits = []
    for row in _rows(data.measured_dataloader()):
        if group is None or row.group == group:
            shares = [answered[row.question, fact] / max(held[row.question][fact], 1) for fact in row.facts]
            hits.append((shares[row.answer] == max(shares)) / shares.count(max(shares)))
    return {
        "any fact": 100 / count,
        "a fact of the last relation": 100 / config.entities,
        "the fact that most often answered the question": float(100 * np.mean(hits)),
    }


def _rows(batches: Iterable[LabelledBatch]) -> Iterator[FactRow]:
    """Yields the rows of batches without rows of padding."""
    for batch in batches:
        assert batch.segments is not None
        groups = None if batch.columns is None else batch.columns.get(GROUP)
        for number, (inputs, is_second) in enumerate(zip(batch.inputs, batch.segments == 1, strict=True)):
            start = int(batch.labels[number, 0])
            if start != IGNORED:
                question, group = inputs[~is_second].tolist(), None if groups is None else HOPS[groups[number]]
                yield FactRow(tuple(question), inputs[is_second][:-1].tolist(), start - len(question), group)
