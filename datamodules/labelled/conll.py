"""Tagged sentences from files with one word on each line: the columns of CoNLL's shared tasks, and CoNLL-U."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from datamodules.core.archives import members
from datamodules.core.documents import SPLITS, Document, Split
from datamodules.core.errors import DataError
from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.core.learning import TextsWithin
from datamodules.core.reading import COMPRESSIONS, Member, damage, format_of, text_lines
from datamodules.core.tokenizers import Tokenizer, cached_tokenizer
from datamodules.core.trained import TrainedSymbols, require_tokenizer
from datamodules.labelled.tagged_sentences import TaggedSentences, TagInventory, inventory_of, stored_words
from datamodules.labelled.texts import READ_LATER, WHOLE, TextExamplesConfig
from datamodules.rows.symbols import RowSymbols
from datamodules.text.sources import files_of, named_split, nothing_left, split_by_hash, stamps
from lit_transformers.batch import LABEL, LabelledDescription, WordTagLabels
from lit_transformers.config import Fraction, Plain, nearest
from lit_transformers.entities import Scheme, scheme_of

__all__ = ["ConllConfig"]

Column = str | Annotated[int, Field(ge=1)]
"""A column: its name, or its number from 1."""

CONLLU = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
"""The columns of CoNLL-U (universaldependencies.org/format.html)."""
CONLLU_SUFFIXES = {".conllu", ".conllup"}
SUFFIXES = CONLLU_SUFFIXES | {".conll", ".iob", ".iob1", ".iob2", ".bio", ".txt", ".tsv"}
NAMED_COLUMNS = "# global.columns ="
"""The start of a line that names the columns (universaldependencies.org/ext-format.html)."""
NO_WORDS = "multiword tokens and empty nodes omitted, since they are not words"
BOUNDARY, BOUNDARIES = "-DOCSTART-", "lines -DOCSTART- omitted"
LATER = (*READ_LATER, "labels", "scheme")
"""The fields that do not change the stored sentences, only how they are read."""


class ConllConfig(TextExamplesConfig, kind="conll"):
    """Tagged sentences: a word and its columns on each line, and an empty line after each sentence. Reads a file, or
    the files of a folder or archive with a suffix .conll, .conllu, .conllup, .iob, .bio, .txt or .tsv, plain or
    compressed. Tabs separate columns; on a line without tabs, spaces do. Without a split test, testing reads
    validation.

    A row is [CLS], the pieces of all words, [SEP]. Words are tokenized within their sentence, with the space before
    them if the tokenizer keeps spaces. A word without pieces becomes the unknown symbol. Words beyond ``length`` are
    cut from the row; they do not train, and count as wrong in measures.

    In CoNLL-U (.conllu, .conllup), multiword tokens (1-2) and empty nodes (1.1) are omitted and counted.
    path     relative to LIT_DATA or to the working folder
    word     the column of words: its number from 1, or its name in CoNLL-U or in a line "# global.columns ="; None:
             FORM in CoNLL-U, else the first column
    label    the column of tags: its number or name, as for word; None: UPOS in CoNLL-U, else the last column
    labels   the tags, in order; (): all tags of the files, O first and the others sorted
    scheme   the scheme by which tags spell entities, which are then scored as by seqeval's strict mode; None: IOB2,
             IOBES or BILOU if all tags are O or a prefix of that scheme with a type, else no entities. A tag that the
             scheme does not allow at its place is an error
    comment  the start of comment lines; None: # in CoNLL-U, and on lines without a tab in files with tabs
    train_files, validation_files, test_files
             the files of each split by their names in path, with or without the suffix of a compression; (): files
             whose names or folders name the split, or as ``splits`` says
    splits   folders: by the folder or file names (train, validation, test). hash: by a hash of the words of a sentence,
             so that equal sentences share a split
    validation, test
             the fractions of validation and test if splits is hash
    """

    path: str
    word: Column | None = None
    label: Column | None = None
    labels: tuple[str, ...] = ()
    scheme: Scheme | Literal["none"] | None = None
    comment: str | None = None
    train_files: tuple[str, ...] = ()
    validation_files: tuple[str, ...] = ()
    test_files: tuple[str, ...] = ()
    splits: Literal["folders", "hash"] = "folders"
    validation: Fraction = 0.05
    test: Fraction = 0.05

    def conflicts(self) -> Iterator[str]:
        yield from nothing_left(self.validation, self.test)
        yield from self.subset_conflicts()
        if self.balanced:
            yield "balanced needs one class for each example, but each word of a sentence has a tag; drop it"
        if self.keep != "head" or self.pieces > 1:
            yield "keep and pieces apply to texts with one label, but each word of a sentence has a tag; drop them"
        if len({*self.labels}) < len(self.labels) or len(self.labels) == 1:
            yield f"labels need 2 or more different tags, not {list(self.labels)}"
        if any(self.files.values()):
            if not self.train_files or not self.validation_files:
                yield "train_files and validation_files are needed together; name both, or none"
            if self.splits == "hash":
                yield "splits=hash divides all files, but files of splits are named; drop one of them"

    @property
    def files(self) -> Mapping[Split, tuple[str, ...]]:
        """The names of the files of each split; empty if they are not given."""
        return {"train": self.train_files, "validation": self.validation_files, "test": self.test_files}

    @property
    def built_tokenizer(self) -> Tokenizer:
        if not self.tokenizer.learned:
            return cached_tokenizer(self.tokenizer, [], "")
        corpus = self.corpus()
        sentences = TextsWithin(corpus.documents("train"), _sentence_of)
        return cached_tokenizer(self.tokenizer, sentences, f"{corpus.fingerprint} words")

    @property
    def class_names(self) -> dict[str, list[str]]:
        return {LABEL: [*(self.labels or self.inventory(self.corpus()).names)]}

    @property
    def texts(self) -> int:
        return 1

    def described(self, trained: TrainedSymbols) -> LabelledDescription:
        symbols = RowSymbols.of(require_tokenizer(trained.tokenizer))
        labels = self.tags_named(trained.labels or self.class_names[LABEL])
        return LabelledDescription(vocabulary=symbols.vocabulary, length=self.length, labels=labels)

    def tags_named(self, names: Sequence[str]) -> WordTagLabels:
        """Returns the labels for tags of these names."""
        return WordTagLabels(names=tuple(names), scheme=scheme_of(names, self.scheme))

    def protocol(self) -> dict[str, Plain]:
        return {
            "label": self.label,
            "scheme": self.scheme,
            "length": self.length,
            "shortest": self.shortest,
            "examples of training": self.examples,
        }

    def corpus(self) -> IndexedCorpus:
        """Returns the corpus of all sentences, in the form of ``TaggedSentences``. Raises DataError, which names the
        wrong line."""
        decisive = {name: value for name, value in self.to_dict().items() if name not in LATER}
        left_out = Counter[str]()
        files = files_of(self.path, self._is_read, left_out)
        texts = (text for path, name in files for text in self._texts(path, name, left_out))
        corpus = index_corpus(["conll", decisive, stamps(files)], "", WHOLE, texts, left_out)
        for split in SPLITS:
            if not corpus.count(split) and (self.files[split] or split != "test"):
                where = f"data.source.{split}_files" if self.files[split] else "data.source.path or data.source.splits"
                raise DataError(f"data.source: no sentence in the split {split!r} of {self.path}; correct {where}")
        return corpus

    def inventory(self, corpus: IndexedCorpus) -> TagInventory:
        """Returns the tags of a corpus and the entities of its training split. Raises DataError for a tag that is not
        in ``labels``, or that the scheme does not allow."""
        return inventory_of(corpus, self.labels, self.scheme)

    def build(self) -> TaggedSentences:
        corpus = self.corpus()
        inventory = self.inventory(corpus)
        return TaggedSentences(self, corpus, inventory, self.tags_named(self.labels or inventory.names))

    def _is_read(self, name: str) -> bool:
        """Whether a file with this name in the folder or archive is read."""
        if format_of(name) == "archive":
            return True
        if any(self.files.values()):
            return any(_is_called(name, own) for files in self.files.values() for own in files)
        return _suffix(name) in SUFFIXES

    def _splits_of(self, name: str, words: Sequence[str]) -> list[Split]:
        """Returns the splits of a sentence; several if the file is named for several splits."""
        if any(self.files.values()):
            return [split for split in SPLITS if any(_is_called(name, own) for own in self.files[split])]
        if self.splits == "hash":
            return [split_by_hash(" ".join(words), self.validation, self.test)]
        return [named_split(name)]

    def _texts(self, path: Path, name: str, left_out: Counter[str]) -> Iterator[Text]:
        """Yields the sentences of a file, or of the files of an archive."""
        with damage(path):
            for member in members(path, name, self._is_read, left_out):
                for sentence in _sentences(member, self, left_out):
                    words = [cell.partition("\t")[0] for cell in sentence.lines if cell]
                    content, says = "\n".join(sentence.lines).encode(), " ".join(words).encode()
                    for split in self._splits_of(member.name, words):
                        stream = BytesIO(content)
                        yield Text(member.name, split, stream, path, row=sentence.line - 1, says=says)


class Sentence(NamedTuple):
    """A sentence of a file. line: the number of its first line with a word. lines: from that line on, the word and its
    tag with a tab between them; "" for a line that is not a word."""

    line: int
    lines: list[str]


def _is_called(name: str, given: str) -> bool:
    """Whether a file has a given name; the given name may omit its folder and the suffix of a compression."""
    suffixes = ("", *COMPRESSIONS)
    return any(name == f"{given}{suffix}" or name.endswith(f"/{given}{suffix}") for suffix in suffixes)


def _suffix(name: str) -> str:
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix


def _sentences(member: Member, config: ConllConfig, left_out: Counter[str]) -> Iterator[Sentence]:
    """Yields the sentences of a file. Raises DataError, which names the wrong line."""
    reader = _WordReader(member.name, config)
    start, lines, others = 0, list[str](), 0
    for number, line in enumerate(chain(text_lines(member.stream, member.name), [""]), 1):
        place, line = f"{member.name}:{number}", line.rstrip("\r\n")
        if line.strip():
            word = reader.word(line, place)
            if word is None and not reader.is_comment(line):
                left_out[BOUNDARIES if line.startswith(BOUNDARY) else NO_WORDS] += 1
                others += not line.startswith(BOUNDARY)
            if word or lines:
                start = start or number
                lines.append(word or "")
            continue
        if lines:
            yield Sentence(start, lines)
        elif others:
            raise DataError(f"{place}: ends a sentence without words; correct the lines before it")
        start, lines, others = 0, [], 0


class _WordReader:
    """Reads the words and tags from the lines of a file."""

    def __init__(self, name: str, config: ConllConfig) -> None:
        self.is_conllu = _suffix(name) in CONLLU_SUFFIXES
        self.columns: tuple[str, ...] = CONLLU if self.is_conllu else ()
        self.fields: dict[str, Column | None] = {"word": config.word, "label": config.label}
        self.comment, self.has_tabs = config.comment, self.is_conllu

    def is_comment(self, line: str) -> bool:
        """Whether a line is a comment, not the word # with its tag."""
        if self.comment is not None:
            return bool(self.comment) and line.startswith(self.comment)
        return line.startswith("#") and (self.is_conllu or (self.has_tabs and "\t" not in line))

    def word(self, line: str, place: str) -> str | None:
        """Returns the word of a line and its tag with a tab between them; None for a line that is not a word. Raises
        DataError."""
        if line.startswith(NAMED_COLUMNS):
            self.columns, self.has_tabs = (*line.removeprefix(NAMED_COLUMNS).split(),), True
            return None
        self.has_tabs |= "\t" in line
        if self.is_comment(line):
            return None
        cells = line.split("\t") if "\t" in line else line.split()
        if cells[0] == BOUNDARY or (self.is_conllu and not self._is_word(cells[0], place)):
            return None
        word, tag = (self._cell(cells, field, place) for field in self.fields)
        return f"{word}\t{tag}"

    def _is_word(self, number: str, place: str) -> bool:
        """Whether an ID belongs to a word, not to a multiword token or an empty node."""
        if not number.replace("-", "", 1).replace(".", "", 1).isdecimal():
            raise DataError(f"{place}: {number[:40]!r} is not an ID of CoNLL-U; correct the line")
        return number.isdecimal()

    def _cell(self, cells: Sequence[str], field: str, place: str) -> str:
        """Returns the cell in the column of a field, word or label. Raises DataError if it is missing or empty."""
        column = self.fields[field]
        if column is None:
            column = {"word": "FORM", "label": "UPOS"}[field] if self.is_conllu else {"word": 1, "label": -1}[field]
        if isinstance(column, str):
            if column not in self.columns:
                known = nearest(column, self.columns) if self.columns else "its columns have no names, so give a number"
                raise DataError(f"{place}: no column {column!r}; {known} (data.source.{field})")
            column = self.columns.index(column) + 1
        if column > len(cells) or (column < 0 and len(cells) < 2):
            number = "" if column < 0 else f", and none of number {column}"
            count = f"{len(cells)} column{'s' * (len(cells) != 1)}"
            raise DataError(f"{place}: {count}{number}; correct the line, data.source.{field} or data.source.comment")
        cell = cells[column - 1 if column > 0 else column].strip()
        if not cell:
            raise DataError(f"{place}: the column of the {field} is empty; correct the line or data.source.{field}")
        return cell


def _sentence_of(document: Document) -> Iterator[Document]:
    """Yields the words of a stored sentence with single spaces between them."""
    yield Document(document.name, " ".join(stored_words(document.text)).encode())
