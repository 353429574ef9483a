"""Labelled texts by any tokenizer, as [CLS] text [SEP]: what pretrained encoders are fine-tuned on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated

from pydantic import Field

from datamodules.core.documents import Document, Split
from datamodules.core.errors import DataError
from datamodules.core.examples import Example, Examples, ExamplesConfig, TextRows
from datamodules.core.index import IndexedCorpus
from datamodules.core.tokenizers import BytesConfig, Symbols, Tokenizer, TokenizerConfig, key_of
from datamodules.core.trained import TrainedSymbols, require_tokenizer
from datamodules.core.windows import shuffled
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import ClassLabels, LabelledDescription
from lit_transformers.config import Plain, Positive, canonical_hash

__all__ = ["WHOLE", "LabelledTexts", "TextExamplesConfig"]

WHOLE = 1 << 30
"""A size of pieces so large that no text is cut: each has one label."""


class TextExamplesConfig(ExamplesConfig):
    """Base of labelled texts, with the symbols that ``rows`` of the same tokenizer have.

    tokenizer  of the network that is fine-tuned
    length     tokens of the longest row, special symbols included; longer texts lose their end
    shortest   words of the shortest text that is read, as spaces divide it
    examples   examples of training, chosen at random and the same for all seeds; None for all
    """

    tokenizer: TokenizerConfig = BytesConfig()
    length: Annotated[int, Field(ge=8)] = 128
    shortest: Positive = 1
    examples: Positive | None = None

    @property
    def built_tokenizer(self) -> Tokenizer:
        """The tokenizer, that of the cache where it was learned before. Raises DataError where it cannot be learned."""
        raise NotImplementedError

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, in the order of their numbers."""
        raise NotImplementedError

    def measured(self) -> dict[str, Plain]:
        return {"shortest": self.shortest}

    @property
    def longest_row(self) -> int:
        return self.length

    @property
    def description(self) -> LabelledDescription:
        return self.described(TrainedSymbols(self.built_tokenizer.to_dict(), labels=[*self.classes]))

    def text_rows(self, trained: TrainedSymbols) -> TextRows:
        return self.rows_of(require_tokenizer(trained.tokenizer))

    def rows_of(self, tokenizer: Tokenizer) -> TextRows:
        """Returns how a text becomes a row with the symbols of a tokenizer."""
        return TextRows(tokenizer, self.length - 2, (RowSymbols.of(tokenizer).separator,))

    def described(self, trained: TrainedSymbols) -> LabelledDescription:
        symbols = RowSymbols.of(require_tokenizer(trained.tokenizer))
        labels = ClassLabels(count=len(self.classes if trained.labels is None else trained.labels))
        return LabelledDescription(vocabulary=symbols.vocabulary, length=self.length, labels=labels)


class LabelledTexts(Examples):
    """Texts of an index, each behind a byte that is its label, which are turned into symbols when they are read.

    Where there is no test, it reads the split of validation.
    """

    def __init__(self, config: TextExamplesConfig, corpus: IndexedCorpus) -> None:
        self.config, self.corpus = config, corpus
        self.places: dict[Split, Sequence[int]] = {}
        self.labels, self.numbers = [*config.classes], [*range(len(config.classes))]
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
        others = [] if self.labels == [*config.classes] else [self.labels]
        return canonical_hash([*decisive, *others], 32)

    def trained_symbols(self) -> TrainedSymbols:
        return TrainedSymbols(self.tokenizer.to_dict(), labels=self.labels)

    def read_as(self, trained: TrainedSymbols) -> None:
        self.tokenizer = require_tokenizer(trained.tokenizer)
        self.numbers = trained.label_numbers(self.config.classes)
        self.labels = self.labels if trained.labels is None else trained.labels

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        for ordinal in range(self.count(split)):
            yield self.tokenizer, self.example(split, ordinal).symbols[: -len(self.rows.end)]

    def count(self, split: Split) -> int:
        return len(self._places(self._split(split)))

    def example(self, split: Split, ordinal: int) -> Example:
        text = self.corpus.documents(self._split(split))[self._place(split, ordinal)].text
        return Example(self.rows.row(self.tokenizer.encode(text[1:])), self.numbers[text[0]])

    def texts(self, split: Split) -> Iterator[Document]:
        documents = self.corpus.documents(self._split(split))
        for place in self._places(self._split(split)):
            yield Document(documents.name(place), documents[place].text[1:])

    def reading_messages(self) -> list[str]:
        return self.corpus.messages

    def name(self, split: Split, ordinal: int) -> str:
        return self.corpus.documents(self._split(split)).name(self._place(split, ordinal))

    def _place(self, split: Split, ordinal: int) -> int:
        """Returns the place of an example among all that the corpus has of its split."""
        return self._places(self._split(split))[ordinal]

    def _places(self, split: Split) -> Sequence[int]:
        """Returns the places of a split's examples in its part of the corpus. Raises DataError where there are none."""
        if split not in self.places:
            documents, config = self.corpus.documents(split), self.config
            places: Sequence[int] = range(len(documents))
            if config.shortest > 1:
                places = [place for place in places if len(documents[place].text[1:].split()) >= config.shortest]
            if config.examples is not None and split == "train":
                places = [places[place] for place in sorted(shuffled(len(places), 0, 0)[: config.examples].tolist())]
            if not places:
                raise DataError(f"no text of {split} has {config.shortest} words; correct data.source.shortest")
            self.places[split] = places
        return self.places[split]

    def _split(self, split: Split) -> Split:
        return "validation" if split == "test" and not self.corpus.count("test") else split
