"""The batch types and what describes them: the only types that data and tasks share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeVar, final

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.class_path import former_class_path
from lit_transformers.config import ConfigError, Plain, nearest
from lit_transformers.labels import (
    IGNORED,
    ChoiceLabels,
    ClassedSpanLabels,
    ClassLabels,
    ClassSetLabels,
    Labels,
    NumberLabels,
    SpanLabels,
    TagLabels,
    WordTagLabels,
)
from lit_transformers.trust import import_allowed

__all__ = [
    "IGNORED",
    "LABEL",
    "ChoiceLabels",
    "ClassLabels",
    "ClassSetLabels",
    "ClassedSpanLabels",
    "DataDescription",
    "Detokenizer",
    "LabelledBatch",
    "LabelledDescription",
    "Labels",
    "LanguageDescription",
    "MixedDescription",
    "NumberLabels",
    "PairBatch",
    "PairDescription",
    "Passage",
    "RetrievalBatch",
    "RetrievalDescription",
    "RowBatch",
    "RowDescription",
    "SpanLabels",
    "SpelledNumbers",
    "StringBatch",
    "StringDescription",
    "TagLabels",
    "TextBatch",
    "Unit",
    "Vocabulary",
    "WordTagLabels",
    "labels_in",
    "needed_mask",
    "needed_source_mask",
    "row_lengths",
]

LABEL = "label"
"""The name of the first column of labels of labelled sequences."""

Unit = Literal["byte", "character", "word", "piece"]


AnyLabels = TypeVar("AnyLabels", bound=Labels)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a task must know of a tokenizer.

    size          number of symbols, the boundary included
    boundary      the symbol that is fed before a document's first token; it is never a target of language modelling
    unit          what one symbol is, for "perplexity per word"
    byte_lengths  the UTF-8 bytes that each symbol stands for, for bits per byte; None where they cannot be known
    """

    size: int
    boundary: int
    unit: Unit
    byte_lengths: tuple[int, ...] | None

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> Self:
        """Returns the vocabulary of ``dataclasses.asdict``, as a file holds that."""
        lengths = plain["byte_lengths"]
        return cls(**{**plain, "byte_lengths": None if lengths is None else tuple(lengths)})


class Detokenizer(ABC):
    """Turns the symbols of a target into its text. A checkpoint holds it as plain data with the path of its class, of
    which only what this library, a plug-in or an allowed module defines is imported (``lit_transformers.trust``)."""

    @abstractmethod
    def __call__(self, symbols: Sequence[int]) -> str:
        """Returns the text of symbols."""

    @abstractmethod
    def to_dict(self) -> dict[str, Plain]:
        """Returns what ``restored`` needs."""

    @classmethod
    @abstractmethod
    def restored(cls, plain: Mapping[str, Plain]) -> Self:
        """Returns the detokenizer that ``to_dict`` described."""

    @staticmethod
    def from_dict(plain: Mapping[str, Plain]) -> Detokenizer:
        """Returns the detokenizer of plain data with its class. Raises ConfigError for a class that may not be named,
        and for one that is no detokenizer."""
        class_path = plain["class_path"] if "class_path" in plain else former_class_path(plain["kind"])
        kind: type[Detokenizer] = import_allowed(class_path, Detokenizer, "detokenize")  # type: ignore[type-abstract]
        return kind.restored(plain)


@final
class SpelledNumbers(Detokenizer):
    """Writes symbols as numbers between spaces."""

    def __call__(self, symbols: Sequence[int]) -> str:
        return " ".join(str(int(symbol)) for symbol in symbols)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpelledNumbers)

    def __hash__(self) -> int:
        return hash(SpelledNumbers)

    def to_dict(self) -> dict[str, Plain]:
        return {}

    @classmethod
    def restored(cls, plain: Mapping[str, Plain]) -> Self:
        return cls()


@dataclass(frozen=True, kw_only=True)
class DataDescription(ABC):
    """What a task must know of its data before it reads a batch. There is a class for each kind of data.

    vocabulary  the vocabulary of the inputs; for pairs, of the targets
    length      tokens of the longest training row; for pairs, of the longest target: ``Shape.max_length`` of a network

    ``kind`` names the kind in checkpoints. ``mismatch`` ends the message to a reader that needs this kind and is given
    another.
    """

    kind: ClassVar[str]
    mismatch: ClassVar[str]

    vocabulary: Vocabulary
    length: int

    @classmethod
    def of(cls, data: DataDescription, reader: str) -> Self:
        """Returns ``data``, which is of this kind. Raises ConfigError where it is not; ``reader`` needs it."""
        if not isinstance(data, cls):
            raise ConfigError(f"these data {cls.mismatch.format(reader=reader)}", "data")
        return data

    @property
    def longest_row(self) -> int:
        """Hook: the tokens of the longest training row. By default ``length``; more where a network reads a row in
        pieces of that length."""
        return self.length

    @property
    def padding_last(self) -> bool:
        """Hook: whether padding stands at the end of a row alone. By default it does."""
        return True

    @property
    def label_columns(self) -> Mapping[str, Labels]:
        """Hook: what the columns of labels hold, by the names that ``labels_in`` takes. By default the symbol after
        each token, or in its place."""
        return {"targets": TagLabels(count=self.vocabulary.size)}

    @final
    def labels_of(self, name: str, kind: type[AnyLabels], reader: str) -> AnyLabels:
        """Returns what a column of labels holds. Raises ConfigError where the data have no column of that name, or one
        of another kind; ``reader`` needs it."""
        if name not in self.label_columns:
            raise ConfigError(
                f"{reader} reads {name!r}, of which there is no column; {nearest(name, self.label_columns)}", "data"
            )
        labels = self.label_columns[name]
        if not isinstance(labels, kind):
            reason = f"{reader} needs {kind.kind}, and the column {name!r} of these data holds {labels.kind}"
            raise ConfigError(f"{reason}; set task to an objective that reads {labels.kind}, or use other data", "task")
        return labels

    @classmethod
    @abstractmethod
    def for_probe(cls, vocabulary: Vocabulary, length: int) -> Self:
        """Returns a description of this kind, for random rows of ``length`` tokens."""

    @final
    def to_dict(self) -> dict[str, Plain]:
        """Returns the description as plain data; ``source`` is None where it is the object in ``vocabulary``."""
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        if getattr(self, "source", None) is self.vocabulary:
            values["source"] = None
        return {"kind": self.kind} | values

    @staticmethod
    def from_dict(plain: Mapping[str, Plain]) -> DataDescription:
        """Returns the description that ``to_dict`` wrote, of whatever kind. Raises ConfigError where there is none."""
        kinds = {description.kind: description for description in DataDescription.__subclasses__()}
        try:
            values = {name: _READERS.get(name, _tuples)(value) for name, value in plain.items() if name != "kind"}
            if "source" in values:
                values["source"] = values["source"] or values["vocabulary"]
            return kinds[plain["kind"]](**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"holds no description of data ({type(error).__name__}: {error})", "data") from None


@final
@dataclass(frozen=True, kw_only=True)
class LanguageDescription(DataDescription):
    """Describes documents that are read in segments (TextBatch), each of ``length`` tokens."""

    kind = "language"
    mismatch = "are not documents for {reader} to read in segments; set data to language"

    @classmethod
    def for_probe(cls, vocabulary: Vocabulary, length: int) -> Self:
        return cls(vocabulary=vocabulary, length=length)


@final
@dataclass(frozen=True, kw_only=True)
class StringDescription(DataDescription):
    """Describes questions with their answers (StringBatch), of up to ``length`` tokens together."""

    kind = "strings"
    mismatch = "have no questions for {reader} to answer; set data to generated"

    @classmethod
    def for_probe(cls, vocabulary: Vocabulary, length: int) -> Self:
        return cls(vocabulary=vocabulary, length=length)


@final
@dataclass(frozen=True, kw_only=True)
class LabelledDescription(DataDescription):
    """Describes labelled sequences (LabelledBatch) of up to ``length`` tokens with their boundary, or of as many pieces
    of that length as ``pieces`` says.

    labels   what the labels of the column "label" are: of rows, such as classes, or of tokens or spans
    columns  what the labels of further columns are, by the names of these
    segments how many texts a row may have: 1 or 2
    pieces   how many pieces of ``length`` tokens a row may have, which a network reads one by one. Each begins with the
             boundary, and all but the last are full
    question_width  tokens of the first text with its special symbols and the padding behind it, where every second text
             begins at one place; None where it follows the first one
    """

    kind = "labelled"
    mismatch = "have no labels for {reader} to predict; set data to labelled"

    labels: Labels
    columns: Mapping[str, Labels] = field(default_factory=dict, hash=False)
    segments: int = 1
    pieces: int = 1
    question_width: int | None = None

    def __post_init__(self) -> None:
        for name in self.columns:
            if name == LABEL or not name.isidentifier():
                reason = f"{name!r} is no name of a further column; name it as Python names things, and not {LABEL!r}"
                raise ConfigError(reason, "columns")

    @property
    def longest_row(self) -> int:
        return self.length * self.pieces

    @property
    def padding_last(self) -> bool:
        return self.question_width is None

    @property
    def label_columns(self) -> Mapping[str, Labels]:
        return {LABEL: self.labels, **self.columns}

    @property
    def of_words(self) -> bool:
        """Whether a column holds labels of words, so that batches say which token belongs to which."""
        return any(isinstance(labels, WordTagLabels) for labels in self.label_columns.values())

    @classmethod
    def for_probe(cls, vocabulary: Vocabulary, length: int) -> Self:
        return cls(vocabulary=vocabulary, length=length, labels=ClassLabels(count=3))


@final
@dataclass(frozen=True, kw_only=True)
class MixedDescription(DataDescription):
    """Describes labelled sequences of several sources, which share one vocabulary. Each batch (LabelledBatch) is of one
    of them, which it names.

    sources  the description of each source, by its name, in the order of names
    """

    kind = "mixed"
    mismatch = "are not of several sources, each with a task for {reader} to learn; set data to mixed"

    sources: Mapping[str, LabelledDescription] = field(hash=False)

    @property
    def label_columns(self) -> Mapping[str, Labels]:
        return {}

    @property
    def segments(self) -> int:
        """The most texts that a row may have."""
        return max(source.segments for source in self.sources.values())

    @property
    def pieces(self) -> int:
        """The most pieces that a text may have."""
        return max(source.pieces for source in self.sources.values())

    @property
    def padding_last(self) -> bool:
        return all(source.padding_last for source in self.sources.values())

    @property
    def question_width(self) -> int | None:
        """The width of first texts where it is the same in all sources of two texts; else None."""
        widths = {source.question_width for source in self.sources.values() if source.segments > 1}
        return widths.pop() if len(widths) == 1 else None

    def number_of(self, source: str) -> int:
        """Returns the place of a source among all. Example i of the source is example i S + place of S sources."""
        return [*self.sources].index(source)

    @classmethod
    def of_sources(cls, sources: Mapping[str, LabelledDescription]) -> Self:
        """Returns the description of sources of one vocabulary, by name."""
        ordered = {name: sources[name] for name in sorted(sources)}
        vocabulary = next(iter(ordered.values())).vocabulary
        longest = max(source.length for source in ordered.values())
        return cls(vocabulary=vocabulary, length=longest, sources=ordered)

    @classmethod
    def for_probe(cls, vocabulary: Vocabulary, length: int) -> Self:
        described = LabelledDescription.for_probe(vocabulary, length)
        return cls.of_sources({"first": described, "second": replace(described, labels=NumberLabels())})


@final
@dataclass(frozen=True, kw_only=True)
class PairDescription(DataDescription):
    """Describes sources with their targets (PairBatch). ``length`` is that of the longest training target.

    source         the vocabulary of the sources; the same object where both sides share one vocabulary
    source_length  tokens of the longest training source, with the boundary that ends it
    detokenize     turns the symbols of a target into its text
    usual          tokens of a source and of a target for which costs are counted, and of the text that both are made
                   of, which is what a run's tokens count; None: the longest source and target, and target tokens
    placed         whether targets begin at positions of their own (``PairBatch.start``); ``length`` is then that of
                   the positions, from 0
    """

    kind = "pairs"
    mismatch = "have no sources for {reader} to read; set data to pairs"

    source: Vocabulary
    source_length: int
    detokenize: Detokenizer
    usual: tuple[int, int, int] | None = None
    placed: bool = False

    @classmethod
    def for_probe(cls, vocabulary: Vocabulary, length: int) -> Self:
        detokenize = SpelledNumbers()
        return cls(vocabulary=vocabulary, length=length, source=vocabulary, source_length=length, detokenize=detokenize)


@final
@dataclass(frozen=True, kw_only=True)
class RetrievalDescription(DataDescription):
    """Describes questions and the passages to retrieve for them (RetrievalBatch), each a row. ``length`` is that of the
    longest passage, with its special symbols.

    source_length  tokens of the longest question, with its special symbols; no more than ``length``
    """

    kind = "retrieval"
    mismatch = "have no passages for {reader} to retrieve; set data to retrieval"

    source_length: int

    @property
    def label_columns(self) -> Mapping[str, Labels]:
        return {}

    @classmethod
    def for_probe(cls, vocabulary: Vocabulary, length: int) -> Self:
        return cls(vocabulary=vocabulary, length=length, source_length=length)


@final
@dataclass(frozen=True, kw_only=True)
class RowDescription(DataDescription):
    """Describes rows of text in which symbols are hidden (RowBatch), of up to ``length`` tokens with what is put around
    them: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]. The boundary of the vocabulary is [CLS].

    mask         the symbol that stands where another one is hidden, [MASK]
    separator    the symbol that ends each segment, [SEP]
    segments     how many segments a row may have: 1 or 2
    predictions  the most symbols of a row that are predicted
    relations    how many relations between the two segments of a row there are to tell apart; 0 where none are
    phrases      whether each of a row's phrases was replaced, which is predicted
    ordered      whether rows say which symbol sees which
    restarts     whether positions begin again with the second segment
    rules        the names of the rules that rows of minimal pairs obey or break
    """

    kind = "rows"
    mismatch = "have no hidden symbols for {reader} to predict; set data to rows"

    mask: int
    separator: int
    segments: int
    predictions: int
    relations: int = 0
    phrases: bool = False
    ordered: bool = False
    restarts: bool = False
    rules: tuple[str, ...] = ()

    @property
    def label_columns(self) -> Mapping[str, Labels]:
        relations = {"relation": ClassLabels(count=self.relations)} if self.relations else {}
        phrases = {"phrases": ClassedSpanLabels(count=2)} if self.phrases else {}
        return {"targets": TagLabels(count=self.vocabulary.size)} | relations | phrases

    @classmethod
    def for_probe(cls, vocabulary: Vocabulary, length: int) -> Self:
        last, predictions = vocabulary.size - 1, math.ceil(0.15 * length)
        return cls(
            vocabulary=vocabulary,
            length=length,
            mask=last,
            separator=last - 1,
            segments=2,
            predictions=predictions,
            relations=2,
        )


def _plain(value: Any) -> Plain:
    match value:
        case Vocabulary():
            return asdict(value)
        case Labels():
            return value.to_dict()
        case DataDescription():
            return value.to_dict()
        case Mapping():
            return {name: _plain(entry) for name, entry in value.items()}
        case Detokenizer():
            return {"class_path": f"{type(value).__module__}.{type(value).__qualname__}"} | value.to_dict()
    return value


def _tuples(value: Plain) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _vocabulary(plain: Plain) -> Vocabulary | None:
    return None if plain is None else Vocabulary.from_dict(plain)


def _columns(plain: Plain) -> dict[str, Labels]:
    return {name: Labels.from_dict(labels) for name, labels in plain.items()}


def _sources(plain: Plain) -> dict[str, DataDescription]:
    return {name: DataDescription.from_dict(plain[name]) for name in sorted(plain)}


_READERS: dict[str, Callable[[Plain], Any]] = {
    "vocabulary": _vocabulary,
    "source": _vocabulary,
    "labels": Labels.from_dict,
    "columns": _columns,
    "sources": _sources,
    "detokenize": Detokenizer.from_dict,
}
"""The fields of descriptions that are not plain, and what reads them."""


class TextBatch(NamedTuple):
    """One segment of every lane, or of those of one rank. Row b continues row b of the previous batch.

    inputs        (b, t) symbols; 0 where padded
    targets       (b, t) the symbol after each input, or IGNORED
    padding_mask  (b, t) True at real inputs, False at padding, which stands at the end of a row
    document      (b, t) ordinal of the document within the pass, for losses per document
    fresh         (b,)   True where a document starts with this row: the lane's state is emptied first
    cursor        the position of all ranks after the batch, from which any number of them can resume exactly; None
                  where nothing resumes
    padded        whether any input may be padding; False where all are known to be real
    unbroken      how many tokens come right before this segment in every row that has an input: all real, and since the
                  row was last fresh. 0 where a row is fresh or follows padding, or where nobody knows

    ``padded`` and ``unbroken`` are plain values, so that no step has to wait for a device to know them.
    """

    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    padding_mask: Bool[Tensor, "b t"]
    document: Int[Tensor, "b t"]
    fresh: Bool[Tensor, " b"]
    cursor: str | None
    padded: bool = True
    unbroken: int = 0


class StringBatch(NamedTuple):
    """Whole strings, each a question and its answer. Rows do not depend on each other.

    inputs            (b, t) symbols; 0 where padded
    targets           (b, t) the symbol after each input where it belongs to the answer, else IGNORED
    padding_mask      (b, t) True at real inputs, False at padding, which stands at the end of a row
    example           (b,)   ordinal of the string within the pass
    requested_length  (b,)   the length that the generator was to make; results are reported for each
    cursor and padded as in TextBatch
    """

    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    padding_mask: Bool[Tensor, "b t"]
    example: Int[Tensor, " b"]
    requested_length: Int[Tensor, " b"]
    cursor: str | None
    padded: bool = True


class Passage(NamedTuple):
    """The text of a row in which a question is answered.

    text     all of it, also where the row is a window of it
    spans    (t, 2) of each token of the row, the first character of ``text`` that it stands for, and that after the
             last; 0 for tokens that are not of the passage
    answers  the texts that are right; none where the passage has no answer
    """

    text: str
    spans: npt.NDArray[np.int64]
    answers: tuple[str, ...]


class LabelledBatch(NamedTuple):
    """Whole sequences with their labels. Rows do not depend on each other. Where the label is one of several choices,
    an example has a row for each: inputs, padding_mask, marked and segments are (b, c, t), with rows of padding behind
    the last choice.

    inputs        (b, t) symbols, the boundary first; 0 where padded
    padding_mask  (b, t) True at real inputs, False at padding, which stands at the end of a row, and behind the first
                  text where ``LabelledDescription.question_width`` says how wide that is
    labels        (b, ...) the column "label", as ``LabelledDescription.labels`` says
    marked        (b, t) True at inputs that the data single out; None where they single out nothing
    example       (b,)   ordinal within its split of the example, or of the document that the row is a window of
    cursor and padded as in TextBatch
    columns       (b, ...) the further columns of labels by name, as ``LabelledDescription.columns`` says; None without
    segments      (b, t) 0 in the first text with its special symbols, 1 in the second with its [SEP], 0 at padding;
                  None where every row is one text
    words         (b, t) the number of the word that each input is a piece of, from 1, as those of the labels of words
                  stand; 0 at special symbols and padding. None where no label is one of words
    passages      of each row, the text that an answer is a part of; None where there are none
    source        the name of the source of all rows in data of several; "" in data of one
    """

    inputs: Int[Tensor, "b t"]
    padding_mask: Bool[Tensor, "b t"]
    labels: Int[Tensor, b * n] | Float[Tensor, " b"]
    marked: Bool[Tensor, "b t"] | None
    example: Int[Tensor, " b"]
    cursor: str | None
    columns: Mapping[str, Tensor] | None = None
    padded: bool = True
    segments: Int[Tensor, "b t"] | None = None
    words: Int[Tensor, "b t"] | None = None
    passages: tuple[Passage, ...] | None = None
    source: str = ""


class PairBatch(NamedTuple):
    """Whole sources, each with a target. Rows do not depend on each other.

    A target is read after the boundary of its vocabulary, and the boundary ends it: ``inputs`` is [boundary, *target]
    and ``targets`` is [*target, boundary]. A source ends with the boundary of its own vocabulary. Where a target was
    cut, both hold the symbols that are read, and ``targets`` has no boundary at the end; a source that was cut still
    ends with one.

    source               (b, s) symbols; 0 where padded
    source_padding_mask  (b, s) True at real symbols, False at padding, which stands at the end of a row
    inputs               (b, t) symbols; 0 where padded
    targets              (b, t) the symbol after each input, or IGNORED
    padding_mask         (b, t) True at real inputs, False at padding, which stands at the end of a row
    example              (b,)   ordinal of the pair within its split
    requested_length     (b,)   the length that results are reported for; 0 where they are not reported by length
    references           the texts that a row's output is compared with; empty in training
    cursor and padded as in TextBatch
    start                (b,)   the position of the first input; None where all are 0
    text                 (b,)   the symbols of the text that source and target are made of, with the boundary that ends
                         it, where tokens of a run are those of texts; None where they are those of targets
    source_padded        whether any symbol of a source may be padding; False where all are known to be real
    """

    source: Int[Tensor, "b s"]
    source_padding_mask: Bool[Tensor, "b s"]
    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    padding_mask: Bool[Tensor, "b t"]
    example: Int[Tensor, " b"]
    requested_length: Int[Tensor, " b"]
    references: tuple[tuple[str, ...], ...]
    cursor: str | None
    start: Int[Tensor, " b"] | None = None
    text: Int[Tensor, " b"] | None = None
    padded: bool = True
    source_padded: bool = True


class RetrievalBatch(NamedTuple):
    """Questions, and passages among which those that answer them are to be found. In training, row n of the passages
    answers row n of the questions; in an evaluation every text is read once, with padding in place of the other one.

    source               (b, s) symbols of questions, the boundary first; 0 where padded
    source_padding_mask  (b, s) True at real symbols, False at padding, which stands at the end of a row
    answer               (b,)   the number of the passage that answers each question; equal passages have one number
    inputs               (b, t) symbols of passages, the boundary first; 0 where padded
    padding_mask         (b, t) True at real inputs, False at padding, which stands at the end of a row
    passage              (b,)   the number of each passage
    example              (b,)   ordinal of the question within its split
    cursor and padded as in TextBatch
    source_padded        whether any symbol of a question may be padding; False where all are known to be real
    """

    source: Int[Tensor, "b s"]
    source_padding_mask: Bool[Tensor, "b s"]
    answer: Int[Tensor, " b"]
    inputs: Int[Tensor, "b t"]
    padding_mask: Bool[Tensor, "b t"]
    passage: Int[Tensor, " b"]
    example: Int[Tensor, " b"]
    cursor: str | None
    padded: bool = True
    source_padded: bool = True


class RowBatch(NamedTuple):
    """Rows of text in which symbols are hidden, each of one segment or two. Rows do not depend on each other.

    inputs        (b, t) symbols, with [MASK] or another symbol where one is hidden; 0 where padded
    targets       (b, t) the original symbol wherever one was chosen to be predicted, also where it still stands in
                  ``inputs``; else IGNORED
    padding_mask  (b, t) True at real inputs, False at padding, which stands at the end of a row
    segments      (b, t) 0 in the first segment with its [CLS] and [SEP], 1 in the second with its [SEP]; 0 at padding
    relation      (b,)   the relation between the two segments, from 0; IGNORED where there is none to predict
    example       (b,)   ordinal of the row within its split
    cursor and padded as in TextBatch
    phrases       (b, p, 3) of each phrase that may have been replaced, the position of its first symbol, that after its
                  last, and 1 if it was replaced, else 0; IGNORED after the last phrase of a row. None where there are
                  none to tell
    order         (b, t) the place of each symbol in the order of its row, from 0: it sees those whose place is not
                  after its own; 0 at padding. None where every symbol sees every other
    rule          (b,)   of minimal pairs: the number of the rule that every second row breaks, and the row before it,
                  which differs in nothing else, obeys. Nothing in them is hidden, and ``targets`` has all symbols but
                  special ones. None in batches of other rows
    most_targets  a number that no row has more targets than, so that no device has to be waited for to count them; None
                  where it is not known. Who changes ``targets`` changes it too
    """

    inputs: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"]
    padding_mask: Bool[Tensor, "b t"]
    segments: Int[Tensor, "b t"]
    relation: Int[Tensor, " b"]
    example: Int[Tensor, " b"]
    cursor: str | None
    phrases: Int[Tensor, "b p 3"] | None = None
    order: Int[Tensor, "b t"] | None = None
    rule: Int[Tensor, " b"] | None = None
    most_targets: int | None = None
    padded: bool = True


def needed_mask(batch: Any) -> Bool[Tensor, "b t"] | None:
    """Returns the padding mask that a network needs of a batch: None where every input is known to be real."""
    return batch.padding_mask if batch.padded else None


def needed_source_mask(batch: PairBatch | RetrievalBatch) -> Bool[Tensor, "b s"] | None:
    """Returns the padding mask that a network needs of the sources: None where every symbol is known to be real."""
    return batch.source_padding_mask if batch.source_padded else None


def row_lengths(padding_mask: Bool[Tensor, "b t"]) -> Int[Tensor, " b"]:
    """Returns the number of tokens of each row up to the last real one; 0 of a row of padding alone."""
    return (padding_mask * torch.arange(1, padding_mask.size(1) + 1, device=padding_mask.device)).amax(dim=1)


def labels_in(batch: Any, name: str) -> Tensor:
    """Returns a column of labels of a batch by its name in ``DataDescription.label_columns``. Raises ConfigError where
    the batch has none of that name."""
    columns = {LABEL: batch.labels, **(batch.columns or {})} if isinstance(batch, LabelledBatch) else batch._asdict()
    if not isinstance(columns.get(name), Tensor):
        known = nearest(name, [known for known, values in columns.items() if isinstance(values, Tensor)])
        raise ConfigError(f"the data have no column {name!r}; {known}", "data")
    return columns[name]


def tokens_read(batch: Any) -> Float[Tensor, ""]:
    """Returns the number of tokens of a batch, as a tensor on its device: what ``tokens_per_step`` of its data counts,
    without padding. They are its inputs, of retrieval those of passages; of pairs those of targets, or the symbols of
    the texts that both sides are made of (``PairBatch.text``)."""
    text = batch.text if isinstance(batch, PairBatch) else None
    return (batch.padding_mask if text is None else text).sum(dtype=torch.float64)
