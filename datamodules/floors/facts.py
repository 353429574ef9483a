"""Floors of questions on facts: any fact, any of the relation that is sought, and the fact that answered the question
most often in training."""

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
"""The most rows of training that are read."""


class FactRow(NamedTuple):
    """The symbols of a question and of the facts of its passage, the number of the fact that answers, and the group of
    the question; None where there are no groups."""

    question: tuple[int, ...]
    facts: list[int]
    answer: int
    group: str | None


def fact_floors(data: LabelledData, config: FactsConfig, metric: str, batches: int) -> dict[str, float]:
    """Returns exact match or F1, which is the same of single symbols, of who takes any fact, of who takes any fact of
    the last relation of the question, and of who takes the fact of the passage that answered the question in the
    largest share of the passages of training that hold it. Or the nats of all facts and [CLS] alike. Of one group where
    the metric begins with its name. Raises DataError for other metrics.

    The share is counted in this many batches of training.
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
    for row in _rows(data.val_dataloader()):
        if group is None or row.group == group:
            shares = [answered[row.question, fact] / max(held[row.question][fact], 1) for fact in row.facts]
            hits.append((shares[row.answer] == max(shares)) / shares.count(max(shares)))
    return {
        "any fact": 100 / count,
        "a fact of the last relation": 100 / config.entities,
        "the fact that most often answered the question": float(100 * np.mean(hits)),
    }


def _rows(batches: Iterable[LabelledBatch]) -> Iterator[FactRow]:
    """Yields the rows of batches; padding has none."""
    for batch in batches:
        assert batch.segments is not None
        groups = None if batch.columns is None else batch.columns.get(GROUP)
        for number, (inputs, is_second) in enumerate(zip(batch.inputs, batch.segments == 1, strict=True)):
            start = int(batch.labels[number, 0])
            if start != IGNORED:
                question, group = inputs[~is_second].tolist(), None if groups is None else HOPS[groups[number]]
                yield FactRow(tuple(question), inputs[is_second][:-1].tolist(), start - len(question), group)
