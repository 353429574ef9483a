"""Labelled texts for the fine-tuning of encoders, with any tokenizer: rows [CLS] text [SEP], or [CLS] text [SEP] text
[SEP] for pairs."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from datamodules.core.documents import Document, Split, cache_folder
from datamodules.core.errors import DataError
from datamodules.core.examples import Example, Examples, ExamplesConfig, TextRows
from datamodules.core.index import IndexedCorpus, make_once
from datamodules.core.learning import TextsWithin
from datamodules.core.permutations import shuffled
from datamodules.core.tokenizers import BytesConfig, Symbols, Tokenizer, TokenizerConfig, key_of
from datamodules.core.trained import TrainedSymbols, require_tokenizer
from datamodules.labelled.stored_texts import LabelColumn, StoredText
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import LABEL, LabelledDescription
from lit_transformers.config import Fraction, Plain, Positive, canonical_hash

__all__ = ["READ_LATER", "WHOLE", "LabelledTexts", "StoredTexts", "TextExamplesConfig", "texts_of_training"]

Keep = Literal["head", "tail", "head_tail"]

KEPT_SYMBOLS = 1 << 22
"""The most symbols of encoded examples that a process keeps, which take 32 MB. An example counts OVERHEAD more."""
OVERHEAD = 64

WHOLE = 1 << 30
"""A size of pieces so large that no text is cut, since each text has one label."""

READ_LATER = ("tokenizer", "length", "keep", "head_share", "pieces", "shortest", "examples", "balanced", "subset")
"""The fields of all labelled texts that do not change the stored texts, only how they are read."""


class TextExamplesConfig(ExamplesConfig):
    """Base of labelled texts, with the same special symbols as data of the kind ``rows``.

    tokenizer  of the network that is fine-tuned
    length     tokens of the longest row, with special symbols; if a pair is too long, the longer text loses its end
    keep       the part of a longer single text that is read: head, tail, or head_tail, a part of each
               (arXiv:1905.05583, section 5.3.1)
    head_share the share of a row that head_tail takes from the beginning of a text; by default 128 of 510 symbols
    pieces     the most rows of ``length`` into which a single text is cut. The network reads them one by one, and
               ``task.piece_pooling`` combines them. ``keep`` applies to texts that are longer than all pieces
    shortest   the fewest words of a text that is read; spaces separate words
    examples   the number of training examples, chosen at random; None: all. A larger number adds to the examples of a
               smaller one
    balanced   choose equal numbers of ``examples`` from each class
    subset     fixed: all seeds train on the same examples. by_seed: each seed trains on different examples, the same in
               every arm
    """

    tokenizer: TokenizerConfig = BytesConfig()
    length: Annotated[int, Field(ge=8)] = 128
    keep: Keep = "head"
    head_share: Fraction = 0.25
    pieces: Positive = 1
    shortest: Positive = 1
    examples: Positive | None = None
    balanced: bool = False
    subset: Literal["fixed", "by_seed"] = "fixed"

    def conflicts(self) -> Iterator[str]:
        yield from self.subset_conflicts()
        yield from self.balance_conflicts()
        if self.texts == 2 and (self.keep != "head" or self.pieces > 1):
            yield "keep and pieces apply to single texts, but rows have two texts; drop them"

    def subset_conflicts(self) -> Iterator[str]:
        """Yields the conflicts of fields that choose training examples."""
        if (self.balanced or self.subset == "by_seed") and self.examples is None:
            yield "balanced and subset choose among training examples, but all are read; set examples"

    def balance_conflicts(self) -> Iterator[str]:
        """Yields the conflicts of ``balanced`` with the labels."""
        column = self.label_columns[LABEL]
        if not self.balanced or self.examples is None:
            return
        if column.classes is None or column.several:
            yield "balanced needs one class for each example, but these labels are not; drop it"
        elif self.examples % len(column.classes):
            yield f"balanced needs equal numbers of {len(column.classes)} classes; set examples to a multiple"

    @property
    def built_tokenizer(self) -> Tokenizer:
        """The tokenizer, from the cache if it was learned before. Raises DataError if it cannot be learned."""
        raise NotImplementedError

    @property
    def label_columns(self) -> Mapping[str, LabelColumn]:
        """The columns of labels, by name; ``label`` is the first."""
        raise NotImplementedError

    @property
    def texts(self) -> int:
        """The number of texts of an example: 1 or 2."""
        raise NotImplementedError

    @property
    def class_names(self) -> dict[str, list[str]]:
        """The names of the classes, by column; columns of numbers are omitted."""
        return {name: [*column.classes] for name, column in self.label_columns.items() if column.classes is not None}

    def measured(self) -> dict[str, Plain]:
        return {"shortest": self.shortest}

    @property
    def longest_row(self) -> int:
        return self.length * self.pieces

    @property
    def description(self) -> LabelledDescription:
        return self.described(trained_with(self.built_tokenizer, self.class_names))

    def text_rows(self, trained: TrainedSymbols) -> TextRows:
        return self.rows_of(require_tokenizer(trained.tokenizer))

    def rows_of(self, tokenizer: Tokenizer) -> TextRows:
        """Returns the layout of rows with the symbols of a tokenizer."""
        if self.texts == 2:
            longest, end = self.length - 3, (RowSymbols.of(tokenizer).separator,)
            return TextRows(tokenizer, longest, end, self.texts)
        piece = self.length - 2
        longest, end = self.pieces * piece, (RowSymbols.of(tokenizer).separator,)
        head = {"head": None, "tail": 0, "head_tail": round(self.head_share * longest)}[self.keep]
        return TextRows(tokenizer, longest, end, self.texts, head, piece if self.pieces > 1 else 0)

    def reading(self) -> dict[str, Plain]:
        """Returns the fields that decide which part of longer texts is read, if they are not the defaults."""
        share = {"head_share": self.head_share} if self.keep == "head_tail" else {}
        kept = {} if self.keep == "head" else {"keep": self.keep, **share}
        return kept | ({} if self.pieces == 1 else {"pieces": self.pieces})

    def described(self, trained: TrainedSymbols) -> LabelledDescription:
        symbols = RowSymbols.of(require_tokenizer(trained.tokenizer))
        columns = {name: column.labels(trained.names_in(name)) for name, column in self.label_columns.items()}
        return LabelledDescription(
            vocabulary=symbols.vocabulary,
            length=self.length,
            labels=columns.pop(LABEL),
            columns=columns,
            segments=self.texts,
            pieces=self.pieces,
        )


class StoredTexts(Examples):
    """Labelled texts of an index, encoded when they are first read. Without a split test, test reads validation."""

    def __init__(self, config: TextExamplesConfig, corpus: IndexedCorpus) -> None:
        self.config, self.corpus, self.seed = config, corpus, 0
        self.places: dict[Split, Sequence[int]] = {}
        self.kept: dict[tuple[Split, int], Example] = {}
        self._forget()
        self.names = config.class_names
        self.numbers = {name: [*range(len(names))] for name, names in self.names.items()}
        self.content = corpus.fingerprint

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.config.built_tokenizer

    @cached_property
    def rows(self) -> TextRows:
        """The layout of rows."""
        return self.config.rows_of(self.tokenizer)

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        config, tokenizer = self.config, canonical_hash(key_of(self.tokenizer), 32)
        decisive = [self.content, tokenizer, config.length, config.shortest, config.examples]
        others: list[Plain] = [] if self.names == config.class_names else [self.names]
        others += ["balanced"] if config.balanced else []
        others += [self.seed] if config.subset == "by_seed" else []
        others += [config.reading()] if config.reading() else []
        return canonical_hash([*decisive, *others, *self.decisive()], 32)

    def decisive(self) -> list[Plain]:
        """Hook: returns further values that decide the examples, next to the content, the tokenizer and the base's
        fields."""
        return []

    def draw(self, seed: int) -> None:
        self.seed = seed if self.config.subset == "by_seed" else 0
        self._forget()

    def trained_symbols(self) -> TrainedSymbols:
        return trained_with(self.tokenizer, self.names)

    def read_as(self, trained: TrainedSymbols) -> None:
        self._forget()
        self.tokenizer = require_tokenizer(trained.tokenizer)
        for name, names in self.config.class_names.items():
            self.numbers[name] = trained.label_numbers(names, name)
            self.names[name] = trained.names_in(name) or names

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        for ordinal in range(self.count(split)):
            yield self.tokenizer, self.example(split, ordinal).symbols[: -len(self.rows.end)]

    def count(self, split: Split) -> int:
        return len(self._places(self.split_read(split)))

    @abstractmethod
    def texts_of(self, stored: bytes) -> Sequence[bytes]:
        """Returns the texts of a stored example."""

    @abstractmethod
    def example_of(self, stored: bytes) -> Example:
        """Returns the symbols and labels of a stored example."""

    def stored(self, split: Split, ordinal: int) -> bytes:
        """Returns the stored form of an example."""
        return self._stored(self.split_read(split), self._place(split, ordinal))

    def example(self, split: Split, ordinal: int) -> Example:
        kept = self.kept.get((split, ordinal))
        if kept is None:
            kept = self.example_of(self.stored(split, ordinal))
            self.room -= len(kept.symbols) + OVERHEAD
            if self.room >= 0:
                self.kept[split, ordinal] = kept
        return kept

    def _forget(self) -> None:
        """Drops the encoded examples that are kept."""
        self.kept, self.room = {}, KEPT_SYMBOLS

    def texts(self, split: Split) -> Iterator[Document]:
        documents = self.corpus.documents(self.split_read(split))
        for place in self._places(self.split_read(split)):
            for text in self.texts_of(documents[place].text):
                yield Document(documents.name(place), text)

    def reading_messages(self) -> list[str]:
        return self.corpus.messages

    def name(self, split: Split, ordinal: int) -> str:
        return self.corpus.documents(self.split_read(split)).name(self._place(split, ordinal))

    def _stored(self, split: Split, place: int) -> bytes:
        return self.corpus.documents(split)[place].text

    def _place(self, split: Split, ordinal: int) -> int:
        """Returns the place of an example in its split of the corpus."""
        return self._places(self.split_read(split))[ordinal]

    def _places(self, split: Split) -> Sequence[int]:
        """Returns the places of a split's examples in its split of the corpus. Raises DataError if there are none."""
        if split not in self.places:
            config = self.config
            places: Sequence[int] = range(len(self.corpus.documents(split)))
            if config.shortest > 1:
                places = np.flatnonzero(self._words(split) >= config.shortest).tolist()
            if config.examples is not None and split == "train":
                places = sorted(self.chosen(places, config.examples))
            if not places:
                raise DataError(f"no text of {split} has {config.shortest} words; correct data.source.shortest")
            self.places[split] = places
        return self.places[split]

    def _words(self, split: Split) -> npt.NDArray[np.int64]:
        """Returns the number of words of the shortest text of each stored example of a split (n,). Cached below
        LIT_CACHE."""
        key = [self.config.kind, self.content, split]
        path = cache_folder() / "words" / canonical_hash(key, 32) / "words.npy"

        def make(temporary: Path) -> None:
            stored = (self.texts_of(self._stored(split, place)) for place in range(len(self.corpus.documents(split))))
            np.save(temporary / path.name, [min(len(text.split()) for text in texts) for texts in stored])

        make_once(path.parent, path.name, make)
        counts: npt.NDArray[np.int64] = np.load(path)
        return counts

    def chosen(self, places: Sequence[int], count: int) -> list[int]:
        """Hook: returns ``count`` of the training places, in the order in which they are drawn. Raises DataError if
        there are too few."""
        return self._drawn(places)[:count]

    def _drawn(self, places: Sequence[int]) -> list[int]:
        """Returns training places in random order."""
        return [places[place] for place in shuffled(len(places), self.seed, 0)[:].tolist()]

    def split_read(self, split: Split) -> Split:
        return "validation" if split == "test" and not self.corpus.count("test") else split


class LabelledTexts(StoredTexts):
    """Texts or pairs of texts of an index, each with a class, a number or a set of classes."""

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        for ordinal in range(self.count(split)):
            texts = self.texts_of(self.stored(split, ordinal))
            for symbols in self.rows.read(*map(self.tokenizer.encode, texts)):
                yield self.tokenizer, symbols

    def texts_of(self, stored: bytes) -> Sequence[bytes]:
        return StoredText.of(stored).encoded

    def example_of(self, stored: bytes) -> Example:
        own = StoredText.of(stored)
        symbols, second = self.rows.row(*map(self.tokenizer.encode, own.encoded))
        labels = self._labels(own)
        return Example(symbols, labels.pop(LABEL), columns=labels or None, second=second)

    def class_counts(self, column: str, classes: int) -> list[int]:
        stored = (StoredText.of(self._stored("train", place)) for place in self._places("train"))
        counts = Counter(self._labels(text)[column] for text in stored)
        return [counts[number] for number in range(classes)]

    def _labels(self, stored: StoredText) -> dict[str, Any]:
        """Returns the labels of an example, by column."""
        columns = self.config.label_columns.items()
        return {
            name: column.read(label, self.numbers.get(name, ()))
            for (name, column), label in zip(columns, stored.labels, strict=True)
        }

    def chosen(self, places: Sequence[int], count: int) -> list[int]:
        """Returns equal numbers of places of each class if ``balanced`` is set. Raises DataError for a class with too
        few examples."""
        if not self.config.balanced:
            return super().chosen(places, count)
        names = self.config.class_names[LABEL]
        drawn: list[list[int]] = [[] for _ in names]
        for place in self._drawn(places):
            drawn[StoredText.of(self._stored("train", place)).labels[0]].append(place)
        each = count // len(names)
        for name, own in zip(names, drawn, strict=True):
            if len(own) < each:
                raise DataError(
                    f"{len(own):,} texts of train have the label {name!r}, but balanced needs {each:,} of each; "
                    f"set data.source.examples to at most {len(names) * min(map(len, drawn)):,}"
                )
        return [place for own in drawn for place in own[:each]]


def trained_with(tokenizer: Tokenizer, names: Mapping[str, list[str]]) -> TrainedSymbols:
    """Returns the meaning of the symbols of a tokenizer and of the classes of columns, given their names."""
    further = {name: classes for name, classes in names.items() if name != LABEL}
    return TrainedSymbols(tokenizer.to_dict(), labels=names.get(LABEL), columns=further or None)


def texts_of_training(corpus: IndexedCorpus) -> TextsWithin:
    """Returns the texts of the training split without their labels."""
    return TextsWithin(corpus.documents("train"), _texts_of)


def _texts_of(document: Document) -> Iterator[Document]:
    for text in StoredText.of(document.text).encoded:
        yield Document(document.name, text)
