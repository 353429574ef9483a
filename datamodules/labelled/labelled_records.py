"""Texts with a label each from columns of tables and fields of nested records: TSV, CSV, JSON lines, JSON, parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path

from datamodules.core.documents import Document
from datamodules.core.errors import DataError
from datamodules.core.index import IndexedCorpus, Text
from datamodules.core.tokenizers import Tokenizer, cached_tokenizer
from datamodules.labelled.texts import LabelledTexts, TextExamplesConfig
from datamodules.text.nested_records import Column, FileRecord, RecordsConfig
from lit_transformers.config import Plain, nearest

__all__ = ["LabelledRecordsConfig"]

LATER = ("licence", "tokenizer", "length", "keep", "head_share", "pieces", "shortest", "examples")
"""The fields that decide what is read of a stored text."""


class LabelledRecordsConfig(TextExamplesConfig, RecordsConfig, kind="labelled_texts"):
    """Two columns of a table, or two fields of records, in a file, a folder or a tar: a text and its label. A tokenizer
    that learns its symbols learns them from the texts of training. Without a split test, testing reads validation.

    text    a column by its name, or its number from 1, or a JMESPath in nested records; the texts of a list are joined
            with spaces
    label   the column of its label, likewise
    labels  the classes, in order, as they are written in the files
    licence of the texts, which exported weights name; None where it is not known
    """

    labels: tuple[str, ...]
    licence: str | None = None
    text: Column = "text"
    label: Column = "label"

    def conflicts(self) -> Iterator[str]:
        yield from self.conflicts_of(text=self.text, label=self.label)
        if len({*self.labels}) < len(self.labels) or not 2 <= len(self.labels) <= 256:
            yield f"labels are 2 to 256 different ones, not {list(self.labels)}"

    @property
    def licences(self) -> Mapping[str, str]:
        return {} if self.licence is None else {Path(self.path).name: self.licence}

    @property
    def classes(self) -> tuple[str, ...]:
        return self.labels

    @property
    def built_tokenizer(self) -> Tokenizer:
        if not self.tokenizer.learned:
            return cached_tokenizer(self.tokenizer, [], "")
        corpus = self.corpus()
        return cached_tokenizer(self.tokenizer, _training_texts(corpus), f"{corpus.fingerprint} texts")

    def protocol(self) -> dict[str, Plain]:
        shown = {"length": self.length, "shortest": self.shortest, "examples of training": self.examples}
        return shown | self.reading()

    def corpus(self) -> IndexedCorpus:
        """Returns the corpus of the examples, each its label in one byte, then its text. Raises DataError."""
        decisive = {name: value for name, value in self.to_dict().items() if name not in LATER}
        corpus = self.indexed(decisive, (self.text, self.label), self._example)
        for split in ("train", "validation"):
            if not corpus.count(split):
                raise DataError(
                    f"data.source: no example in the split {split!r}; correct data.source.path or data.source.splits"
                )
        return corpus

    def build(self) -> LabelledTexts:
        return LabelledTexts(self, self.corpus())

    def _example(self, record: FileRecord, values: list[list[str]], path: Path) -> Text:
        """Returns an example as it is stored. Raises DataError for a label that is none."""
        text, label = " ".join(values[0]), " ".join(values[1]).strip()
        if label not in self.labels:
            hint = nearest(label, self.labels)
            raise DataError(f"{record.place}: the label {label!r} is none of data.source.labels; {hint}")
        try:
            content = bytes([self.labels.index(label)]) + text.encode()
        except UnicodeEncodeError:
            raise DataError(f"{record.place}: holds a character that UTF-8 cannot write") from None
        split = self.split_of(record, text)
        return Text(record.origin, split, BytesIO(content), path, row=record.row, says=content[1:])


def _training_texts(corpus: IndexedCorpus) -> Iterator[Document]:
    """Yields the texts of training without their labels."""
    for document in corpus.documents("train"):
        yield Document(document.name, document.text[1:])
