"""The kinds of labels that columns of a batch hold: of rows, of tokens, of words, and of spans of tokens.

A column has one kind, which lays out the labels of examples as a tensor, draws random labels, and names faults in the
labels of a data set. Where a row or a token has no label, and at padding, a column of whole numbers holds IGNORED.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_transformers.config import ConfigError, Plain, nearest
from lit_transformers.entities import Scheme

__all__ = [
    "IGNORED",
    "ChoiceLabels",
    "ClassLabels",
    "ClassSetLabels",
    "ClassedSpanLabels",
    "GroupLabels",
    "Labels",
    "NumberLabels",
    "SpanLabels",
    "TagLabels",
    "WordTagLabels",
]

IGNORED = -100
"""A target that is not predicted: padding, a boundary between documents, or context already scored."""

Symbols = Sequence[int]
"""The symbols of an example, without the boundary that its row begins with."""


class Labels(ABC):
    """A description of the labels of one column of a batch. ``dtype`` is the type of their tensor, ``kind`` their name
    in checkpoints."""

    kind: ClassVar[str]
    dtype: ClassVar[torch.dtype]

    @abstractmethod
    def random(self, rows: int, length: int) -> Tensor:
        """Returns random labels of rows of ``length`` tokens, all of them real."""

    @abstractmethod
    def tensor(self, labels: Sequence[Any], length: int) -> Tensor:
        """Returns the labels of examples as rows of ``length`` tokens, the first of which is the boundary; of none, a
        row of padding. Places of symbols are counted without the boundary. None stands for an example without a label.

        Raises ValueError where an example has to have one.
        """

    @abstractmethod
    def fault(self, column: Tensor, real: Bool[Tensor, "b t"]) -> str | None:
        """Returns the fault of a column of a batch; None where it has none. real: False at padding."""

    @abstractmethod
    def leak(self, rows: Sequence[Symbols], labels: Sequence[Any]) -> str | None:
        """Returns the feature of the examples that reveals every label without the text; None where there is none."""

    @final
    def to_dict(self) -> dict[str, Plain]:
        """Returns the kind and its fields as plain data."""
        return {"kind": self.kind} | asdict(self)  # type: ignore[call-overload]

    @staticmethod
    def from_dict(plain: Mapping[str, Plain]) -> Labels:
        """Reads the plain data of ``to_dict``. Raises ConfigError for an unknown kind."""
        kinds = {kind.kind: kind for kind in Labels.__subclasses__()}
        if plain["kind"] not in kinds:
            raise ConfigError(f"no kind of labels {plain['kind']!r}; {nearest(plain['kind'], kinds)}", "labels")
        return kinds[plain["kind"]](**{name: value for name, value in plain.items() if name != "kind"})


@final
@dataclass(frozen=True, kw_only=True)
class ClassLabels(Labels):
    """One of ``count`` classes of a row (b,), which are numbered from 0."""

    kind = "classes"
    dtype = torch.long

    count: int

    def random(self, rows: int, length: int) -> Int[Tensor, " b"]:
        return torch.randint(self.count, (rows,))

    def tensor(self, labels: Sequence[int | None], length: int) -> Int[Tensor, " b"]:
        if parts := [label for label in labels if label is not None and label != int(label)]:
            raise ValueError(f"an example has the class {parts[0]}, which is no whole number")
        return torch.tensor([IGNORED if label is None else int(label) for label in labels or [None]])

    def fault(self, column: Tensor, real: Bool[Tensor, "b t"]) -> str | None:
        return _misshapen(self, column, (len(real),)) or _unknown(column, self.count) or _padded(column, real)

    def leak(self, rows: Sequence[Symbols], labels: Sequence[int | None]) -> str | None:
        return _place_that_tells(rows, labels)


@final
@dataclass(frozen=True, kw_only=True)
class GroupLabels(Labels):
    """One of the groups ``names`` of a row (b,), by its number. No head predicts it: every measure is given once more
    for the rows of each group, under the name of the group."""

    kind = "groups"
    dtype = torch.long

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))  # a file makes lists of tuples

    def random(self, rows: int, length: int) -> Int[Tensor, " b"]:
        return torch.randint(len(self.names), (rows,))

    def tensor(self, labels: Sequence[int | None], length: int) -> Int[Tensor, " b"]:
        if None in labels:
            raise ValueError("an example has no group, and every row needs one")
        return torch.tensor(labels or [IGNORED])

    def fault(self, column: Tensor, real: Bool[Tensor, "b t"]) -> str | None:
        misshapen = _misshapen(self, column, (len(real),))
        return misshapen or _unknown(column, len(self.names)) or _padded(column, real)

    def leak(self, rows: Sequence[Symbols], labels: Sequence[int | None]) -> str | None:
        return None


@final
@dataclass(frozen=True, kw_only=True)
class ChoiceLabels(Labels):
    """The right choice of up to ``count`` choices (b,), by its number from 0. An example has a row for each choice: its
    inputs are (b, c, t)."""

    kind = "choices"
    dtype = torch.long

    count: int

    def random(self, rows: int, length: int) -> Int[Tensor, " b"]:
        return torch.randint(self.count, (rows,))

    def tensor(self, labels: Sequence[int | None], length: int) -> Int[Tensor, " b"]:
        return torch.tensor([IGNORED if label is None else int(label) for label in labels or [None]])

    def fault(self, column: Tensor, real: Bool[Tensor, "b c t"]) -> str | None:
        if broken := _misshapen(self, column, (len(real),)) or _unknown(column, self.count):
            return broken
        chosen = real.any(dim=2).gather(1, column.clamp(min=0)[:, None])[:, 0]
        if (~chosen & (column != IGNORED)).any():
            return "the right choice of an example is none of its rows"
        return _padded(column, real.flatten(1))

    def leak(self, rows: Sequence[Symbols], labels: Sequence[int | None]) -> str | None:
        return _place_that_tells(rows, labels)


@final
@dataclass(frozen=True, kw_only=True)
class NumberLabels(Labels):
    """A real number of a row (b,), for regression. Every row has one; that of padding is 0."""

    kind = "numbers"
    dtype = torch.float32

    def random(self, rows: int, length: int) -> Float[Tensor, " b"]:
        return torch.randn(rows)

    def tensor(self, labels: Sequence[float], length: int) -> Float[Tensor, " b"]:
        if None in labels:
            raise ValueError("an example has no number, and every row needs one")
        return torch.tensor(labels or [0.0], dtype=self.dtype)

    def fault(self, column: Tensor, real: Bool[Tensor, "b t"]) -> str | None:
        if not (misshapen := _misshapen(self, column, (len(real),))) and not column.isfinite().all():
            return f"a label is {column[~column.isfinite()][0]}, which nothing can predict"
        return misshapen

    def leak(self, rows: Sequence[Symbols], labels: Sequence[float]) -> str | None:
        return _place_that_tells(rows, labels)


@final
@dataclass(frozen=True, kw_only=True)
class ClassSetLabels(Labels):
    """Any of ``count`` classes of a row (b, count): 1 for each that it has, else 0. An example names their numbers."""

    kind = "class_sets"
    dtype = torch.long

    count: int

    def random(self, rows: int, length: int) -> Int[Tensor, "b c"]:
        return torch.randint(2, (rows, self.count))

    def tensor(self, labels: Sequence[Sequence[int] | None], length: int) -> Int[Tensor, "b c"]:
        column = torch.full((max(len(labels), 1), self.count), IGNORED)
        for row, classes in enumerate(labels):
            if classes is not None:
                column[row] = 0
                column[row, _whole(classes, self.count)] = 1
        return column

    def fault(self, column: Tensor, real: Bool[Tensor, "b t"]) -> str | None:
        misshapen = _misshapen(self, column, (len(real), self.count))
        return misshapen or _unknown(column, 2) or _padded(column, real)

    def leak(self, rows: Sequence[Symbols], labels: Sequence[Sequence[int] | None]) -> str | None:
        return _place_that_tells(rows, [None if classes is None else tuple(sorted(classes)) for classes in labels])


@final
@dataclass(frozen=True, kw_only=True)
class TagLabels(Labels):
    """One of ``count`` classes of each token (b, t), which are numbered from 0. An example has one for each symbol, or
    None; the boundary has none."""

    kind = "tags"
    dtype = torch.long

    count: int

    def random(self, rows: int, length: int) -> Int[Tensor, "b t"]:
        return torch.randint(self.count, (rows, length))

    def tensor(self, labels: Sequence[Sequence[int | None] | None], length: int) -> Int[Tensor, "b t"]:
        column = torch.full((max(len(labels), 1), length), IGNORED)
        for row, tags in enumerate(labels):
            if len(tags or ()) >= length:
                raise ValueError(f"an example has {len(tags or ())} tags for at most {length - 1} symbols")
            for place, tag in enumerate(tags or (), start=1):
                column[row, place] = IGNORED if tag is None else tag
        return column

    def fault(self, column: Tensor, real: Bool[Tensor, "b t"]) -> str | None:
        if misshapen := _misshapen(self, column, tuple(real.shape)) or _unknown(column, self.count):
            return misshapen
        return f"padding has a tag, and needs {IGNORED}" if (column[~real] != IGNORED).any() else None

    def leak(self, rows: Sequence[Symbols], labels: Sequence[Sequence[int | None] | None]) -> str | None:
        tagged = [
            (place, row, tag)
            for row, tags in zip(rows, labels, strict=True)
            for place, tag in enumerate(tags or ())
            if tag is not None
        ]
        if _tells([place for place, _, _ in tagged], [tag for _, _, tag in tagged]):
            return "the place of a token alone tells its tag"
        for side, offset in (("before", -1), ("after", 1)):
            near = [(row[place + offset], tag) for place, row, tag in tagged if 0 <= place + offset < len(row)]
            if _tells([symbol for symbol, _ in near], [tag for _, tag in near]):
                return f"the symbol {side} a token alone tells its tag"
        return None


@final
@dataclass(frozen=True, kw_only=True)
class WordTagLabels(Labels):
    """A tag for each word of a row (b, w, 2): the number of the tag in ``names``, and the training entities that begin
    at the word. Bit n of the second number is set if the n + 1 words from this word on are an entity of training, of up
    to 62 words; it is 0 if tags do not spell entities. After the last word of a row both are IGNORED.

    ``LabelledBatch.words`` assigns tokens to words. A word without a token was cut from the row. scheme: the scheme by
    which tags spell entities; None if they do not.
    """

    kind = "word_tags"
    dtype = torch.long

    names: tuple[str, ...]
    scheme: Scheme | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))  # a file makes lists of tuples

    def random(self, rows: int, length: int) -> Int[Tensor, "b w 2"]:
        return torch.stack([torch.randint(number, (rows, length)) for number in (len(self.names), 4)], dim=2)

    def tensor(self, labels: Sequence[Sequence[tuple[int, int]] | None], length: int) -> Int[Tensor, "b w 2"]:
        most = max((len(words or ()) for words in labels), default=0)
        column = torch.full((max(len(labels), 1), max(most, 1), 2), IGNORED)
        for row, words in enumerate(labels):
            if words:
                column[row, : len(words)] = torch.tensor(words)
        return column

    def fault(self, column: Tensor, real: Bool[Tensor, "b t"]) -> str | None:
        if column.dim() != 3:
            return f"it has the shape {tuple(column.shape)}, and each word has two numbers"
        misshapen = _misshapen(self, column, (len(real), column.size(1), 2))
        return misshapen or _unknown(column[..., 0], len(self.names)) or _padded(column, real)

    def leak(self, rows: Sequence[Symbols], labels: Sequence[Sequence[tuple[int, int]] | None]) -> str | None:
        tagged = [(place, tag) for words in labels for place, (tag, _) in enumerate(words or ())]
        if _tells([place for place, _ in tagged], [tag for _, tag in tagged]):
            return "the place of a word alone tells its tag"
        return _place_that_tells(rows, [tuple(tag for tag, _ in words or ()) for words in labels])


@final
@dataclass(frozen=True, kw_only=True)
class SpanLabels(Labels):
    """A span of each row (b, 2): the place of its first token, and that after its last."""

    kind = "spans"
    dtype = torch.long

    def random(self, rows: int, length: int) -> Int[Tensor, "b 2"]:
        start = torch.randint(length, (rows,))
        return torch.stack([start, start + 1 + (torch.rand(rows) * (length - start)).long()], dim=1)

    def tensor(self, labels: Sequence[tuple[int, int] | None], length: int) -> Int[Tensor, "b 2"]:
        spans = [(IGNORED, IGNORED) if span is None else (span[0] + 1, span[1] + 1) for span in labels or [None]]
        return torch.tensor(spans)

    def fault(self, column: Tensor, real: Bool[Tensor, "b t"]) -> str | None:
        misshapen = _misshapen(self, column, (len(real), 2))
        return misshapen or _padded(column, real) or _outside(column, real)

    def leak(self, rows: Sequence[Symbols], labels: Sequence[tuple[int, int] | None]) -> str | None:
        return _place_that_tells(rows, [None if span is None else tuple(span) for span in labels])


@final
@dataclass(frozen=True, kw_only=True)
class ClassedSpanLabels(Labels):
    """Several spans of each row, each of one of ``count`` classes (b, s, 3): the place of its first token, that after
    its last, and its class; IGNORED after the last span of a row."""

    kind = "classed_spans"
    dtype = torch.long

    count: int

    def random(self, rows: int, length: int) -> Int[Tensor, "b 1 3"]:
        spans = SpanLabels().random(rows, length)
        return torch.cat([spans, torch.randint(self.count, (rows, 1))], dim=1)[:, None]

    def tensor(self, labels: Sequence[Sequence[tuple[int, int, int]] | None], length: int) -> Int[Tensor, "b s 3"]:
        most = max((len(spans or ()) for spans in labels), default=0)
        column = torch.full((max(len(labels), 1), max(most, 1), 3), IGNORED)
        for row, spans in enumerate(labels):
            for number, (start, stop, label) in enumerate(spans or ()):
                column[row, number] = torch.tensor([start + 1, stop + 1, label])
        return column

    def fault(self, column: Tensor, real: Bool[Tensor, "b t"]) -> str | None:
        if column.dim() != 3:
            return f"it has the shape {tuple(column.shape)}, and three numbers make a span"
        misshapen = _misshapen(self, column, (len(real), column.size(1), 3))
        spans = (_outside(column[:, number, :2], real) for number in range(column.size(1)))
        faults = chain([misshapen], [_unknown(column[..., 2], self.count), _padded(column, real)], spans)
        return next((broken for broken in faults if broken), None)

    def leak(self, rows: Sequence[Symbols], labels: Sequence[Any]) -> str | None:
        return _place_that_tells(rows, [None if spans is None else tuple(map(tuple, spans)) for spans in labels])


def _whole(classes: Sequence[int], count: int) -> list[int]:
    """Returns the numbers of classes. Raises ValueError for one that there is not."""
    for number in classes:
        if not 0 <= number < count:
            raise ValueError(f"an example has the class {number}, and classes are 0 to {count - 1}")
    return list(classes)


def _misshapen(kind: Labels, column: Tensor, shape: tuple[int, ...]) -> str | None:
    if tuple(column.shape) != shape:
        return f"it has the shape {tuple(column.shape)}, and {kind.kind} of such rows have {shape}"
    return None if column.dtype == kind.dtype else f"it has the type {column.dtype}, and {kind.kind} have {kind.dtype}"


def _unknown(column: Tensor, count: int) -> str | None:
    """Names a class that there is not."""
    wrong = column[(column != IGNORED) & ((column < 0) | (column >= count))]
    return f"it has the label {int(wrong[0])}, and classes are 0 to {count - 1}" if len(wrong) else None


def _padded(column: Tensor, real: Bool[Tensor, "b t"]) -> str | None:
    """Says where a row that is padding alone has a label."""
    padding = column[~real.any(dim=1)]
    return f"a row of padding has a label, and needs {IGNORED}" if (padding != IGNORED).any() else None


def _outside(spans: Int[Tensor, "b 2"], real: Bool[Tensor, "b t"]) -> str | None:
    """Names a span of a row that is empty, or holds padding or places outside the row."""
    for (start, stop), tokens in zip(spans.tolist(), real.sum(dim=1).tolist(), strict=True):
        if (start, stop) != (IGNORED, IGNORED) and not 0 <= start < stop <= tokens:
            return f"it has the span {start} to {stop} in a row of {tokens} tokens"
    return None


def _tells(hints: Sequence[Hashable], labels: Sequence[Hashable]) -> bool:
    """Whether a hint leaves no doubt of any label: each stands with one alone, and there are few of them."""
    known: dict[Hashable, set[Hashable]] = {}
    for hint, label in zip(hints, labels, strict=True):
        known.setdefault(hint, set()).add(label)
    return len({*labels}) > 1 and all(len(own) == 1 for own in known.values()) and len(known) <= len(labels) // 4


def _place_that_tells(rows: Sequence[Symbols], labels: Sequence[Hashable]) -> str | None:
    """Names a place, from the start or the end of rows, whose symbol alone tells every label."""
    if min(map(len, rows)) < 3:
        return None
    for place in (*range(3), *range(-3, 0)):
        if _tells([row[place] for row in rows], labels):
            return f"the symbol at place {place} alone tells every label"
    return None
