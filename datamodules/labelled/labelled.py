"""Data of tasks that predict labels of sequences, of their tokens or words, or of spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
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
from lit_transformers.batch import LABEL, ChoiceLabels, DataDescription, LabelledBatch, LabelledDescription, Labels
from lit_transformers.config import Config, NonNegative, Plain, Positive

__all__ = ["LabelledData", "LabelledDataConfig", "LabelledEvaluationConfig"]


WINDOW = 64
"""The default number of batches that are sorted together. On sentences of SST-2 in batches of 32, .96 of all places
hold a token; with 16 batches .87, without sorting .33."""
Padding = Literal["longest", "fixed"]


class LabelledEvaluationConfig(Config):
    """How a model is evaluated: part of the protocol, which is recorded with every number.

    batch_size  rows over all ranks together; None: as in training
    examples    the largest number of examples, chosen at random, the same for all runs; None: all. All windows of a
                chosen question are read
    split       the split that validation reads; testing reads test
    """

    batch_size: Positive | None = None
    examples: Positive | None = None
    split: Literal["train", "validation", "test"] = "validation"


class LabelledDataConfig(DataConfig, kind="labelled"):
    """Labelled sequences as batches (LabelledBatch). Every row begins with the boundary of the vocabulary.

    source      the examples; the table EXAMPLES lists the kinds
    batch_size  rows over all ranks together
    window      the number of batches whose examples are sorted together by length, before the batches are shuffled, so
                that the rows of a batch have similar lengths; 1: examples are not sorted; None: 64, or the batches of
                one pass over the training split if they are fewer
    padding     longest: to the longest row of the batch. fixed: to the longest row of the source
    seed        of the order of examples; it does not change the examples
    workers     worker processes that make batches; 0: the training process makes them
    """

    describes: ClassVar[type[DataDescription]] = LabelledDescription

    source: ExamplesConfig = ListOpsConfig()
    batch_size: Positive = 32
    window: Positive | None = None
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
        """Counts every row as the longest, since lengths are unknown before rows are read."""
        return self.batch_size * self.source.most_rows * self.length

    @property
    def examples_per_batch(self) -> int:
        return self.batch_size

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
        examples.draw(self.config.seed)
        if self.trained is not None:
            examples.read_as(self.trained)
        return examples

    @property
    def content(self) -> str:
        return self.examples.content

    @property
    def licences(self) -> Mapping[str, str]:
        return self.config.source.licences

    @cached_property
    def description(self) -> LabelledDescription:
        return self.config.source.described(self.trained_symbols())

    def metadata(self) -> dict[str, Plain]:
        return {}

    def reading_messages(self) -> list[str]:
        return self.examples.reading_messages()

    def prepare_data(self) -> None:
        """Fills the cache in one process, for all processes, and prints once how the source was read."""
        self.print_reading()

    def trained_symbols(self) -> TrainedSymbols:
        return self.examples.trained_symbols()

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        return self.examples.encoded(split)

    def split_read(self, split: Split) -> Split:
        return self.examples.split_read(split)

    def example_name(self, ordinal: int) -> str:
        return self.examples.document_name(self.measured_split, ordinal)

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
        config, count = self.config, self.examples.count("train")
        window = min(WINDOW, max(1, count // config.batch_size))
        return self._reading("train", self._shape(config.batch_size, window), partial(Endless, count, config.seed))

    def evaluation(self, split: Split) -> Reading:
        config = self.config
        shape = self._shape(config.evaluation.batch_size or config.batch_size, WINDOW)
        return self._reading(split, shape, partial(self._once, split))

    def _once(self, split: Split) -> Once:
        """Returns the order in which an evaluation reads the examples of a split."""
        return Once(self.examples.count(split), self.config.evaluation.examples, self.examples.documents(split))

    def every_example(self, split: Split) -> Reading:
        """Returns one pass over all examples of a split, sorted by length."""
        count, rows = self.examples.count(split), self.config.batch_size
        shape = self._shape(rows, 1)._replace(window=-(-count // self.rows(rows)))
        open_rows = partial(_open, self.examples, split, shape, partial(Once, count, None))
        return Reading(open_rows, Shard(), self.config.workers)

    def ordinals(self, split: Split) -> list[int]:
        """Returns the ordinals of the examples that are read of a split, ascending: all of train, and otherwise those
        that an evaluation measures."""
        return [*range(self.examples.count(split))] if split == "train" else [*self._once(split).ordinals]

    def class_counts(self, column: str, classes: int) -> list[int]:
        """Returns the number of training examples of each class of a column of labels."""
        return self.examples.class_counts(column, classes)

    def _shape(self, batch_size: int, window: int) -> RowShape:
        """Returns the shape of batches. window: used if the config names none."""
        config = self.config
        return RowShape.of(self.description, self.rows(batch_size), config.window or window, config.padding)

    def _reading(self, split: Split, shape: RowShape, order: Callable[[], Endless | Once]) -> Reading:
        open_rows = partial(_open, self.examples, split, shape, order)
        return Reading(open_rows, self.rank(), self.config.workers)


class RowShape(NamedTuple):
    """The shape of batches. rows: of a batch over all ranks. window: the number of batches that are sorted together.
    boundary: the first symbol of a row. least: the minimum length of a row. columns: the labels of each column.
    segments: the most texts of a row. of_words: whether a column has labels of words."""

    rows: int
    window: int
    boundary: int
    least: int
    columns: Mapping[str, Labels]
    segments: int = 1
    of_words: bool = False

    @classmethod
    def of(cls, description: LabelledDescription, rows: int, window: int, padding: Padding) -> Self:
        """Returns the shape of batches of described examples. padding: to the longest row of a batch, or of all
        rows."""
        least = description.longest_row if padding == "fixed" else 0
        boundary, columns = description.vocabulary.boundary, description.label_columns
        return cls(rows, window, boundary, least, columns, description.segments, description.of_words)


def batched(shape: RowShape, examples: list[tuple[int, Example]], cursor: str) -> LabelledBatch:
    """Makes a batch of examples with the ordinals of their documents. Without examples, for a rank without a share, it
    is one row of padding."""
    count, has_choices = max(len(examples), 1), isinstance(shape.columns[LABEL], ChoiceLabels)
    of_examples = [rows_of(example) for _, example in examples] or [[]]
    most = max(1, *map(len, of_examples)) if has_choices else 1
    longest = max([shape.least, 1, *(len(row.symbols) + 1 for rows in of_examples for row in rows)])
    inputs, padding_mask = np.zeros((count, most, longest), np.int64), np.zeros((count, most, longest), np.bool_)
    marked, segments, words = np.zeros_like(padding_mask), np.zeros_like(inputs), np.zeros_like(inputs)
    for number, rows in enumerate(of_examples):
        for place, row in enumerate(rows):
            index, length = (number, place), len(row.symbols) + 1
            inputs[index][0], inputs[index][1:length], padding_mask[index][:length] = shape.boundary, row.symbols, True
            marked[index][[position + 1 for position in row.marked or ()]] = True
            if row.second is not None:
                segments[index][row.second + 1 : length] = 1
                padding_mask[index][(row.second if row.first is None else row.first) + 1 : row.second + 1] = False
            if row.words is not None:
                words[index][1:length] = row.words
    labels = {name: column_of(name, kind, examples, longest) for name, kind in shape.columns.items()}
    passages = [example.passage for _, example in examples if example.passage is not None]

    def tensor(rows: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(rows if has_choices else rows[:, 0])

    return LabelledBatch(
        tensor(inputs),
        tensor(padding_mask),
        labels.pop(LABEL),
        tensor(marked) if any(example.marked is not None for _, example in examples) else None,
        torch.tensor([ordinal for ordinal, _ in examples] or [0]),
        cursor,
        labels or None,
        padded=not padding_mask.all(),
        segments=tensor(segments) if shape.segments > 1 else None,
        words=tensor(words) if shape.of_words else None,
        passages=tuple(passages) or None,
    )


def rows_of(example: Example) -> list[Example]:
    """Returns the rows of an example: itself, or one for each of its choices."""
    if example.choices is None:
        return [example]
    return [
        Example(example.symbols[start:stop], None, second=second - start) for start, second, stop in example.choices
    ]


def column_of(name: str, kind: Labels, examples: list[tuple[int, Example]], length: int) -> Tensor:
    """Lays out a column of labels for rows of ``length`` tokens. Raises DataError if the labels of an example do not
    fit their kind."""
    try:
        return kind.tensor([example.labels.get(name) for _, example in examples], length)
    except (ValueError, TypeError) as error:
        raise DataError(f"data.source: the column {name!r} of {kind.kind} cannot be laid out: {error}") from None


def grouped(
    examples: Examples, split: Split, shape: RowShape, share: Shard, ordinals: list[int]
) -> list[list[tuple[int, Example]]]:
    """Reads a window of examples, with the ordinals of their documents, as batches of similar lengths."""
    documents = examples.documents(split)

    def read(ordinal: int) -> tuple[int, Example]:
        return ordinal if documents is None else int(documents[ordinal]), examples.example(split, ordinal)

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
