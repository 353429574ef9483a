"""The data of objectives that read a whole sequence and say one thing of it: a class or a number."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache, partial
from random import Random
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from datamodules.data import Data, DataConfig
from datamodules.documents import Shard, Split
from datamodules.errors import DataError
from datamodules.examples import Example, Examples, ExamplesConfig
from datamodules.listops import ListOpsConfig
from datamodules.loading import Reading
from lit_transformers.batch import DataDescription, LabelledBatch
from lit_transformers.config import Config, NonNegative, Plain, Positive

__all__ = ["LabelledData", "LabelledDataConfig", "LabelledEvaluationConfig"]


class LabelledEvaluationConfig(Config):
    """How a model is evaluated: part of the protocol, so recorded with every number.

    batch_size  None: as in training
    examples    at most so many, chosen once for all runs: the files of a corpus may be in the order of their labels
    split       what validation reads; testing reads test
    """

    batch_size: Positive | None = None
    examples: Positive | None = None
    split: Literal["train", "validation", "test"] = "validation"


class LabelledDataConfig(DataConfig, kind="labelled"):
    """Labelled sequences as batches (LabelledBatch). Every row begins with the boundary of the vocabulary.

    source      what is read; the table EXAMPLES lists the kinds
    batch_size  rows over all ranks together
    window      so many batches are taken together, sorted by length and shuffled again, so that rows of a batch are
                about as long; 1: batches as they come
    padding     longest: to the longest row of the batch. fixed: to the longest that the source can give
    seed        of the order of examples; what they are is the source's
    workers     processes that make batches; 0: none but the one that trains
    """

    batches: ClassVar[type] = LabelledBatch

    source: ExamplesConfig = ListOpsConfig()
    batch_size: Positive = 32
    window: Positive = 16
    padding: Literal["longest", "fixed"] = "longest"
    seed: NonNegative = 0
    workers: NonNegative = 0
    evaluation: LabelledEvaluationConfig = LabelledEvaluationConfig()

    def build(self) -> LabelledData:
        return LabelledData(self)

    @property
    def name(self) -> str:
        return self.source.kind

    @property
    def length(self) -> int:
        return self.source.description.length

    @property
    def tokens_per_step(self) -> int:
        """As if every row were the longest: how long they are is known when they are read."""
        return self.batch_size * self.length

    def protocol(self) -> dict[str, Plain]:
        return self.source.protocol() | {"split": self.evaluation.split, "examples": self.evaluation.examples}

    def trained_alike(self) -> LabelledDataConfig:
        return self.override({"evaluation": LabelledEvaluationConfig()})

    def describe(self, kept: Mapping[str, Plain]) -> DataDescription:
        return self.source.description


class LabelledData(Data):
    """Batches of labelled sequences."""

    def __init__(self, config: LabelledDataConfig) -> None:
        super().__init__()
        self.config = config

    @cached_property
    def examples(self) -> Examples:
        return self.config.source.build()

    @property
    def content(self) -> str:
        return self.examples.fingerprint

    @property
    def description(self) -> DataDescription:
        return self.config.source.description

    def kept(self) -> dict[str, Plain]:
        return {}

    def example_name(self, ordinal: int) -> str:
        return self.examples.name(self.validation_split, ordinal)

    @property
    def validation_split(self) -> Split:
        return self.config.evaluation.split

    def identity(self) -> dict[str, Plain]:
        config = self.config
        return {
            "source": self.content,
            "batch_size": config.batch_size,
            "window": config.window,
            "padding": config.padding,
            "seed": config.seed,
            "workers": config.workers,
        }

    def measures(self) -> Plain:
        return self.config.evaluation.to_dict()

    def training(self) -> Reading:
        config = self.config
        order = partial(Endless, self.examples.count("train"), config.seed)
        return self._reading("train", self._shape(config.batch_size), order)

    def evaluation(self, split: Split) -> Reading:
        config, evaluation = self.config, self.config.evaluation
        order = partial(Once, self.examples.count(split), evaluation.examples)
        return self._reading(split, self._shape(evaluation.batch_size or config.batch_size), order)

    def _shape(self, batch_size: int) -> RowShape:
        vocabulary, length, classes = self.description
        fixed = length if self.config.padding == "fixed" else 0
        return RowShape(self.rows(batch_size), self.config.window, vocabulary.boundary, fixed, classes > 0)

    def _reading(self, split: Split, shape: RowShape, order: partial[Endless] | partial[Once]) -> Reading:
        opened = partial(_open, self.examples, split, shape, order)
        return Reading(opened, partial(batched, [], shape, 0, ""), self.rank(), self.config.workers)


class RowShape(NamedTuple):
    """rows of a batch; batches that are sorted together; what a row begins with; its least length; whether labels are
    classes."""

    rows: int
    window: int
    boundary: int
    least: int
    classes: bool


class Endless:
    """The ordinals of a shard in training: every pass in an order of its own, shared by the shards without rest."""

    def __init__(self, count: int, seed: int, shard: Shard) -> None:
        if count < shard.total:
            raise DataError(
                f"source: {count} examples cannot feed {shard.total} readers (ranks x workers); use fewer or more data"
            )
        self.total, self.seed, self.shard = count, seed, shard
        self.count = len(range(shard.number, count, shard.total))

    def slice(self, start: int, stop: int) -> list[int]:
        """The ordinals from place ``start`` to ``stop``, counted over all passes."""
        return [self._at(*divmod(place, self.count)) for place in range(start, stop)]

    def _at(self, epoch: int, place: int) -> int:
        return int(shuffled(self.total, self.seed, epoch)[self.shard.number + place * self.shard.total])

    def arrange(self, batches: list[list[int]], start: int) -> list[list[int]]:
        """The batches of a window, which are sorted by length, in an order that says nothing of it."""
        chance = Random(f"{self.seed} {start} {self.shard.number}")
        return sorted(batches, key=lambda _: chance.random())


class Once:
    """The ordinals of a shard in evaluation: one pass over all, or over a part that is the same for every run."""

    def __init__(self, count: int, limit: int | None, shard: Shard) -> None:
        chosen = range(count) if limit is None else sorted(shuffled(count, 0, 0)[:limit].tolist())
        self.ordinals = [*chosen[shard.number :: shard.total]]

    def slice(self, start: int, stop: int) -> list[int]:
        """The ordinals from place ``start`` to ``stop``, fewer at the end."""
        return self.ordinals[start:stop]

    def arrange(self, batches: list[list[int]], start: int) -> list[list[int]]:
        """As they are: the order decides nothing."""
        return batches


@lru_cache(maxsize=2)
def shuffled(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of a pass over ``count`` examples."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def batched(chosen: list[tuple[int, Example]], shape: RowShape, stream: int, cursor: str) -> LabelledBatch:
    """A batch of examples with their ordinals; of none, one row of padding, for a rank that has nothing left."""
    count = max(len(chosen), 1)
    longest = max([shape.least, 1, *(len(example.symbols) + 1 for _, example in chosen)])
    inputs, keep = np.zeros((count, longest), np.int64), np.zeros((count, longest), np.bool_)
    marked = np.zeros((count, longest), np.bool_)
    for row, (_, example) in enumerate(chosen):
        length = len(example.symbols) + 1
        inputs[row, 0], inputs[row, 1:length], keep[row, :length] = shape.boundary, example.symbols, True
        marked[row, [place + 1 for place in example.marked or ()]] = True
    labels = [example.label for _, example in chosen] or [0]
    return LabelledBatch(
        torch.from_numpy(inputs),
        torch.from_numpy(keep),
        torch.tensor(labels, dtype=torch.long if shape.classes else torch.float32),
        torch.from_numpy(marked) if any(example.marked is not None for _, example in chosen) else None,
        torch.tensor([ordinal for ordinal, _ in chosen] or [0]),
        stream,
        cursor,
    )


class Windows(Iterator[LabelledBatch]):
    """The batches of one worker: windows of examples, each cut into batches of about equal lengths."""

    def __init__(self, examples: Examples, split: Split, shape: RowShape, order: Endless | Once, number: int) -> None:
        self.examples, self.split, self.shape, self.order, self.number = examples, split, shape, order, number
        self.start = self.place = 0
        self.drawn: dict[int, Example] = {}
        self.batches: list[list[int]] = []

    def __next__(self) -> LabelledBatch:
        if not self.batches:
            self._draw()
        elif self.place == len(self.batches):
            self.start += self.shape.rows * self.shape.window
            self._draw()
        if not self.batches:
            raise StopIteration
        chosen = [(ordinal, self.drawn[ordinal]) for ordinal in self.batches[self.place]]
        self.place += 1
        return batched(chosen, self.shape, self.number, json.dumps([self.start, self.place]))

    def go_to(self, cursor: str) -> None:
        """Makes the next batch the one that came next when ``cursor`` was taken."""
        self.start, place = json.loads(cursor)
        self._draw()
        self.place = place

    def _draw(self) -> None:
        """The window that begins at ``start``."""
        rows = self.shape.rows
        ordinals = self.order.slice(self.start, self.start + rows * self.shape.window)
        self.drawn = {ordinal: self.examples.example(self.split, ordinal) for ordinal in ordinals}
        if self.shape.window > 1:
            ordinals.sort(key=lambda ordinal: len(self.drawn[ordinal].symbols))
        batches = [ordinals[place : place + rows] for place in range(0, len(ordinals), rows)]
        self.batches, self.place = self.order.arrange(batches, self.start), 0


def _open(
    examples: Examples,
    split: Split,
    shape: RowShape,
    order: partial[Endless] | partial[Once],
    shard: Shard,
    stream: int,
) -> Windows:
    return Windows(examples, split, shape, order(shard), stream)
