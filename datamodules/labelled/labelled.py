"""The data of tasks that predict labels of whole sequences, of their tokens, or of spans of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from datamodules.core.data import Data, DataConfig, KnownValues, row_conflicts
from datamodules.core.documents import Shard, Split
from datamodules.core.errors import DataError
from datamodules.core.examples import Example, Examples, ExamplesConfig
from datamodules.core.loading import Reading
from datamodules.core.tokenizers import Symbols, Tokenizer
from datamodules.core.trained import TrainedSymbols
from datamodules.core.windows import Endless, Once, Windows, cut
from datamodules.labelled.listops import ListOpsConfig
from lit_transformers.batch import LABEL, DataDescription, LabelledBatch, LabelledDescription, Labels
from lit_transformers.config import Config, NonNegative, Plain, Positive

__all__ = ["LabelledData", "LabelledDataConfig", "LabelledEvaluationConfig"]


Padding = Literal["longest", "fixed"]


class LabelledEvaluationConfig(Config):
    """How a model is evaluated: part of the protocol, so recorded with every number.

    batch_size  None: as in training
    examples    largest number of examples, the same for all runs, chosen at random: files may be in the order of their
                labels
    split       the split that validation reads; testing reads test
    """

    batch_size: Positive | None = None
    examples: Positive | None = None
    split: Literal["train", "validation", "test"] = "validation"


class LabelledDataConfig(DataConfig, kind="labelled"):
    """Labelled sequences as batches (LabelledBatch). Every row begins with the boundary of the vocabulary.

    source      the examples; the table EXAMPLES lists the kinds
    batch_size  rows over all ranks together
    window      number of batches whose examples are sorted together by length, before the batches are shuffled, so that
                rows of a batch have about the same length; 1: examples are not sorted
    padding     longest: to the longest row of the batch. fixed: to the longest row of the source
    seed        of the order of examples; the source alone decides their content
    workers     worker processes that make batches; 0: the training process makes them
    """

    describes: ClassVar[type[DataDescription]] = LabelledDescription

    source: ExamplesConfig = ListOpsConfig()
    batch_size: Positive = 32
    window: Positive = 16
    padding: Padding = "longest"
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
        return self.source.longest_row

    @property
    def tokens_per_step(self) -> int:
        """Counts every row as the longest one: lengths are not known before rows are read."""
        return self.batch_size * self.length

    def rank_conflicts(self, ranks: int) -> Iterator[str]:
        return row_conflicts(ranks, self.batch_size, self.evaluation.batch_size)

    def protocol(self) -> dict[str, Plain]:
        return self.source.protocol() | {"split": self.evaluation.split, "examples": self.evaluation.examples}

    def known_values(self) -> KnownValues | None:
        return self.source.known_values()

    def measured(self) -> dict[str, Plain]:
        return super().measured() | self.source.measured()

    def restored(self, metadata: Mapping[str, Plain]) -> LabelledDescription:
        return self.source.described(TrainedSymbols.of(metadata))


class LabelledData(Data):
    """Batches of labelled sequences."""

    config: LabelledDataConfig

    @cached_property
    def examples(self) -> Examples:
        examples = self.config.source.build()
        if self.trained is not None:
            examples.read_as(self.trained)
        return examples

    @property
    def content(self) -> str:
        return self.examples.content

    @cached_property
    def description(self) -> LabelledDescription:
        return self.config.source.described(self.trained_symbols())

    def metadata(self) -> dict[str, Plain]:
        return {}

    def reading_messages(self) -> list[str]:
        return self.examples.reading_messages()

    def prepare_data(self) -> None:
        """Fills the cache in one process, for all others, and prints once how the source was read."""
        self.print_reading()

    def trained_symbols(self) -> TrainedSymbols:
        return self.examples.trained_symbols()

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        return self.examples.encoded(split)

    def example_name(self, ordinal: int) -> str:
        return self.examples.name(self.validation_split, ordinal)

    def identity(self) -> dict[str, Plain]:
        config = self.config
        return {
            "source": self.examples.fingerprint,
            "batch_size": config.batch_size,
            "window": config.window,
            "padding": config.padding,
            "seed": config.seed,
        }

    def training(self) -> Reading:
        config = self.config
        order = partial(Endless, self.examples.count("train"), config.seed)
        return self._reading("train", self._shape(config.batch_size), order)

    def evaluation(self, split: Split) -> Reading:
        config, evaluation = self.config, self.config.evaluation
        order = partial(Once, self.examples.count(split), evaluation.examples)
        return self._reading(split, self._shape(evaluation.batch_size or config.batch_size), order)

    def _shape(self, batch_size: int) -> RowShape:
        config = self.config
        return RowShape.of(self.description, self.rows(batch_size), config.window, config.padding)

    def _reading(self, split: Split, shape: RowShape, order: Callable[[], Endless | Once]) -> Reading:
        open_rows = partial(_open, self.examples, split, shape, order)
        return Reading(open_rows, self.rank(), self.config.workers)


class RowShape(NamedTuple):
    """rows: of a batch over all ranks. window: number of batches that are sorted together. boundary: the symbol that a
    row begins with. least: the minimum length of a row. columns: what the columns of labels hold. segments: the most
    texts of a row."""

    rows: int
    window: int
    boundary: int
    least: int
    columns: Mapping[str, Labels]
    segments: int = 1

    @classmethod
    def of(cls, description: LabelledDescription, rows: int, window: int, padding: Padding) -> Self:
        """Returns the shape of rows of such examples. padding: to the longest row of a batch, or of all."""
        least = description.length if padding == "fixed" else 0
        boundary, columns = description.vocabulary.boundary, description.label_columns
        return cls(rows, window, boundary, least, columns, description.segments)


def batched(shape: RowShape, examples: list[tuple[int, Example]], cursor: str) -> LabelledBatch:
    """Makes a batch of examples with their ordinals; of none, one row of padding, for a rank without a share of it."""
    count = max(len(examples), 1)
    longest = max([shape.least, 1, *(len(example.symbols) + 1 for _, example in examples)])
    inputs, padding_mask = np.zeros((count, longest), np.int64), np.zeros((count, longest), np.bool_)
    marked, segments = np.zeros((count, longest), np.bool_), np.zeros((count, longest), np.int64)
    for row, (_, example) in enumerate(examples):
        length = len(example.symbols) + 1
        inputs[row, 0], inputs[row, 1:length], padding_mask[row, :length] = shape.boundary, example.symbols, True
        marked[row, [place + 1 for place in example.marked or ()]] = True
        if example.second is not None:
            segments[row, example.second + 1 : length] = 1
    labels = {name: column_of(name, kind, examples, longest) for name, kind in shape.columns.items()}
    return LabelledBatch(
        torch.from_numpy(inputs),
        torch.from_numpy(padding_mask),
        labels.pop(LABEL),
        torch.from_numpy(marked) if any(example.marked is not None for _, example in examples) else None,
        torch.tensor([ordinal for ordinal, _ in examples] or [0]),
        cursor,
        labels or None,
        padded=not padding_mask.all(),
        segments=torch.from_numpy(segments) if shape.segments > 1 else None,
    )


def column_of(name: str, kind: Labels, examples: list[tuple[int, Example]], length: int) -> Tensor:
    """Lays out a column of labels of rows of ``length`` tokens. Raises DataError where an example lacks what it needs,
    or has what there is not."""
    try:
        return kind.tensor([example.labels.get(name) for _, example in examples], length)
    except (ValueError, TypeError) as error:
        raise DataError(f"data.source: the column {name!r} of {kind.kind} cannot be laid out: {error}") from None


def grouped(
    examples: Examples, split: Split, shape: RowShape, share: Shard, ordinals: list[int]
) -> list[list[tuple[int, Example]]]:
    """Reads a window of examples with their ordinals, as batches of about equal lengths."""

    def read(ordinal: int) -> tuple[int, Example]:
        return ordinal, examples.example(split, ordinal)

    return cut(ordinals, read, shape.rows, share, (lambda item: len(item[1].symbols)) if shape.window > 1 else None)


def _open(
    examples: Examples,
    split: Split,
    shape: RowShape,
    order: Callable[[], Endless | Once],
    share: Shard,
) -> Windows[int, list[tuple[int, Example]], LabelledBatch]:
    group = partial(grouped, examples, split, shape, share)
    return Windows(order(), shape.rows * shape.window, group, partial(batched, shape))
