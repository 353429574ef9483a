"""Reviews as bytes, labelled with their sentiment: IMDB (Maas et al. 2011), as in arXiv:2011.04006, section 2.2.2."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from io import BytesIO
from pathlib import Path

import numpy as np

from datamodules.core.archives import members
from datamodules.core.documents import Document, Split
from datamodules.core.errors import DataError
from datamodules.core.examples import Example, Examples, ExamplesConfig, TextRows
from datamodules.core.index import IndexedCorpus, IndexedDocuments, Text, index_corpus
from datamodules.core.reading import Member, is_hidden, lines_in, locate, parsed
from datamodules.core.tokenizers import Bytes
from datamodules.core.trained import TrainedSymbols
from datamodules.text.sources import split_by_hash
from lit_transformers.batch import ClassLabels, LabelledDescription
from lit_transformers.config import Fraction, Plain, Positive, canonical_hash, nearest

__all__ = ["Reviews", "ReviewsConfig"]

WHOLE = 1 << 30
"""A size of pieces so large that no review is cut, since each review has one label."""


class ReviewsConfig(ExamplesConfig, kind="reviews"):
    """JSON lines with "text" and "label", in files that name train and test: ``imdb/imdb.train.jsonl.xz``.

    path      a folder, relative to LIT_DATA or to the working folder
    length    the number of bytes of a review that are read, from its beginning: 1,000 to 4,000 in the Long Range Arena
    labels    the classes, in order
    held_out  the fraction of the training reviews for validation, chosen by a hash of their texts; 0: validation reads
              the test reviews, as in the Long Range Arena, because the corpus has no third split
    """

    path: str = "imdb"
    length: Positive = 4_000
    labels: tuple[str, ...] = ("neg", "pos")
    held_out: Fraction = 0.0

    def conflicts(self) -> Iterator[str]:
        if len(set(self.labels)) < len(self.labels) or not 2 <= len(self.labels) <= 256:
            yield f"labels must be 2 to 256 different ones, not {list(self.labels)}"

    @property
    def description(self) -> LabelledDescription:
        return self.described(TrainedSymbols(Bytes().to_dict(), labels=[*self.labels]))

    def text_rows(self, trained: TrainedSymbols) -> TextRows:
        return TextRows(Bytes(), self.length, ())

    def described(self, trained: TrainedSymbols) -> LabelledDescription:
        labels = ClassLabels(count=len(self.labels if trained.labels is None else trained.labels))
        return LabelledDescription(vocabulary=Bytes().vocabulary, length=self.length + 1, labels=labels)

    def protocol(self) -> dict[str, Plain]:
        part = f"{self.held_out:g} of train" if self.held_out else "test, as in the Long Range Arena"
        return {"bytes": self.length, "validation": part}

    def build(self) -> Reviews:
        files = [self._file(split) for split in ("train", "test")]
        stamps = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files]
        texts = (
            self._text(path, member, row, line)
            for path in files
            for member in members(path, path.name)
            for row, line in enumerate(lines_in(member.stream, member.name))
            if line.strip()
        )
        key = ["reviews", list(self.labels), self.held_out, stamps]
        return Reviews(self, index_corpus(key, "", WHOLE, texts))

    def _file(self, split: str) -> Path:
        """Returns the one file of a split. Raises DataError where there is none, or several."""
        folder = locate(self.path)
        paths = sorted(path for path in folder.glob(f"*{split}*.jsonl*") if not is_hidden(path.name))
        if len(paths) != 1:
            number = f"{len(paths)} files" if paths else "no file"
            raise DataError(f"{folder}: {number} called *{split}*.jsonl; correct data.source.path or LIT_DATA")
        return paths[0]

    def _text(self, path: Path, member: Member, row: int, line: bytes) -> Text:
        """Returns a review as it is stored: its class in one byte, then its text."""
        place = f"{member.name}:{row + 1}"
        text, label = _text_and_label(line, place)
        if label not in self.labels:
            raise DataError(f"{place}: the label {label!r} is not in data.source.labels, {list(self.labels)}")
        split: Split = "test"
        if "train" in path.name:
            split = split_by_hash(text, self.held_out, 0.0)
        content = bytes([self.labels.index(label)]) + text
        return Text(member.name, split, BytesIO(content), path, row=row, says=text)


def _text_and_label(line: bytes, place: str) -> tuple[bytes, str]:
    """Returns the text and label of a line of JSON. Raises DataError."""
    record = parsed(line, place)
    if not isinstance(record, dict):
        raise DataError(f"{place}: not a JSON object but {type(record).__name__}")
    for field in ("text", "label"):
        if not isinstance(record.get(field), str):
            raise DataError(f"{place}: no text in the field {field!r}; {nearest(field, record)}")
    try:
        return record["text"].encode(), record["label"]
    except UnicodeEncodeError as error:
        raise DataError(f"{place}: 'text' is not text that UTF-8 can write, at character {error.start}") from None


class Reviews(Examples):
    """Reviews of an index, which are unpacked once and read one at a time."""

    def __init__(self, config: ReviewsConfig, corpus: IndexedCorpus) -> None:
        self.config, self.corpus = config, corpus
        self.content = corpus.fingerprint
        self.labels, self.numbers = [*config.labels], [*range(len(config.labels))]

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        others = [] if self.labels == [*self.config.labels] else [self.labels]
        return canonical_hash([self.content, self.config.length, self.config.held_out, *others], 32)

    def trained_symbols(self) -> TrainedSymbols:
        return TrainedSymbols(Bytes().to_dict(), labels=self.labels)

    def read_as(self, trained: TrainedSymbols) -> None:
        self.numbers = trained.label_numbers(self.config.labels)
        self.labels = self.labels if trained.labels is None else trained.labels

    def count(self, split: Split) -> int:
        return len(self._documents(split))

    def example(self, split: Split, ordinal: int) -> Example:
        text = self._documents(split)[ordinal].text
        symbols = np.frombuffer(text, np.uint8, offset=1)[: self.config.length]
        return Example(symbols.astype(np.int64), self.numbers[text[0]])

    def texts(self, split: Split) -> Iterator[Document]:
        for document in self._documents(split):
            yield Document(document.name, document.text[1:])

    def reading_messages(self) -> list[str]:
        return self.corpus.messages

    def name(self, split: Split, ordinal: int) -> str:
        return self._documents(split).name(ordinal)

    def _documents(self, split: Split) -> IndexedDocuments:
        uses_test = split == "validation" and not self.config.held_out
        return self.corpus.documents("test" if uses_test else split)
