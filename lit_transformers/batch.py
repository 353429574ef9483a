"""The types of batches and their descriptions: the only types that data and tasks share."""

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
    GroupLabels,
    Labels,
    NumberLabels,
    SpanLabels,
    TagLabels,
    WordTagLabels,
)
from lit_transformers.trust import import_allowed

__all__ = [
    "GROUP",
    "IGNORED",
    "LABEL",
    "ChoiceLabels",
    "ClassLabels",
    "ClassSetLabels",
    "ClassedSpanLabels",
    "DataDescription",
    "Detokenizer",
    "GroupLabels",
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
GROUP = "group"
"""The name of the column of groups of labelled sequences."""

Unit = Literal["byte", "character", "word", "piece"]


AnyLabels = TypeVar("AnyLabels", bound=Labels)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The properties of a tokenizer that tasks use.

    size          number of symbols, the boundary included
    boundary      the symbol before a document's first token; it is never a target of language modelling
    unit          the unit of a symbol, as in "perplexity per word"
    byte_lengths  number of UTF-8 bytes of each symbol, for bits per byte; None if they are unknown
    """

    size: int
    boundary: int
    unit: Unit
    byte_lengths: tuple[int, ...] | None

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> Self:
        """Returns the vocabulary from the plain data of ``dataclasses.asdict``."""
        lengths = plain["byte_lengths"]
        return cls(**{**plain, "byte_lengths": None if lengths is None else tuple(lengths)})


class Detokenizer(ABC):
    """Turns the symbols of a target into its text. A checkpoint holds it as plain data with the path of its class. The
    class is imported only from this library, a plug-in or an allowed module (``lit_transformers.trust``)."""

    @abstractmethod
    def __call__(self, symbols: Sequence[int]) -> str:
        """Returns the text of the symbols."""

    @abstractmethod
    def to_dict(self) -> dict[str, Plain]:
        """Returns plain data from which ``restored`` rebuilds the detokenizer."""

    @classmethod
    @abstractmethod
    def restored(cls, plain: Mapping[str, Plain]) -> Self:
        """Returns the detokenizer that ``to_dict`` described."""

    @staticmethod
    def from_dict(plain: Mapping[str, Plain]) -> Detokenizer:
        """Returns the detokenizer from plain data with its class. Raises ConfigError for a class that is not allowed,
        or is not a detokenizer."""
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
    """The properties of data that a task needs before it reads a batch. Each kind of data has a class.

    vocabulary  the vocabulary of the inputs; for pairs, of the targets
    length      tokens of the longest training row; for pairs, of the longest target: ``Shape.max_length`` of a network

    ``kind`` names the kind in checkpoints. ``mismatch`` ends the message to a reader that needs this kind and gets
    another kind.
    """

    kind: ClassVar[str]
    mismatch: ClassVar[str]

    vocabulary: Vocabulary
    length: int

    @classmethod
    def of(cls, data: DataDescription, reader: str) -> Self:
        """Returns ``data`` if it is of this kind, else raises ConfigError. reader: the part that needs this kind."""
        if not isinstance(data, cls):
            raise ConfigError(f"these data {cls.mismatch.format(reader=reader)}", "data")
        return data

    @property
    def longest_row(self) -> int:
        """Hook: tokens of the longest training row. By default ``length``; more if a network reads a row in pieces of
        that length."""
        return self.length

    @property
    def padding_last(self) -> bool:
        """Hook: whether padding stands only at the end of a row. By default it does."""
        return True

    @property
    def label_columns(self) -> Mapping[str, Labels]:
        """Hook: the kinds of the columns of labels, by the names that ``labels_in`` takes. By default one column: a
        symbol for each token."""
        return {"targets": TagLabels(count=self.vocabulary.size)}

    @property
    def groups(self) -> tuple[str, ...]:
        """Hook: the names of the groups of rows for which every measure is reported separately. By default empty."""
        return ()

    @final
    def labels_of(self, name: str, kind: type[AnyLabels], reader: str) -> AnyLabels:
        """Returns the kind of a column of labels. Raises ConfigError if the data have no column of that name, or one of
        another kind. reader: the part that needs the column."""
        if name not in self.label_columns:
            raise ConfigError(
                f"{reader} reads the column {name!r}, which does not exist; {nearest(name, self.label_columns)}", "data"
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
        """Returns the description as plain data; ``source`` is None if it is the object in ``vocabulary``."""
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        if getattr(self, "source", None) is self.vocabulary:
            values["source"] = None
        return {"kind": self.kind} | values

    @staticmethod
    def from_dict(plain: Mapping[str, Plain]) -> DataDescription:
        """Returns the description, of any kind, that ``to_dict`` wrote. Raises ConfigError for other data."""
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
    """Describes documents that are read in segments of ``length`` tokens (TextBatch)."""

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
    """Describes labelled sequences (LabelledBatch) of up to ``length`` tokens with their boundary, or of up to
    ``pieces`` pieces of that length.

    labels   the kind of the column "label": labels of rows, such as classes, of tokens, or of spans
    columns  the kinds of further columns of labels, by name; the column GROUP may hold groups
    segments most texts of a row: 1 or 2
    pieces   most pieces of ``length`` tokens of a row, which a network reads one by one. Each begins with the boundary,
             and all but the last are full
    question_width  tokens of the first text with its special symbols and padding, if all second texts begin at the same
             place; None: no padding between the texts
    """

    kind = "labelled"
    mismatch = "have no labels for {reader} to predict; set data to labelled"

    labels: Labels
    columns: Mapping[str, Labels] = field(default_factory=dict, hash=False)
    segments: int = 1
    pieces: int = 1
    question_width: int | None = None

    def __post_init__(self) -> None:
        for name, labels in self.columns.items():
            if name == LABEL or not name.isidentifier():
                reason = f"{name!r} cannot name a further column; use a Python identifier other than {LABEL!r}"
                raise ConfigError(reason, "columns")
            if isinstance(labels, GroupLabels) and name != GROUP:
                raise ConfigError(f"the column {name!r} holds groups; name it {GROUP!r}", "columns")

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
    def groups(self) -> tuple[str, ...]:
        labels = self.columns.get(GROUP)
        return labels.names if isinstance(labels, GroupLabels) else ()

    @property
    def of_words(self) -> bool:
        """Whether a column holds labels of words, so that batches need the word of each token."""
        return any(isinstance(labels, WordTagLabels) for labels in self.label_columns.values())

    @classmethod
    def for_probe(cls, vocabulary: Vocabulary, length: int) -> Self:
        return cls(vocabulary=vocabulary, length=length, labels=ClassLabels(count=3))


@final
@dataclass(frozen=True, kw_only=True)
class MixedDescription(DataDescription):
    """Describes labelled sequences of several sources with one vocabulary. All rows of a batch (LabelledBatch) are from
    one source, which the batch names.

    sources  the description of each source, by name, in the order of names
    """

    kind = "mixed"
    mismatch = "are not of several sources, each with a task for {reader} to learn; set data to mixed"

    sources: Mapping[str, LabelledDescription] = field(hash=False)

    @property
    def label_columns(self) -> Mapping[str, Labels]:
        return {}

    @property
    def segments(self) -> int:
        """The most texts of a row."""
        return max(source.segments for source in self.sources.values())

    @property
    def pieces(self) -> int:
        """The most pieces of a row."""
        return max(source.pieces for source in self.sources.values())

    @property
    def padding_last(self) -> bool:
        return all(source.padding_last for source in self.sources.values())

    @property
    def question_width(self) -> int | None:
        """The question width if it is the same in all sources of two texts, else None."""
        widths = {source.question_width for source in self.sources.values() if source.segments > 1}
        return widths.pop() if len(widths) == 1 else None

    def number_of(self, source: str) -> int:
        """Returns the number p of a source among S sources. Example i of the source has the number i S + p in total."""
        return [*self.sources].index(source)

    @classmethod
    def of_sources(cls, sources: Mapping[str, LabelledDescription]) -> Self:
        """Returns the description of sources that share a vocabulary, given the description of each by name."""
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
    """Describes sources with their targets (PairBatch). ``length``: tokens of the longest training target.

    source         the vocabulary of the sources; the same object if both sides share a vocabulary
    source_length  tokens of the longest training source, with the boundary that ends it
    detokenize     turns the symbols of a target into its text
    usual          three numbers of tokens: of the source and of the target for which costs are counted, and of the text
                   that both are made from, by which a run counts tokens. None: the longest source and target, and the
                   run counts tokens of targets
    placed         whether ``PairBatch.start`` gives the position at which a target begins; ``length`` is then the
                   number of positions, from 0
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
    """Describes questions and the passages to retrieve for them (RetrievalBatch), each a row. ``length``: tokens of the
    longest passage, special symbols included.

    source_length  tokens of the longest question, special symbols included; at most ``length``
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
    """Describes rows of text with hidden symbols (RowBatch): [CLS] A [SEP], or [CLS] A [SEP] B [SEP], of up to
    ``length`` tokens in total. The boundary of the vocabulary is [CLS].

    mask         the symbol in place of a hidden one, [MASK]
    separator    the symbol that ends each segment, [SEP]
    segments     most segments of a row: 1 or 2
    predictions  most predicted symbols of a row
    relations    number of relations between the two segments of a row, one of which is predicted; 0: no such prediction
    phrases      whether rows have phrases, and it is predicted which were replaced
    ordered      whether rows have an order that determines which symbols a symbol sees (``RowBatch.order``)
    restarts     whether positions begin again at 0 with the second segment
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
"""The functions that read fields of descriptions from plain data, by field."""


class TextBatch(NamedTuple):
    """One segment of every lane, or of the lanes of one rank. Row b continues row b of the previous batch.

    inputs        (b, t) symbols; 0 where padded
    targets       (b, t) the symbol after each input, or IGNORED
    padding_mask  (b, t) True at real inputs, False at padding, which stands at the end of a row
    document      (b, t) ordinal of the document within the pass, for losses per document
    fresh         (b,)   True if the row begins a document; the state of the lane is reset first
    cursor        the position of all ranks after the batch, from which any number of ranks can resume exactly; None if
                  resuming is not supported
    padded        whether any input may be padding; False if all are known to be real
    unbroken      number of consecutive real tokens directly before this segment, since the row was last fresh, in every
                  row with an input. 0 if a row is fresh or follows padding, or the number is unknown

    ``padded`` and ``unbroken`` are plain values, so no step waits for a device to read them.
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
    targets           (b, t) the symbol after each input if it belongs to the answer, else IGNORED
    padding_mask      (b, t) True at real inputs, False at padding, which stands at the end of a row
    example           (b,)   ordinal of the string within the pass
    requested_length  (b,)   the length requested from the generator; results are reported for each length
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
    """The passage of a row with a question.

    text     the whole passage, even if the row holds only a window of it
    spans    (t, 2) for each token of the row, its first character in ``text`` and the one after its last; 0 for tokens
             outside the passage
    answers  the right answers; empty if the passage has no answer
    """

    text: str
    spans: npt.NDArray[np.int64]
    answers: tuple[str, ...]


class LabelledBatch(NamedTuple):
    """Whole sequences with their labels. Rows do not depend on each other. If the label is one of several choices, an
    example has a row for each choice: inputs, padding_mask, marked and segments are (b, c, t), with rows of padding
    after the last choice.

    inputs        (b, t) symbols, the boundary first; 0 where padded
    padding_mask  (b, t) True at real inputs, False at padding, which stands at the end of a row and, with
                  ``LabelledDescription.question_width``, after the first text
    labels        (b, ...) the column "label", of the kind ``LabelledDescription.labels``
    marked        (b, t) True at inputs that the data mark; None if the data mark none
    example       (b,)   ordinal, within its split, of the example, or of the document if the row is a window
    cursor and padded as in TextBatch
    columns       (b, ...) further columns of labels by name, of the kinds ``LabelledDescription.columns``; None without
    segments      (b, t) 0 in the first text with its special symbols, 1 in the second with its [SEP], 0 at padding;
                  None if every row has one text
    words         (b, t) the number of the word of each input, from 1, in the order of the labels of words; 0 at special
                  symbols and padding. None without labels of words
    passages      the passage of each row; None for data without passages
    source        the name of the source of all rows, for data of several sources; else ""
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

    The boundary of its vocabulary stands before a target and ends it: ``inputs`` is [boundary, *target] and
    ``targets`` is [*target, boundary]. A source ends with the boundary of its vocabulary. If a target was cut, both
    hold the symbols that remain, and ``targets`` does not end with a boundary. A cut source still does.

    source               (b, s) symbols; 0 where padded
    source_padding_mask  (b, s) True at real symbols, False at padding, which stands at the end of a row
    inputs               (b, t) symbols; 0 where padded
    targets              (b, t) the symbol after each input, or IGNORED
    padding_mask         (b, t) True at real inputs, False at padding, which stands at the end of a row
    example              (b,)   ordinal of the pair within its split
    requested_length     (b,)   the length under which results are reported; 0 if they are not reported by length
    references           the texts with which the output of each row is compared; empty in training
    cursor and padded as in TextBatch
    start                (b,)   the position of the first input; None if all are 0
    text                 (b,)   number of symbols of the text that source and target are made from, with its final
                         boundary, if a run counts tokens of texts; None if it counts tokens of targets
    source_padded        whether any symbol of a source may be padding; False if all are known to be real
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
    """Questions, and passages to retrieve for them. In training, row n of the passages answers row n of the questions.
    In evaluation every text occurs once, with padding in place of its counterpart.

    source               (b, s) symbols of questions, the boundary first; 0 where padded
    source_padding_mask  (b, s) True at real symbols, False at padding, which stands at the end of a row
    answer               (b,)   the number of the passage that answers each question; equal passages have one number
    inputs               (b, t) symbols of passages, the boundary first; 0 where padded
    padding_mask         (b, t) True at real inputs, False at padding, which stands at the end of a row
    passage              (b,)   the number of each passage
    example              (b,)   ordinal of the question within its split
    cursor and padded as in TextBatch
    source_padded        whether any symbol of a question may be padding; False if all are known to be real
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
    """Rows of one or two segments of text, with hidden symbols. Rows do not depend on each other.

    inputs        (b, t) symbols, with [MASK] or another symbol in place of hidden ones; 0 where padded
    targets       (b, t) the original symbol at each place chosen for prediction, even if ``inputs`` still holds it;
                  else IGNORED
    padding_mask  (b, t) True at real inputs, False at padding, which stands at the end of a row
    segments      (b, t) 0 in the first segment with its [CLS] and [SEP], 1 in the second with its [SEP]; 0 at padding
    relation      (b,)   the relation between the two segments, from 0; IGNORED if no relation is predicted
    example       (b,)   ordinal of the row within its split
    cursor and padded as in TextBatch
    phrases       (b, p, 3) for each phrase that may have been replaced, the position of its first symbol, the position
                  after its last, and 1 if it was replaced, else 0; IGNORED after the last phrase of a row. None if no
                  phrases are predicted
    order         (b, t) the place of each symbol in the order of its row, from 0: a symbol sees symbols of the same and
                  of lower places; 0 at padding. None: every symbol sees all others
    rule          (b,)   for minimal pairs, the number of their rule. The first row of a pair obeys it, the second
                  differs only by breaking it. No symbol is hidden, and ``targets`` has all symbols except special ones.
                  None for other rows
    most_targets  an upper bound on the targets of a row, so that no step waits for a device to count them; None if it
                  is unknown. Code that changes ``targets`` must update it
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
    """Returns the padding mask (b, t) that a network needs for a batch; None if every input is known to be real."""
    return batch.padding_mask if batch.padded else None


def needed_source_mask(batch: PairBatch | RetrievalBatch) -> Bool[Tensor, "b s"] | None:
    """Returns the padding mask (b, s) that a network needs for sources; None if every symbol is known to be real."""
    return batch.source_padding_mask if batch.source_padded else None


def row_lengths(padding_mask: Bool[Tensor, "b t"]) -> Int[Tensor, " b"]:
    """Returns the number of tokens (b,) of each row up to its last real one; 0 for a row of padding."""
    return (padding_mask * torch.arange(1, padding_mask.size(1) + 1, device=padding_mask.device)).amax(dim=1)


def labels_in(batch: Any, name: str) -> Tensor:
    """Returns a column of labels of a batch, by its name in ``DataDescription.label_columns``. Raises ConfigError if
    the batch has no such column."""
    columns = {LABEL: batch.labels, **(batch.columns or {})} if isinstance(batch, LabelledBatch) else batch._asdict()
    if not isinstance(columns.get(name), Tensor):
        known = nearest(name, [known for known, values in columns.items() if isinstance(values, Tensor)])
        raise ConfigError(f"the data have no column {name!r}; {known}", "data")
    return columns[name]


def tokens_read(batch: Any) -> Float[Tensor, ""]:
    """Returns the number of tokens of a batch without padding, as a tensor on its device; ``tokens_per_step`` of its
    data counts the same tokens: the inputs; of retrieval, the inputs of passages; of pairs, the inputs of targets, or
    the symbols of the texts that both sides are made from (``PairBatch.text``)."""
    text = batch.text if isinstance(batch, PairBatch) else None
    return (batch.padding_mask if text is None else text).sum(dtype=torch.float64)
