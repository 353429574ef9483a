"""Labelled sentences, pairs of sentences and reviews of public corpora."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from datamodules.core.archives import members
from datamodules.core.documents import Split
from datamodules.core.errors import DataError
from datamodules.core.index import Text, index_corpus
from datamodules.core.reading import lines_in, locate
from datamodules.core.tokenizers import Tokenizer, TokenizerConfig, cached_tokenizer
from datamodules.labelled.stored_texts import LabelColumn, StoredText
from datamodules.labelled.texts import WHOLE, LabelledTexts, TextExamplesConfig
from datamodules.text.sources import SourceConfig
from lit_transformers.batch import LABEL
from lit_transformers.config import Plain

__all__ = ["SentencesConfig"]

Name = Literal["sst2", "cola", "trec", "imdb", "sick"]
STORED = 2
"""Part of the cache key of a corpus. Change it when the stored form of examples changes."""


class CorpusLayout(NamedTuple):
    """The files and columns of a corpus.

    path: the default path. licence: of its texts, if it is stated. files: the file of each split, within the zip if the
    path is a zip. columns: the columns of labels. fields, texts: in lines with tabs the numbers of the columns with
    labels and texts, from 0; fields is None for other lines.
    """

    path: str
    licence: str
    files: dict[Split, str]
    columns: Mapping[str, LabelColumn]
    fields: tuple[int, ...] | None = None
    texts: tuple[int, ...] = (0,)
    has_header: bool = False
    encoding: str = "utf-8"


def one_of(*classes: str) -> dict[str, LabelColumn]:
    """Returns the column of labels for examples with one of these classes, in the order of their numbers."""
    return {LABEL: LabelColumn(classes)}


LAYOUTS: dict[Name, CorpusLayout] = {
    "sst2": CorpusLayout(
        "sst2-glue",
        "none stated (Stanford, research)",
        {"train": "train.tsv.xz", "validation": "dev.tsv.xz"},
        one_of("0", "1"),
        (1,),
        has_header=True,
    ),
    "cola": CorpusLayout(
        "cola/cola_public.zip",
        "fair use in research (arXiv:1805.12471)",
        {
            "train": "cola_public/raw/in_domain_train.tsv",
            "validation": "cola_public/raw/in_domain_dev.tsv",
            "test": "cola_public/raw/out_of_domain_dev.tsv",
        },
        one_of("0", "1"),
        (1,),
        (3,),
    ),
    "trec": CorpusLayout(
        "trec-qc/qc.zip",
        "none stated (University of Illinois, research)",
        {"train": "qc/train.txt", "validation": "qc/test.txt"},
        one_of("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
        encoding="latin-1",
    ),
    "imdb": CorpusLayout(
        "imdb",
        "none stated (Stanford, research)",
        {"train": "imdb.train.jsonl.xz", "validation": "imdb.test.jsonl.xz"},
        one_of("neg", "pos"),
    ),
    "sick": CorpusLayout(
        "sick2014",
        "CC BY-NC-SA 3.0",
        {
            "train": "SICK_train.txt.xz",
            "validation": "SICK_trial.txt.xz",
            "test": "SICK_test_annotated.txt.xz",
        },
        one_of("CONTRADICTION", "ENTAILMENT", "NEUTRAL") | {"relatedness": LabelColumn(None)},
        (4, 3),
        (1, 2),
        has_header=True,
    ),
}


class SentencesConfig(TextExamplesConfig, kind="sentences"):
    """Public corpora of labelled sentences. A row is [CLS] text [SEP], or [CLS] text [SEP] text [SEP] for pairs, with
    the same special symbols as data of the kind ``rows``.

    corpus     sst2: phrases of film reviews by sentiment (of GLUE, arXiv:1804.07461; the labels of its test are not
               public). cola: sentences by acceptability (arXiv:1805.12471); testing reads the out-of-domain sentences.
               trec: questions by one of six kinds of answers (Li and Roth 2002); validation reads the test split, since
               there is no third split. imdb: reviews by sentiment (Maas et al. 2011); validation reads the test split.
               sick: pairs of sentences by entailment, with a number from 1 to 5 in the column ``relatedness`` (Marelli
               et al. 2014)
    path       its folder or zip, relative to LIT_DATA or to the working folder; None: the usual name
    learned_from  the source of texts from which the tokenizer learns its symbols; None for a pretrained tokenizer
    """

    corpus: Name = "sst2"
    path: str | None = None
    learned_from: SourceConfig | None = None

    def conflicts(self) -> Iterator[str]:
        if self.tokenizer.learned and self.learned_from is None:
            yield (
                f"a {self.tokenizer.kind} tokenizer learns its symbols; set learned_from to the source of pretraining, "
                "or tokenizer to pretrained"
            )
        yield from super().conflicts()

    @property
    def built_tokenizer(self) -> Tokenizer:
        return _tokenizer(self.tokenizer, self.learned_from)

    @property
    def licences(self) -> Mapping[str, str]:
        return {self.corpus: LAYOUTS[self.corpus].licence}

    @property
    def label_columns(self) -> Mapping[str, LabelColumn]:
        return LAYOUTS[self.corpus].columns

    @property
    def texts(self) -> int:
        return len(LAYOUTS[self.corpus].texts)

    def protocol(self) -> dict[str, Plain]:
        return {
            "corpus": self.corpus,
            "length": self.length,
            "shortest": self.shortest,
            "examples of training": self.examples,
            **self.reading(),
        }

    def build(self) -> LabelledTexts:
        layout = LAYOUTS[self.corpus]
        place = locate(self.path or layout.path)
        files = [place] if place.is_file() else [place / name for name in layout.files.values()]
        try:
            stamps = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
        except OSError as error:
            raise DataError(f"{error.filename}: no such file; correct data.source.path or LIT_DATA") from None
        texts = (text for split, name in layout.files.items() for text in _texts(layout, place, name, split))
        return LabelledTexts(self, index_corpus(["sentences", STORED, self.corpus, stamps], "", WHOLE, texts))


@cache
def _tokenizer(config: TokenizerConfig, learned_from: SourceConfig | None) -> Tokenizer:
    if learned_from is None:
        return cached_tokenizer(config, [], "")
    corpus = learned_from.build()
    return cached_tokenizer(config, corpus.documents("train"), corpus.fingerprint)


def _texts(layout: CorpusLayout, place: Path, name: str, split: Split) -> Iterator[Text]:
    """Yields the examples of a file for the index. Raises DataError."""
    path = place if place.is_file() else place / name
    for row, line in enumerate(_lines(path, name, layout)):
        if not line.strip() or (layout.has_header and row == 0):
            continue
        try:
            cells, texts = _labels_and_texts(layout, line)
            pairs = zip(layout.columns.values(), cells, strict=True)
            stored = StoredText([column.stored([cell]) for column, cell in pairs], texts)
            entry = stored.entry(name, split, path, row)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            place_in_file = f"{path.name}/{name}:{row + 1}"
            raise DataError(
                f"{place_in_file}: {_required(layout)}; correct data.source.corpus or data.source.path"
            ) from None
        yield entry


def _required(layout: CorpusLayout) -> str:
    """Returns the message for a line without the texts and label of its corpus."""
    noun = "no text" if len(layout.texts) == 1 else "no two texts"
    return f"{noun} with one of the labels {', '.join(layout.columns[LABEL].classes or ())}"


def _labels_and_texts(layout: CorpusLayout, line: str) -> tuple[Sequence[str], list[str]]:
    """Returns the labels and the texts of a line: JSON, columns, or a label, a colon and a finer label before the
    text."""
    if layout.fields:
        columns = line.rstrip("\r\n").split("\t")
        labels, texts = ([columns[field] for field in fields] for fields in (layout.fields, layout.texts))
    elif line.startswith("{"):
        record = json.loads(line)
        labels, texts = [record["label"]], [record["text"]]
    else:
        label, text = line.split(":", 1)
        labels, texts = [label], [text.partition(" ")[2]]
    return labels, [text.strip() for text in texts]


def _lines(path: Path, name: str, layout: CorpusLayout) -> Iterator[str]:
    """Yields the lines of a file, or of a file in a zip. Raises DataError if it is missing or damaged."""
    is_there = False
    for member in members(path, name, lambda stored: stored == name):
        for number, line in enumerate(lines_in(member.stream, member.name), 1):
            try:
                yield line.decode(layout.encoding)
            except UnicodeDecodeError as error:
                place = f"{member.name}:{number}: byte {error.start} of the line"
                raise DataError(f"{place} is not {layout.encoding}; correct data.source.path") from None
        is_there = True
    if not is_there:
        raise DataError(f"{path}: holds no {name}; fetch it again or correct data.source.corpus")
