"""Labelled examples, which are read or generated, and the base of those that are generated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.data import KnownValues
from datamodules.core.documents import SPLITS, Document, Split
from datamodules.core.tokenizers import Symbols, Tokenizer
from datamodules.core.trained import TrainedSymbols
from lit_transformers.batch import LABEL, ClassLabels, LabelledDescription, Passage
from lit_transformers.config import Config, NonNegative, Plain, Positive, canonical_hash

__all__ = ["Example", "Examples", "ExamplesConfig", "Synthetic", "SyntheticConfig", "TextRows", "cut_longer"]

FINGERPRINTED = 4
"""Number of examples of each split in a fingerprint, which changes when the code that generates them does."""


class Example(NamedTuple):
    """symbols: without the boundary that a row begins with. label: as the kind of the labels has it: a class from 0, a
    number, the numbers of classes, a tag for each symbol, a span as the place of its first symbol and that after its
    last, or several spans with their classes; None where the example has none.

    marked: positions of marked symbols, or None where none are marked. columns: the labels of further columns, by their
    names in the description; missing labels are omitted. second: the place of the first symbol of the second text; None
    for one text. words: the number of the word of each symbol, from 1, and 0 for other symbols; None if no label is of
    words. passage: the text that contains the answer; None for other examples. choices: the rows of its choices, each
    as three places: of its first symbol, of the first symbol of its second text, and after its last symbol; None if the
    example is one row. first: the number of symbols of the first text, if padding stands between both texts; None
    without such padding.
    """

    symbols: npt.NDArray[np.int64]
    label: Any
    marked: tuple[int, ...] | None = None
    columns: Mapping[str, Any] | None = None
    second: int | None = None
    words: npt.NDArray[np.int64] | None = None
    passage: Passage | None = None
    choices: tuple[tuple[int, int, int], ...] | None = None
    first: int | None = None

    @property
    def labels(self) -> dict[str, Any]:
        """The labels of all columns, by their names."""
        return {LABEL: self.label, **(self.columns or {})}


class TextRows(NamedTuple):
    """The layout of rows of one or two texts: the symbols of each text, followed by ``end``. The boundary of the
    vocabulary comes before them, and is not included.

    longest: the most symbols of the texts of a row, without ``end``. In a pair that is too long, the longer text loses
    its end. texts: the number of texts of a row, 1 or 2. head: the number of symbols that are read from the beginning
    of a single text longer than ``longest``, the others from its end; None: all from the beginning. piece: the symbols
    of a piece, if a row may have several pieces, each with the boundary before it and ``end`` after it; 0 for one
    piece.
    """

    tokenizer: Tokenizer
    longest: int
    end: tuple[int, ...]
    texts: int = 1
    head: int | None = None
    piece: int = 0

    def read(self, *symbols: Symbols) -> tuple[Symbols, ...]:
        """Returns the symbols of each text that fit a row, given all symbols."""
        if self.texts == 2:
            first, second = symbols
            return cut_longer(first, second, self.longest)
        (text,) = symbols
        if self.head is None or len(text) <= self.longest:
            return (text[: self.longest],)
        return (np.concatenate([text[: self.head], text[len(text) - self.longest + self.head :]]),)

    def row(self, *symbols: Symbols) -> tuple[npt.NDArray[np.int64], int | None]:
        """Returns the symbols of a row, given the symbols of its texts, and the place of the first symbol of the second
        text; None for a row of one text."""
        if self.texts == 2:
            first, second = self.read(*symbols)
            return np.concatenate([first, self.end, second, self.end]).astype(np.int64), len(first) + len(self.end)
        (kept,) = self.read(*symbols)
        if not self.piece or len(kept) <= self.piece:
            return np.append(kept, self.end).astype(np.int64), None
        between = [*self.end, self.tokenizer.vocabulary.boundary]
        beginning, *others = (kept[start : start + self.piece] for start in range(0, len(kept), self.piece))
        row = np.concatenate([beginning, *(part for piece in others for part in (between, piece)), self.end])
        return row.astype(np.int64), None


def cut_longer(first: Symbols, second: Symbols, longest: int) -> tuple[Symbols, Symbols]:
    """Cuts the end of the longer text, so that both together have at most ``longest`` symbols."""
    first = first[: max(longest - len(second), longest // 2)]
    return first, second[: longest - len(first)]


class Examples(ABC):
    """The labelled examples of all splits, read one at a time. Cheap to pickle. Raises DataError from every method.

    ``fingerprint`` identifies everything that decides an example. ``content`` identifies the texts that examples are
    made of, including those that are not read: arms that read more or less of the same texts can be compared.
    """

    fingerprint: str
    content: str

    @abstractmethod
    def count(self, split: Split) -> int:
        """Returns the number of examples of a split."""

    @abstractmethod
    def example(self, split: Split, ordinal: int) -> Example:
        """Returns the example with that ordinal, the same in every call."""

    @abstractmethod
    def name(self, split: Split, ordinal: int) -> str:
        """Returns the name of the example with that ordinal."""

    def split_read(self, split: Split) -> Split:
        """Hook: returns the split that is read in place of another one: validation where there is no test. By default
        the same."""
        return split

    def documents(self, split: Split) -> npt.NDArray[np.int64] | None:
        """Hook: returns the ordinal of the document of each example of a split, ascending, if examples are windows of
        documents and are measured together. By default None: each example is a document."""
        return None

    def document_name(self, split: Split, document: int) -> str:
        """Hook: returns the name of a document. By default the name of the example with its ordinal."""
        return self.name(split, document)

    def reading_messages(self) -> list[str]:
        """Hook: returns sentences on the parts that were left out, and the number of texts that stand in two splits."""
        return []

    def draw(self, seed: int) -> None:
        """Hook: receives the seed of the data before anything is read, so that it can choose training examples. By
        default all seeds have the same examples."""
        return

    def texts(self, split: Split) -> Iterator[Document]:
        """Hook: yields the texts of the examples of a split, without their labels. By default none, for examples that
        are not texts."""
        return iter(())

    def trained_symbols(self) -> TrainedSymbols:
        """Hook: returns the meanings of symbols and labels. By default they are unknown."""
        return TrainedSymbols()

    def read_as(self, trained: TrainedSymbols) -> None:
        """Hook: reads with the symbols and labels of a trained network. By default the examples keep theirs. Raises
        DataError for a label that was never trained."""
        return

    def class_counts(self, column: str, classes: int) -> list[int]:
        """Hook: returns the number of training examples of each class of a column of labels. By default it reads every
        example."""
        labels = (self.example("train", ordinal).labels.get(column) for ordinal in range(self.count("train")))
        counts = Counter(labels)
        return [counts[number] for number in range(classes)]

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        """Hook: yields the symbols of the texts of a split, with their tokenizer. None by default."""
        return iter(())


class ExamplesConfig(Config):
    """Base of every config of labelled examples; the table EXAMPLES lists the kinds."""

    def build(self) -> Examples:
        """Opens the examples. Raises DataError."""
        raise NotImplementedError

    @property
    def description(self) -> LabelledDescription:
        """Vocabulary, longest row with its boundary, and the labels in each column of labels."""
        raise NotImplementedError

    @property
    def longest_row(self) -> int:
        """Hook: the longest row with its boundary; it is that of the description."""
        return self.description.longest_row

    @property
    def licences(self) -> Mapping[str, str]:
        """Hook: the licences of the examples, by the names of their corpora. By default empty."""
        return {}

    @property
    def most_rows(self) -> int:
        """Hook: the most rows of an example: more than 1 if it has a row for each choice. By default 1."""
        return 1

    def described(self, trained: TrainedSymbols) -> LabelledDescription:
        """Hook: returns the description of examples that are read with the symbols and labels of a trained network. By
        default they have their own."""
        return self.description

    def text_rows(self, trained: TrainedSymbols) -> TextRows | None:
        """Hook: returns how a text becomes a row with the symbols of a trained network; None where examples are no
        texts."""
        return None

    def protocol(self) -> dict[str, Plain]:
        """Returns the settings of the source that a reported number depends on."""
        raise NotImplementedError

    def known_values(self) -> KnownValues | None:
        """Hook: returns the values of a metric that are known beforehand; None if there are none."""
        return None

    def measured(self) -> dict[str, Plain]:
        """Hook: returns the fields that decide which examples of the content are measured. None by default."""
        return {}


class SyntheticConfig(ExamplesConfig):
    """Base of examples that are generated on demand, from ``seed``, their split and their ordinal alone.

    train, validation, test: the number of examples of each split. Splits share no seed, but a very short example of one
    may occur in another.
    """

    train: Positive = 96_000
    validation: Positive = 2_000
    test: Positive = 2_000
    seed: NonNegative = 0

    def make(self, chance: Random) -> Example:
        """Makes an example from random numbers of ``chance`` alone."""
        raise NotImplementedError

    def meanings(self) -> dict[str, Plain]:
        """Hook: returns the facts that decide the meanings of symbols and labels. By default the kind, the numbers of
        symbols and of classes, and the labels in further columns."""
        description = self.description
        classes = description.labels.count if isinstance(description.labels, ClassLabels) else None
        columns = {"columns": {name: labels.to_dict() for name, labels in description.columns.items()}}
        own = {"kind": self.kind, "symbols": description.vocabulary.size, "classes": classes}
        return own | (columns if description.columns else {})

    def build(self) -> Synthetic:
        return Synthetic(self)

    def protocol(self) -> dict[str, Plain]:
        return {"validation": self.validation, "test": self.test}


class Synthetic(Examples):
    """Examples that are generated in every call; none is stored.

    Python promises that ``Random.random`` gives the same numbers in every version.
    """

    def __init__(self, config: SyntheticConfig) -> None:
        self.config = config
        samples = [self.example(split, ordinal) for split in SPLITS for ordinal in range(FINGERPRINTED)]
        contents = [
            [example.symbols.tolist(), example.label, example.marked, *([example.columns] if example.columns else [])]
            for example in samples
        ]
        self.fingerprint = self.content = f"{config.kind}-{canonical_hash([config.to_dict(), contents], 32)}"

    def count(self, split: Split) -> int:
        counts: dict[Split, int] = {
            "train": self.config.train,
            "validation": self.config.validation,
            "test": self.config.test,
        }
        return counts[split]

    def example(self, split: Split, ordinal: int) -> Example:
        return self.config.make(Random(f"{self.config.seed} {split} {ordinal}"))

    def name(self, split: Split, ordinal: int) -> str:
        return f"{split}:{ordinal}"

    def trained_symbols(self) -> TrainedSymbols:
        return TrainedSymbols(meanings=self.config.meanings())
