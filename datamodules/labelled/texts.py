"""Labelled texts by any tokenizer, as [CLS] text [SEP], or [CLS] text [SEP] text [SEP] of two: what pretrained encoders
are fine-tuned on."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from datamodules.core.documents import Document, Split
from datamodules.core.errors import DataError
from datamodules.core.examples import Example, Examples, ExamplesConfig, TextRows
from datamodules.core.index import IndexedCorpus
from datamodules.core.tokenizers import BytesConfig, Symbols, Tokenizer, TokenizerConfig, key_of
from datamodules.core.trained import TrainedSymbols, require_tokenizer
from datamodules.core.windows import shuffled
from datamodules.labelled.stored_texts import LabelColumn, StoredText
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import LABEL, LabelledDescription
from lit_transformers.config import Fraction, Plain, Positive, canonical_hash

__all__ = ["READ_LATER", "WHOLE", "LabelledTexts", "StoredTexts", "TextExamplesConfig", "texts_of_training"]

Keep = Literal["head", "tail", "head_tail"]

WHOLE = 1 << 30
"""A size of pieces so large that no text is cut: each has one label."""

READ_LATER = ("tokenizer", "length", "keep", "head_share", "pieces", "shortest", "examples", "balanced", "subset")
"""The fields of all labelled texts that decide what is read of a stored one."""


class TextExamplesConfig(ExamplesConfig):
    """Base of labelled texts, with the symbols that ``rows`` of the same tokenizer have.

    tokenizer  of the network that is fine-tuned
    length     tokens of the longest row, special symbols included; of two texts the longer one loses its end
    keep       what is read of longer single texts: their head, their tail, or the head_tail, a part of each
               (arXiv:1905.05583, section 5.3.1)
    head_share the share of a row that head_tail takes from the beginning of a text: 128 of 510 symbols by default
    pieces     the most rows of that length that a single text is cut into, which the network reads one by one; what is
               longer than all of them is read as ``keep`` says. ``task.piece_pooling`` combines them
    shortest   words of the shortest text that is read, as spaces divide it
    examples   examples of training, chosen at random; None for all. More examples contain fewer
    balanced   whether ``examples`` are as many of each class
    subset     fixed: all seeds have the same examples of training. by_seed: those of each seed are its own, the same in
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
            yield "keep and pieces are of single texts, and rows have two; drop them"

    def subset_conflicts(self) -> Iterator[str]:
        """Yields why no examples of training are chosen."""
        if (self.balanced or self.subset == "by_seed") and self.examples is None:
            yield "balanced and subset choose some examples of training, and all are read; set examples"

    def balance_conflicts(self) -> Iterator[str]:
        """Yields why as many examples of each class cannot be chosen."""
        column = self.label_columns[LABEL]
        if not self.balanced or self.examples is None:
            return
        if column.classes is None or column.several:
            yield "balanced counts the examples of each class, and these labels are not one class each; drop it"
        elif self.examples % len(column.classes):
            yield f"balanced examples are as many of each of {len(column.classes)} classes; set examples to a multiple"

    @property
    def built_tokenizer(self) -> Tokenizer:
        """The tokenizer, that of the cache where it was learned before. Raises DataError where it cannot be learned."""
        raise NotImplementedError

    @property
    def label_columns(self) -> Mapping[str, LabelColumn]:
        """What the columns of labels hold, by their names, the first one ``label``."""
        raise NotImplementedError

    @property
    def texts(self) -> int:
        """How many texts an example has: 1 or 2."""
        raise NotImplementedError

    @property
    def class_names(self) -> dict[str, list[str]]:
        """The names of the classes of the columns that hold any."""
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
        """Returns how a text becomes a row with the symbols of a tokenizer."""
        if self.texts == 2:
            longest, end = self.length - 3, (RowSymbols.of(tokenizer).separator,)
            return TextRows(tokenizer, longest, end, self.texts)
        piece = self.length - 2
        longest, end = self.pieces * piece, (RowSymbols.of(tokenizer).separator,)
        head = {"head": None, "tail": 0, "head_tail": round(self.head_share * longest)}[self.keep]
        return TextRows(tokenizer, longest, end, self.texts, head, piece if self.pieces > 1 else 0)

    def reading(self) -> dict[str, Plain]:
        """Returns the fields, where they are not the defaults, that decide what is read of longer texts."""
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
    """Texts of an index with their labels, which are turned into symbols when they are read.

    Where there is no test, it reads the split of validation.
    """

    def __init__(self, config: TextExamplesConfig, corpus: IndexedCorpus) -> None:
        self.config, self.corpus, self.seed = config, corpus, 0
        self.places: dict[Split, Sequence[int]] = {}
        self.names = config.class_names
        self.numbers = {name: [*range(len(names))] for name, names in self.names.items()}
        self.content = corpus.fingerprint

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.config.built_tokenizer

    @cached_property
    def rows(self) -> TextRows:
        """How a text becomes a row."""
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
        """Hook: returns what else decides an example, besides the content, the tokenizer and the fields of the base."""
        return []

    def draw(self, seed: int) -> None:
        self.seed = seed if self.config.subset == "by_seed" else 0

    def trained_symbols(self) -> TrainedSymbols:
        return trained_with(self.tokenizer, self.names)

    def read_as(self, trained: TrainedSymbols) -> None:
        self.tokenizer = require_tokenizer(trained.tokenizer)
        for name, names in self.config.class_names.items():
            self.numbers[name] = trained.label_numbers(names, name)
            self.names[name] = trained.names_in(name) or names

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        for ordinal in range(self.count(split)):
            yield self.tokenizer, self.example(split, ordinal).symbols[: -len(self.rows.end)]

    def count(self, split: Split) -> int:
        return len(self._places(self._split(split)))

    @abstractmethod
    def texts_of(self, stored: bytes) -> Sequence[bytes]:
        """Returns the texts of a stored example."""

    @abstractmethod
    def example_of(self, stored: bytes) -> Example:
        """Returns a stored example as symbols and labels."""

    def stored(self, split: Split, ordinal: int) -> bytes:
        """Returns an example as the index holds it."""
        return self._stored(self._split(split), self._place(split, ordinal))

    def example(self, split: Split, ordinal: int) -> Example:
        return self.example_of(self.stored(split, ordinal))

    def texts(self, split: Split) -> Iterator[Document]:
        documents = self.corpus.documents(self._split(split))
        for place in self._places(self._split(split)):
            for text in self.texts_of(documents[place].text):
                yield Document(documents.name(place), text)

    def reading_messages(self) -> list[str]:
        return self.corpus.messages

    def name(self, split: Split, ordinal: int) -> str:
        return self.corpus.documents(self._split(split)).name(self._place(split, ordinal))

    def _stored(self, split: Split, place: int) -> bytes:
        return self.corpus.documents(split)[place].text

    def _place(self, split: Split, ordinal: int) -> int:
        """Returns the place of an example among all that the corpus has of its split."""
        return self._places(self._split(split))[ordinal]

    def _places(self, split: Split) -> Sequence[int]:
        """Returns the places of a split's examples in its part of the corpus. Raises DataError where there are none."""
        if split not in self.places:
            config = self.config
            places: Sequence[int] = range(len(self.corpus.documents(split)))
            if config.shortest > 1:
                places = [place for place in places if self._words(split, place) >= config.shortest]
            if config.examples is not None and split == "train":
                places = sorted(self.chosen(places, config.examples))
            if not places:
                raise DataError(f"no text of {split} has {config.shortest} words; correct data.source.shortest")
            self.places[split] = places
        return self.places[split]

    def _words(self, split: Split, place: int) -> int:
        return min(len(text.split()) for text in self.texts_of(self._stored(split, place)))

    def chosen(self, places: Sequence[int], count: int) -> list[int]:
        """Hook: returns ``count`` places of training in the order in which they are drawn. Raises DataError where there
        are not as many."""
        return self._drawn(places)[:count]

    def _drawn(self, places: Sequence[int]) -> list[int]:
        """Returns places of training in random order."""
        return [places[place] for place in shuffled(len(places), self.seed, 0).tolist()]

    def _split(self, split: Split) -> Split:
        return "validation" if split == "test" and not self.corpus.count("test") else split


class LabelledTexts(StoredTexts):
    """Texts of an index, or pairs of texts, with a class, a number or several classes each."""

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
        """Returns the labels of an example by their columns."""
        columns = self.config.label_columns.items()
        return {
            name: column.read(label, self.numbers.get(name, ()))
            for (name, column), label in zip(columns, stored.labels, strict=True)
        }

    def chosen(self, places: Sequence[int], count: int) -> list[int]:
        """Returns as many places of each class, where examples are balanced. Raises DataError for a class that has not
        as many."""
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
                    f"{len(own):,} texts of train have the label {name!r}, and balanced ones need {each:,} of each; "
                    f"set data.source.examples to at most {len(names) * min(map(len, drawn)):,}"
                )
        return [place for own in drawn for place in own[:each]]


def trained_with(tokenizer: Tokenizer, names: Mapping[str, list[str]]) -> TrainedSymbols:
    """Returns what symbols of a tokenizer and classes of these names, by columns, stand for."""
    further = {name: classes for name, classes in names.items() if name != LABEL}
    return TrainedSymbols(tokenizer.to_dict(), labels=names.get(LABEL), columns=further or None)


def texts_of_training(corpus: IndexedCorpus) -> Iterator[Document]:
    """Yields the texts of training without their labels."""
    for document in corpus.documents("train"):
        for text in StoredText.of(document.text).encoded:
            yield Document(document.name, text)
