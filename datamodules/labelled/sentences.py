"""Labelled sentences and reviews of public corpora, by any tokenizer: what pretrained encoders are fine-tuned on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from pydantic import Field

from datamodules.core.documents import Split
from datamodules.core.errors import DataError
from datamodules.core.examples import Example, Examples, ExamplesConfig
from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.core.reading import locate, members
from datamodules.core.tokenizers import BytesConfig, Tokenizer, TokenizerConfig, cached_tokenizer
from datamodules.core.windows import shuffled
from datamodules.rows.symbols import RowSymbols
from datamodules.text.sources import SourceConfig
from lit_transformers.batch import ClassLabels, LabelledDescription
from lit_transformers.config import Plain, Positive, canonical_hash

__all__ = ["LabelledSentences", "SentencesConfig"]

Name = Literal["sst2", "cola", "trec", "imdb"]
WHOLE = 1 << 30
"""A size of pieces so large that no text is cut: each has one label."""


class CorpusLayout(NamedTuple):
    """Where a corpus has its examples.

    path: by default. files: that of each split; of a zip, the files in it. labels: the classes, in order. fields: the
    columns of a label and of a text, where tabs divide lines; None for other lines.
    """

    path: str
    files: dict[Split, str]
    labels: tuple[str, ...]
    fields: tuple[int, int] | None = None
    has_header: bool = False
    encoding: str = "utf-8"


LAYOUTS: dict[Name, CorpusLayout] = {
    "sst2": CorpusLayout(
        "sst2-glue", {"train": "train.tsv.xz", "validation": "dev.tsv.xz"}, ("0", "1"), (1, 0), has_header=True
    ),
    "cola": CorpusLayout(
        "cola/cola_public.zip",
        {
            "train": "cola_public/raw/in_domain_train.tsv",
            "validation": "cola_public/raw/in_domain_dev.tsv",
            "test": "cola_public/raw/out_of_domain_dev.tsv",
        },
        ("0", "1"),
        (1, 3),
    ),
    "trec": CorpusLayout(
        "trec-qc/qc.zip",
        {"train": "qc/train.txt", "validation": "qc/test.txt"},
        ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
        encoding="latin-1",
    ),
    "imdb": CorpusLayout("imdb", {"train": "imdb.train.jsonl.xz", "validation": "imdb.test.jsonl.xz"}, ("neg", "pos")),
}


class SentencesConfig(ExamplesConfig, kind="sentences"):
    """The text of each example as [CLS] text [SEP], with the symbols that ``rows`` of the same tokenizer have.

    corpus     sst2: phrases of film reviews by sentiment (of GLUE, arXiv:1804.07461; the labels of its test are not
               public). cola: sentences by acceptability (arXiv:1805.12471); testing reads those of other sources. trec:
               questions by one of six kinds of answers (Li and Roth 2002); validation reads the test, for there is no
               third split. imdb: reviews by sentiment (Maas et al. 2011), likewise
    path       its folder or zip, relative to LIT_DATA or to the working folder; None for that of its usual name
    tokenizer  of the network that is fine-tuned
    learned_from  the source of text that a learned tokenizer was learned from; None for one that learns nothing
    length     tokens of the longest row, special symbols included; longer texts lose their end
    shortest   words of the shortest text that is read, as spaces divide it
    examples   examples of training, chosen at random and the same for all seeds; None for all
    """

    corpus: Name = "sst2"
    path: str | None = None
    tokenizer: TokenizerConfig = BytesConfig()
    learned_from: SourceConfig | None = None
    length: Annotated[int, Field(ge=8)] = 128
    shortest: Positive = 1
    examples: Positive | None = None

    def conflicts(self) -> Iterator[str]:
        if self.tokenizer.learned and self.learned_from is None:
            yield (
                f"a {self.tokenizer.kind} tokenizer learns its symbols; set learned_from to the source of pretraining, "
                "or tokenizer to pretrained"
            )

    @property
    def symbols(self) -> RowSymbols:
        """The symbols of rows. Raises DataError where the tokenizer cannot be read or learned."""
        return RowSymbols.of(self.built_tokenizer)

    @property
    def built_tokenizer(self) -> Tokenizer:
        """The tokenizer, that of the cache where it was learned before."""
        return _tokenizer(self.tokenizer, self.learned_from)

    @property
    def description(self) -> LabelledDescription:
        labels = ClassLabels(count=len(LAYOUTS[self.corpus].labels))
        return LabelledDescription(vocabulary=self.symbols.vocabulary, length=self.length, labels=labels)

    def protocol(self) -> dict[str, Plain]:
        return {
            "corpus": self.corpus,
            "length": self.length,
            "shortest": self.shortest,
            "examples of training": self.examples,
        }

    def build(self) -> LabelledSentences:
        layout = LAYOUTS[self.corpus]
        place = locate(self.path or layout.path)
        files = [place] if place.is_file() else [place / name for name in layout.files.values()]
        try:
            stamps = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
        except OSError as error:
            raise DataError(f"{error.filename}: no such file; correct data.source.path or LIT_DATA") from None
        texts = (text for split, name in layout.files.items() for text in _texts(layout, place, name, split))
        return LabelledSentences(self, index_corpus(["sentences", self.corpus, stamps], "", WHOLE, texts))


@cache
def _tokenizer(config: TokenizerConfig, learned_from: SourceConfig | None) -> Tokenizer:
    if learned_from is None:
        return cached_tokenizer(config, [], "")
    corpus = learned_from.build()
    return cached_tokenizer(config, corpus.documents("train"), corpus.fingerprint)


def _texts(layout: CorpusLayout, place: Path, name: str, split: Split) -> Iterator[Text]:
    """Yields the examples of a file as they are stored: the class in one byte, then the text. Raises DataError."""
    path = place if place.is_file() else place / name
    for row, line in enumerate(_lines(path, name, layout)):
        if not line.strip() or (layout.has_header and row == 0):
            continue
        try:
            label, text = _label_and_text(layout, line)
            content = bytes([layout.labels.index(label)]) + text.encode()
        except (ValueError, KeyError, IndexError, TypeError):
            reason = f"no text with one of the labels {', '.join(layout.labels)}"
            line_name = f"{path.name}/{name}:{row + 1}"
            raise DataError(f"{line_name}: {reason}; correct data.source.corpus or data.source.path") from None
        yield Text(name, split, BytesIO(content), path, row=row)


def _label_and_text(layout: CorpusLayout, line: str) -> tuple[str, str]:
    """Returns the label and the text of a line: of JSON, of columns, or of a label before a colon and a finer one."""
    if layout.fields:
        columns = line.rstrip("\r\n").split("\t")
        label, text = (columns[field] for field in layout.fields)
    elif line.startswith("{"):
        record = json.loads(line)
        label, text = record["label"], record["text"]
    else:
        label, text = line.split(":", 1)
        text = text.partition(" ")[2]
    return label, text.strip()


def _lines(path: Path, name: str, layout: CorpusLayout) -> Iterator[str]:
    """Yields the lines of a file, or of one in a zip. Raises DataError where there is none or it is damaged."""
    if path.suffix != ".zip":
        for member in members(path, name):
            yield from TextIOWrapper(member.stream, layout.encoding)
        return
    try:
        with ZipFile(path) as archive, archive.open(name) as stream:
            yield from TextIOWrapper(stream, layout.encoding)
    except (BadZipFile, KeyError) as error:
        raise DataError(f"{path}: {str(error).strip(chr(34))}; fetch it again or correct data.source.corpus") from None


class LabelledSentences(Examples):
    """Texts of an index, which are turned into symbols when they are read."""

    def __init__(self, config: SentencesConfig, corpus: IndexedCorpus) -> None:
        self.config, self.corpus = config, corpus
        self.places: dict[Split, Sequence[int]] = {}
        self.tokenizer, self.separator = config.built_tokenizer, config.symbols.separator
        tokenizer = canonical_hash(self.tokenizer.to_dict(), 32)
        self.fingerprint = canonical_hash(
            [corpus.fingerprint, tokenizer, config.length, config.shortest, config.examples], 32
        )

    def count(self, split: Split) -> int:
        return len(self._places(self._split(split)))

    def example(self, split: Split, ordinal: int) -> Example:
        text = self.corpus.documents(self._split(split))[self._place(split, ordinal)].text
        symbols = self.tokenizer.encode(text[1:])[: self.config.length - 2].astype(np.int64)
        return Example(np.append(symbols, self.separator), text[0])

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
        """Returns the split that is read: that of validation where there is no third one."""
        return split if split in LAYOUTS[self.config.corpus].files else "validation"
