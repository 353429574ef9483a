"""Questions with several choices, one of them right: from records, or from the questions and paragraphs of SQuAD."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from datamodules.core.documents import Document, Split
from datamodules.core.errors import DataError
from datamodules.core.examples import Example
from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.core.learning import TextsWithin
from datamodules.core.tokenizers import Tokenizer, cached_tokenizer
from datamodules.core.trained import TrainedSymbols, require_tokenizer
from datamodules.labelled.labelled_records import LATER
from datamodules.labelled.texts import WHOLE, StoredTexts, TextExamplesConfig
from datamodules.rows.symbols import RowSymbols
from datamodules.text.nested_records import Column, FileRecord, RecordsConfig
from datamodules.text.sources import Listed, files_of, nothing_left, split_by_hash, stamps
from datamodules.text.squad import SquadQuestion, is_json, squad_entries
from lit_transformers.batch import ChoiceLabels, LabelledDescription
from lit_transformers.config import Fraction, Plain

__all__ = ["ChoiceExamplesConfig", "ChoiceRecordsConfig", "ChoiceTexts", "SquadChoicesConfig"]

Most = Annotated[int, Field(ge=2, le=256)]


class ChoiceExamplesConfig(TextExamplesConfig):
    """Base of questions with choices. Each choice is a row [CLS] question [SEP] choice [SEP]; if the row is too long,
    the longer of the two texts loses its end. A tokenizer that learns its symbols learns them from the training split.
    """

    def corpus(self) -> IndexedCorpus:
        """Returns the corpus of the examples, each stored as ``choice_text``. Raises DataError."""
        raise NotImplementedError

    @property
    def built_tokenizer(self) -> Tokenizer:
        if not self.tokenizer.learned:
            return cached_tokenizer(self.tokenizer, [], "")
        corpus = self.corpus()
        return cached_tokenizer(
            self.tokenizer, TextsWithin(corpus.documents("train"), _texts_of), f"{corpus.fingerprint} texts"
        )

    @property
    def class_names(self) -> dict[str, list[str]]:
        """An empty mapping: choices have no names."""
        return {}

    @property
    def texts(self) -> int:
        return 2

    def conflicts(self) -> Iterator[str]:
        yield from self.subset_conflicts()
        if self.balanced or self.keep != "head" or self.pieces > 1:
            yield "balanced, keep and pieces apply to texts with one class each; drop them"

    def described(self, trained: TrainedSymbols) -> LabelledDescription:
        symbols = RowSymbols.of(require_tokenizer(trained.tokenizer))
        labels = ChoiceLabels(count=self.most_rows)
        return LabelledDescription(vocabulary=symbols.vocabulary, length=self.length, labels=labels, segments=2)

    def protocol(self) -> dict[str, Plain]:
        return {"length": self.length, "shortest": self.shortest, "examples of training": self.examples}

    def build(self) -> ChoiceTexts:
        return ChoiceTexts(self, self.corpus())


class ChoiceRecordsConfig(ChoiceExamplesConfig, RecordsConfig, kind="choices"):
    """Records of questions with choices, in a file, a folder or a tar. Without a split test, testing reads validation.

    question  the column of the question: its name, its number from 1, or a JMESPath in nested records; None: choices
              follow the context directly
    choices   the column of the list of choices
    answer    the column of the right choice: its number, or a letter from A on
    context   the column of a text that is read before the question; None: no context
    first     the number of the first choice in the column answer
    most      the most choices of an example
    """

    question: Column | None = "question"
    choices: Column = "choices"
    answer: Column = "answer"
    context: Column | None = None
    first: Literal[0, 1] = 0
    most: Most = 4

    def conflicts(self) -> Iterator[str]:
        named = {"question": self.question, "context": self.context}
        read = {name: column for name, column in named.items() if column is not None}
        yield from super().conflicts()
        yield from self.conflicts_of(choices=self.choices, answer=self.answer, **read)
        if not read:
            yield "examples need a question or a context; set question"

    @property
    def most_rows(self) -> int:
        return self.most

    def corpus(self) -> IndexedCorpus:
        decisive = {name: value for name, value in self.to_dict().items() if name not in LATER}
        texts = [column for column in (self.context, self.question) if column is not None]
        corpus = self.indexed(decisive, (self.answer, self.choices, *texts), self._example)
        require_splits(corpus)
        return corpus

    def _example(self, record: FileRecord, values: list[list[str]], path: Path) -> Text:
        """Returns an example for the index. Raises DataError for an answer that is not one of the choices."""
        [answer, *_], choices, *before = values
        question = " ".join(text for column in before for text in column)
        if not 2 <= len(choices) <= self.most:
            reason = f"{len(choices)} choices, but an example has 2 to {self.most}"
            raise DataError(f"{record.place}: {reason}; correct it, or data.source.most")
        answer = answer.strip()
        is_letter = len(answer) == 1 and answer.isalpha()
        right = ord(answer.upper()) - ord("A") if is_letter else int(answer) - self.first if answer.isdecimal() else -1
        if not 0 <= right < len(choices):
            reason = f"the answer {answer!r} names none of the {len(choices)} choices"
            raise DataError(f"{record.place}: {reason}; correct it, data.source.answer or data.source.first")
        return choice_text(
            record.origin, self.split_of(record, question), record.row, right, [question, *choices], path
        )


class SquadChoicesConfig(ChoiceExamplesConfig, kind="squad_choices"):
    """Choose the paragraph of a SQuAD question (arXiv:1606.05250) among paragraphs of the same split. The other
    paragraphs are drawn at random, from a seed that depends only on the question and its paragraph.

    path        a .json file, plain or compressed, or a folder of them, relative to LIT_DATA or to the working folder
    choices     the number of choices of each question
    validation  the fraction of paragraphs in validation, by a hash of their text
    test        the fraction of paragraphs in test
    """

    path: str
    choices: Most = 4
    validation: Fraction = 0.2
    test: Fraction = 0.1

    def conflicts(self) -> Iterator[str]:
        yield from super().conflicts()
        yield from nothing_left(self.validation, self.test)

    @property
    def most_rows(self) -> int:
        return self.choices

    def corpus(self) -> IndexedCorpus:
        decisive = {name: value for name, value in self.to_dict().items() if name not in LATER}
        files = files_of(self.path, is_json, left_out := Counter[str]())
        texts = self._texts(files, left_out)
        corpus = index_corpus(["squad_choices", decisive, stamps(files)], "", WHOLE, texts, left_out)
        require_splits(corpus)
        return corpus

    def _texts(self, files: list[Listed], left_out: Counter[str]) -> Iterator[Text]:
        entries = [*squad_entries(files, left_out)]
        paragraphs: dict[Split, dict[str, None]] = defaultdict(dict)
        for entry in entries:
            paragraphs[self._split(entry.question)][entry.question.context] = None
        for path, origin, row, question in entries:
            split, chance = self._split(question), Random(f"{question.question} {question.context}")
            others = [context for context in paragraphs[split] if context != question.context]
            if len(others) < self.choices - 1:
                reason = f"the split {split} has {len(others) + 1} paragraphs, too few for {self.choices} choices"
                raise DataError(f"data.source.choices: {reason}; lower it, or change the fractions of splits")
            choices = sorted(others, key=lambda _: chance.random())[: self.choices - 1]
            right = int(chance.random() * self.choices)
            choices.insert(right, question.context)
            yield choice_text(origin, split, row, right, [question.question, *choices], path)

    def _split(self, entry: SquadQuestion) -> Split:
        return split_by_hash(entry.context, self.validation, self.test)


def choice_text(origin: str, split: Split, row: int, right: int, texts: list[str], path: Path) -> Text:
    """Returns an example as a text for the index: one byte with the number of the right choice, then the question and
    the choices as JSON. Raises DataError if UTF-8 cannot write it."""
    try:
        content = bytes([right]) + json.dumps(texts, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise DataError(f"{origin}:{row + 1}: holds a character that UTF-8 cannot write") from None
    return Text(origin, split, BytesIO(content), path, row=row, says=content[1:])


def require_splits(corpus: IndexedCorpus) -> None:
    """Raises DataError if the split train or validation has no example."""
    for split in ("train", "validation"):
        if not corpus.count(split):
            reason = f"no example in the split {split!r}"
            raise DataError(f"data.source: {reason}; correct data.source.path or data.source.splits")


class ChoiceTexts(StoredTexts):
    """Questions with their choices, encoded when they are read."""

    def texts_of(self, stored: bytes) -> Sequence[bytes]:
        return [text.encode() for text in json.loads(stored[1:])]

    def example_of(self, stored: bytes) -> Example:
        question, *choices = map(self.tokenizer.encode, self.texts_of(stored))
        rows, places = [], []
        start = 0
        for choice in choices:
            symbols, second = self.rows.row(question, choice)
            assert second is not None
            places.append((start, start + second, start + len(symbols)))
            start += len(symbols)
            rows.append(symbols)
        return Example(np.concatenate(rows), stored[0], choices=tuple(places))


def _texts_of(document: Document) -> Iterator[Document]:
    """Yields the question and the choices of a stored example."""
    for text in json.loads(document.text[1:]):
        yield Document(document.name, text.encode())
