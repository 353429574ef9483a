"""Labelled texts from columns of tables or fields of nested records: TSV, CSV, JSON lines, JSON, parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from datamodules.core.errors import DataError
from datamodules.core.index import IndexedCorpus, Text
from datamodules.core.tokenizers import Tokenizer, cached_tokenizer
from datamodules.labelled.stored_texts import LabelColumn, StoredText
from datamodules.labelled.texts import READ_LATER, LabelledTexts, TextExamplesConfig, texts_of_training
from datamodules.text.nested_records import COLUMNS, Column, FileRecord, RecordsConfig, texts_at, value_at
from lit_transformers.batch import LABEL
from lit_transformers.config import Plain

__all__ = ["LabelledRecordsConfig"]

LATER = (*READ_LATER, "licence")
"""The fields that do not change the stored texts, only how they are read."""
STORED = 2
"""Part of the cache key of a corpus. Change it when the stored form of examples changes."""

Classes = tuple[str, ...] | Literal["numbers"]
"""The classes of a column of labels, in order and as written in the files; or "numbers"."""


class LabelledRecordsConfig(TextExamplesConfig, RecordsConfig, kind="labelled_texts"):
    """Labelled texts, or pairs of texts, in a table or records: a file, a folder or a tar. A tokenizer that learns its
    symbols learns them from the training split. Without a split test, testing reads validation.

    text     the column of the text: its name, its number from 1, or a JMESPath in nested records; the texts of a list
             are joined with spaces
    second   the column of the second text of a pair; None: an example is one text
    label    the column of the label
    labels   the classes, in order and as written in the files; or numbers, for regression
    columns  further columns of labels, by name, each with its classes or numbers
    divided_by  the separator of classes in a cell, for texts with any number of classes; an empty cell has none, and in
             JSON classes are a list. None: a text has one class
    licence  the licence of the texts, which exported weights name; None: unknown
    """

    labels: Classes
    text: Column = "text"
    second: Column | None = None
    label: Column = "label"
    columns: dict[str, Classes] = field(default_factory=dict)
    divided_by: Annotated[str, Field(min_length=1)] | None = None
    licence: str | None = None

    def conflicts(self) -> Iterator[str]:
        second = {} if self.second is None else {"second": self.second}
        yield from self.conflicts_of(text=self.text, label=self.label, **second)
        for name, classes in {"labels": self.labels, **self.columns}.items():
            if classes != "numbers" and (len({*classes}) < len(classes) or len(classes) < 2):
                yield f"{name} need 2 or more different classes, not {list(classes)}"
        for name in self.columns:
            if name == LABEL or not name.isidentifier():
                yield f"columns: {name!r} cannot be the name of a further column; rename it in the files"
        if self.divided_by is not None and self.labels == "numbers":
            yield "divided_by divides classes, but labels are numbers; drop it"
        yield from super().conflicts()

    @property
    def licences(self) -> Mapping[str, str]:
        return {} if self.licence is None else {Path(self.path).name: self.licence}

    @property
    def label_columns(self) -> Mapping[str, LabelColumn]:
        columns = {LABEL: self.labels, **self.columns}
        several = self.divided_by is not None
        return {
            name: LabelColumn(None if classes == "numbers" else tuple(classes), several and name == LABEL)
            for name, classes in columns.items()
        }

    @property
    def texts(self) -> int:
        return 1 if self.second is None else 2

    @property
    def built_tokenizer(self) -> Tokenizer:
        if not self.tokenizer.learned:
            return cached_tokenizer(self.tokenizer, [], "")
        corpus = self.corpus()
        return cached_tokenizer(self.tokenizer, texts_of_training(corpus), f"{corpus.fingerprint} texts")

    def protocol(self) -> dict[str, Plain]:
        shown = {"length": self.length, "shortest": self.shortest, "examples of training": self.examples}
        return shown | self.reading()

    def corpus(self) -> IndexedCorpus:
        """Returns the corpus of the examples. Raises DataError."""
        decisive = {name: value for name, value in self.to_dict().items() if name not in LATER}
        texts = (self.text,) if self.second is None else (self.text, self.second)
        labels = () if self.divided_by else (self.label,)
        corpus = self.indexed([STORED, decisive], (*texts, *labels, *self.columns), self._example)
        for split in ("train", "validation"):
            if not corpus.count(split):
                raise DataError(
                    f"data.source: no example in the split {split!r}; correct data.source.path or data.source.splits"
                )
        return corpus

    def build(self) -> LabelledTexts:
        return LabelledTexts(self, self.corpus())

    def _example(self, record: FileRecord, values: list[list[str]], path: Path) -> Text:
        """Returns an example for the index. Raises DataError for a label that is not allowed."""
        texts = [" ".join(value) for value in values[: self.texts]]
        cells = values[self.texts :]
        if self.divided_by is not None:
            cells = [self._classes(record, self.divided_by), *cells]
        try:
            labels = [column.stored(cell) for column, cell in zip(self.label_columns.values(), cells, strict=True)]
        except ValueError as error:
            raise DataError(f"{record.place}: {error}") from None
        try:
            return StoredText(labels, texts).entry(
                record.origin, self.split_of(record, "\t".join(texts)), path, record.row
            )
        except UnicodeEncodeError:
            raise DataError(f"{record.place}: holds a character that UTF-8 cannot write") from None

    def _classes(self, record: FileRecord, divided_by: str) -> list[str]:
        """Returns the names of the classes of a record: the items of a list, or the parts of a cell."""
        value = value_at(record.values, self.label, record.place, COLUMNS)
        if value in ([], ""):
            return []
        cells = texts_at(record.values, self.label, record.place)
        parts = cells if isinstance(value, list) else cells[0].split(divided_by)
        return [part.strip() for part in parts if part.strip()]
