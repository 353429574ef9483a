"""Questions whose answers are spans of a passage, as rows [CLS] question [SEP] window [SEP]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from datamodules.core.archives import members
from datamodules.core.documents import Document, Split
from datamodules.core.errors import DataError
from datamodules.core.examples import Example, Examples, ExamplesConfig
from datamodules.core.index import IndexedCorpus, Text, index_corpus
from datamodules.core.learning import TextsWithin
from datamodules.core.permutations import shuffled
from datamodules.core.reading import damage
from datamodules.core.tokenizers import BytesConfig, Symbols, Tokenizer, TokenizerConfig, cached_tokenizer, key_of
from datamodules.core.trained import TrainedSymbols, require_tokenizer
from datamodules.labelled.question_files import Paragraph, Question, is_questions, paragraphs_in
from datamodules.labelled.question_windows import QuestionWindows, answer_symbols
from datamodules.labelled.retrieved_passages import RetrievedPassages
from datamodules.labelled.texts import WHOLE
from datamodules.rows.symbols import RowSymbols
from datamodules.text.sources import files_of, named_split, nothing_left, split_by_hash, stamps
from lit_transformers.batch import LabelledDescription, Passage, SpanLabels
from lit_transformers.config import Fraction, NonNegative, Plain, Positive, canonical_hash

__all__ = ["Questions", "QuestionsConfig"]

MISPLACED = "questions omitted whose answer is not at its place in the passage"
CONTENT = ("path", "language", "splits", "validation", "test", "split_seed", "folds", "misplaced")
"""The fields that determine the stored passages."""
OWN = -1
"""The number of a question's own passage among the ranked ones."""
TOGETHER = 4096
"""The number of passages whose symbols are in memory while windows are placed."""


class QuestionsConfig(ExamplesConfig, kind="questions"):
    """Questions whose answers are spans of passages: JSON of SQuAD 1.1 (arXiv:1606.05250) or 2.0 (arXiv:1806.03822),
    JSON lines with question, context and answers, or a table with question, context and answer, which is empty if the
    passage has no answer, and optionally answer_start. Each question has a row for each window of its passage. All
    questions on a passage are in the same split. Without a test split, testing reads the validation split.

    path        a file, or a folder with files; relative to LIT_DATA or to the working folder
    language    read only files with this word between dots of their names, such as ``en`` of xquad.en.json; None: all
    tokenizer   of the network that is fine-tuned
    length      tokens of the longest row, special symbols included
    stride      symbols of the passage between the beginnings of two windows
    question_width  tokens of every question with [CLS], [SEP] and padding, so that all passages begin at the same place
                (for ``deformer``); None: no padding after questions
    examples    number of training questions, chosen at random, the same for all seeds; None for all
    splits      hash: by a hash of the text of the passage. folders: by file or folder names (train, dev, test).
                folds: cross-validation by passage. Passage n of each file is in fold n modulo ``folds``. Translations
                of a passage are then in the same fold if their files have the same order. The seed of the data chooses
                the fold for validation, and training reads all others. Seeds 0 to ``folds`` - 1 validate every question
                once
    validation  fraction of passages for validation, in a split by hash
    test        fraction of passages for the test, in a split by hash
    split_seed  seed of the hash
    folds       number of folds, in a split by folds
    misplaced   a question with an answer that is not in its passage at answer_start: refuse raises an error that names
                it, leave_out omits and counts it
    retrieved   a file of passages that a retriever has ranked for each question, relative to LIT_DATA or to the working
                folder. Validation and test read these passages, and the answer is the best span of all of them
                (arXiv:1704.00051, section 3.2); training reads the question's own passage. None: its own passage always
    best        number of ranked passages that are read for each question; None: all passages in ``retrieved``
    """

    path: str = "xquad"
    language: str | None = "en"
    tokenizer: TokenizerConfig = BytesConfig()
    length: Annotated[int, Field(ge=8)] = 384
    stride: Positive = 128
    question_width: Annotated[int, Field(ge=3)] | None = None
    examples: Positive | None = None
    splits: Literal["hash", "folders", "folds"] = "hash"
    validation: Fraction = 0.1
    test: Fraction = 0.1
    split_seed: NonNegative = 0
    folds: Annotated[int, Field(ge=2)] = 5
    misplaced: Literal["refuse", "leave_out"] = "refuse"
    retrieved: str | None = None
    best: Positive | None = None

    def conflicts(self) -> Iterator[str]:
        yield from nothing_left(self.validation, self.test)
        if self.splits == "folds" and self.tokenizer.learned:
            yield "tokenizer: learns from passages of other folds; set one that is not learned, or set splits to hash"
        if self.stride > self.length - 1 - (self.question_width or 3):
            of_width = f" with questions of {self.question_width}" if self.question_width else ""
            reason = f"windows of {self.length} tokens{of_width} leave gaps at a stride of {self.stride} symbols"
            yield f"stride: {reason}; make it smaller"
        if self.best is not None and self.retrieved is None:
            yield "best: no file of ranked passages is named; set retrieved, or drop best"

    @property
    def longest_row(self) -> int:
        return self.length

    @property
    def description(self) -> LabelledDescription:
        return self.described(TrainedSymbols(self.built_tokenizer.to_dict()))

    @property
    def built_tokenizer(self) -> Tokenizer:
        """The tokenizer; if it is learned, from the passages and questions of training. Raises DataError."""
        if not self.tokenizer.learned:
            return cached_tokenizer(self.tokenizer, [], "")
        corpus = self.corpus()
        return cached_tokenizer(
            self.tokenizer, TextsWithin(corpus.documents("train"), _texts_of), f"{corpus.fingerprint} questions"
        )

    def described(self, trained: TrainedSymbols) -> LabelledDescription:
        vocabulary = RowSymbols.of(require_tokenizer(trained.tokenizer)).vocabulary
        labels, width = SpanLabels(), self.question_width
        return LabelledDescription(
            vocabulary=vocabulary, length=self.length, labels=labels, segments=2, question_width=width
        )

    def windows(self, tokenizer: Tokenizer) -> QuestionWindows:
        """Returns the windows of questions and passages for the symbols of a tokenizer."""
        return QuestionWindows.of(tokenizer, self.length, self.stride, self.question_width)

    def protocol(self) -> dict[str, Plain]:
        width = {} if self.question_width is None else {"question width": self.question_width}
        ranked = {} if self.retrieved is None else {"ranked passages": self.best or "all"}
        return {"length": self.length, "stride": self.stride, "questions of training": self.examples} | width | ranked

    def corpus(self, seed: int = 0) -> IndexedCorpus:
        """Returns the corpus of passages with their questions. seed: chooses the fold for validation, in a split by
        folds. Raises DataError, which names a misplaced question."""
        counts = Counter[str]()
        files = [file for file in files_of(self.path, is_questions, counts) if self._is_read(file.name)]
        if not files:
            reason = f"no file of JSON, JSON lines or a table with {self.language!r} between dots of its name"
            raise DataError(f"{self.path}: {reason}; correct data.source.language or data.source.path")
        fold = seed % self.folds if self.splits == "folds" else None
        key = ["questions", {name: self.to_dict()[name] for name in CONTENT}, fold, stamps(files)]
        texts = (text for path, name in files for text in self._texts(path, name, fold, counts))
        corpus = index_corpus(key, "", WHOLE, texts, counts)
        for split in ("train", "validation"):
            if not corpus.count(split):
                raise DataError(f"data.source: no passage in the split {split!r}; correct data.source.splits")
        return corpus

    def build(self) -> Questions:
        return Questions(self, self.corpus())

    def _is_read(self, name: str) -> bool:
        return self.language is None or self.language in PurePosixPath(name).name.split(".")

    def _texts(self, path: Path, name: str, fold: int | None, counts: Counter[str]) -> Iterator[Text]:
        """Yields the passages of a file in their stored form, each with its split."""
        with damage(path):
            for member in members(path, name, is_questions, counts):
                numbers: dict[str, int] = {}
                for row, paragraph in enumerate(paragraphs_in(member, counts)):
                    questions = tuple(self._well_placed(paragraph, counts))
                    if not questions:
                        continue
                    content, says = paragraph._replace(questions=questions).stored(), paragraph.passage.encode()
                    if fold is None:
                        split = self._split(member.name, paragraph.passage)
                    else:
                        number = numbers.setdefault(paragraph.passage.strip(), len(numbers))
                        split = "validation" if number % self.folds == fold else "train"
                    yield Text(member.name, split, BytesIO(content), path, row=row, says=says)

    def _well_placed(self, paragraph: Paragraph, counts: Counter[str]) -> Iterator[Question]:
        """Yields the questions whose answers are at their places in the passage. Omits and counts the others, or raises
        DataError for the first one."""
        for question in paragraph.questions:
            if (fault := question.fault(paragraph.passage)) is None:
                yield question
            elif self.misplaced == "refuse":
                raise DataError(f"{fault}; correct it, or set data.source.misplaced=leave_out")
            else:
                counts[MISPLACED] += 1

    def _split(self, name: str, passage: str) -> Split:
        if self.splits == "folders":
            return named_split(name)
        return split_by_hash(f"{self.split_seed} {passage.strip()}", self.validation, self.test)


def _texts_of(document: Document) -> Iterator[Document]:
    """Yields the passage and the questions of a stored paragraph."""
    paragraph = Paragraph.restored(document.text)
    for text in (paragraph.passage, *(question.text for question in paragraph.questions)):
        yield Document(document.name, text.encode())


class Placed(NamedTuple):
    """The windows of a split. passages, numbers: for each question, its passage in the index and its number among the
    questions on the passage. questions, starts, stops, ranked: for each window, its question, its first symbol of the
    passage, the one after its last, and the number of the ranked passage; ``OWN`` for the question's own passage.
    unheld: number of answers that no window holds completely."""

    passages: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    questions: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    ranked: npt.NDArray[np.int64]
    unheld: int


class Questions(Examples):
    """The windows of indexed passages. Texts become symbols when a window is read. A document is a question."""

    def __init__(self, config: QuestionsConfig, corpus: IndexedCorpus) -> None:
        self.config, self.corpus = config, corpus
        self.content = corpus.fingerprint
        self.placed: dict[Split, Placed] = {}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.config.built_tokenizer

    @cached_property
    def windows(self) -> QuestionWindows:
        """The windows for the symbols of ``tokenizer``."""
        return self.config.windows(self.tokenizer)

    @cached_property
    def retrieved(self) -> RetrievedPassages | None:
        """The ranked passages that validation and test read; None: each question's own passage."""
        return None if self.config.retrieved is None else RetrievedPassages.read(self.config.retrieved)

    @cached_property
    def fingerprint(self) -> str:  # type: ignore[override]
        config, tokenizer = self.config, canonical_hash(key_of(self.tokenizer), 32)
        width = [] if config.question_width is None else [config.question_width]
        ranked = [] if self.retrieved is None else [[self.retrieved.digest, config.best]]
        parts = [self.content, tokenizer, config.length, config.stride, config.examples, *width, *ranked]
        return canonical_hash(parts, 32)

    def draw(self, seed: int) -> None:
        if self.config.splits == "folds":
            self.corpus = self.config.corpus(seed)
            self.content = self.corpus.fingerprint

    def trained_symbols(self) -> TrainedSymbols:
        return TrainedSymbols(self.tokenizer.to_dict())

    def read_as(self, trained: TrainedSymbols) -> None:
        self.tokenizer = require_tokenizer(trained.tokenizer)
        vars(self).pop("windows", None)
        self.placed.clear()

    def encoded(self, split: Split) -> Iterator[tuple[Tokenizer, Symbols]]:
        for document in self.corpus.documents(self.split_read(split)):
            paragraph = Paragraph.restored(document.text)
            for text in (paragraph.passage, *(question.text for question in paragraph.questions)):
                yield self.tokenizer, self.tokenizer.encode(text.encode())

    def count(self, split: Split) -> int:
        return len(self._placed(split).questions)

    def documents(self, split: Split) -> npt.NDArray[np.int64]:
        return self._placed(split).questions

    def example(self, split: Split, ordinal: int) -> Example:
        placed = self._placed(split)
        paragraph, question = self.question(split, int(placed.questions[ordinal]))
        read = self._passage(paragraph, int(placed.ranked[ordinal]))
        passage, offsets = self.tokenizer.encode_with_offsets(read)
        window = range(int(placed.starts[ordinal]), int(placed.stops[ordinal]))
        row = self.windows.row(self.tokenizer.encode(question.text.encode()), passage, window)
        texts = tuple(answer.text for answer in question.answers)
        text = Passage(read, row.spans(offsets), texts)
        label = row.label(_symbols_of(question, offsets) if read == paragraph.passage else None)
        return Example(row.symbols, label, second=row.second, passage=text, first=row.first)

    def question(self, split: Split, ordinal: int) -> tuple[Paragraph, Question]:
        """Returns a passage of a split and its question ``ordinal``."""
        placed = self._placed(split)
        content = self.corpus.documents(self.split_read(split))[int(placed.passages[ordinal])].text
        paragraph = Paragraph.restored(content)
        return paragraph, paragraph.questions[int(placed.numbers[ordinal])]

    def name(self, split: Split, ordinal: int) -> str:
        placed = self._placed(split)
        window = range(int(placed.starts[ordinal]), int(placed.stops[ordinal]))
        of_question = self.document_name(split, int(placed.questions[ordinal]))
        return f"{of_question}, symbols {window.start} to {window.stop}"

    def document_name(self, split: Split, document: int) -> str:
        """Returns the name of a question behind its passage, by which reports know the questions of one passage."""
        passage = int(self._placed(split).passages[document])
        return f"passage {passage}, question {self.question(split, document)[1].name}"

    def reading_messages(self) -> list[str]:
        unheld = self._placed("train").unheld
        reason = f"no window holds all of {unheld:,} answers of training; set length larger, or stride smaller"
        return [*self.corpus.messages, *([reason] if unheld else [])]

    def split_read(self, split: Split) -> Split:
        return "validation" if split == "test" and not self.corpus.count("test") else split

    def _placed(self, split: Split) -> Placed:
        """Returns the windows of a split. Raises DataError for a question that leaves no room to its passage."""
        if split not in self.placed:
            self.placed[split] = self._place(split)
        return self.placed[split]

    def _place(self, split: Split) -> Placed:
        places: list[tuple[int, int]] = []
        windows: list[tuple[int, int, int, int]] = []
        unheld = 0
        paragraphs = [Paragraph.restored(document.text) for document in self.corpus.documents(self.split_read(split))]
        every = [(ordinal, number) for ordinal, own in enumerate(paragraphs) for number in range(len(own.questions))]
        if self.config.examples is not None and split == "train":
            every = [every[place] for place in sorted(shuffled(len(every), 0, 0)[: self.config.examples].tolist())]
        encoded = lru_cache(TOGETHER)(self.tokenizer.encode_with_offsets)
        for passage, number in every:
            paragraph, question = paragraphs[passage], paragraphs[passage].questions[number]
            symbols, held = self.tokenizer.encode(question.text.encode()), not question.answers
            for place in self._ranked(split, question):
                text = self._passage(paragraph, place)
                read, offsets = encoded(text)
                ranges = self.windows.ranges(len(symbols), len(read), question.name)
                windows += [(len(places), window.start, window.stop, place) for window in ranges]
                answer = _symbols_of(question, offsets) if text == paragraph.passage else None
                held = held or (answer is not None and any(_holds(window, answer) for window in ranges))
            unheld += not held
            places.append((passage, number))
        passages, numbers = np.array(places, np.int64).T
        questions, starts, stops, ranked = np.array(windows, np.int64).T
        return Placed(passages, numbers, questions, starts, stops, ranked, unheld)

    def _ranked(self, split: Split, question: Question) -> Sequence[int]:
        """Returns the numbers of the passages that are read for a question: ``OWN`` in training."""
        ranked = None if split == "train" else self.retrieved
        return (OWN,) if ranked is None else ranked.of(question.name, question.text, self.config.best)

    def _passage(self, paragraph: Paragraph, ranked: int) -> str:
        """Returns the text of a ranked passage, or of the own passage of the questions in a paragraph."""
        return paragraph.passage if ranked == OWN or self.retrieved is None else self.retrieved.passages[ranked]


def _holds(window: range, answer: range) -> bool:
    return window.start <= answer.start and answer.stop <= window.stop


def _symbols_of(question: Question, offsets: npt.NDArray[np.int64]) -> range | None:
    """Returns the symbols of the first answer; None without an answer. Raises DataError if no symbol stands for any
    character of the answer."""
    if not question.answers:
        return None
    answer = question.answers[0]
    if (symbols := answer_symbols(offsets, answer.start, answer.stop)) is None:
        reason = f"the tokenizer has no symbol for any character of the answer {answer.text!r}"
        raise DataError(f"{question.name}: {reason}; correct it, or use another tokenizer")
    return symbols
