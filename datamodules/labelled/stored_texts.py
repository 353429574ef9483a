"""The stored form of labelled texts in an index: their columns of labels, and each example as a line of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from datamodules.core.documents import Split
from datamodules.core.index import Text
from lit_transformers.batch import ClassLabels, ClassSetLabels, Labels, NumberLabels
from lit_transformers.config import nearest

__all__ = ["LabelColumn", "StoredText"]

BETWEEN = b"\t"
"""The separator between two texts when the index compares pairs."""


class LabelColumn(NamedTuple):
    """A column of labels: classes, sets of classes, or numbers.

    classes: the names of classes, in the order of their numbers; None for numbers. several: whether a text has any
    number of classes, not exactly one.
    """

    classes: tuple[str, ...] | None
    several: bool = False

    def labels(self, names: Sequence[str] | None) -> Labels:
        """Returns the kind of the labels. names: the classes of a trained network; None for the classes of this
        column."""
        if self.classes is None:
            return NumberLabels()
        count = len(self.classes if names is None else names)
        return ClassSetLabels(count=count) if self.several else ClassLabels(count=count)

    def stored(self, cells: Sequence[str]) -> Any:
        """Returns the stored form of a label, given the texts of its cell: a number, the number of a class, or a list
        of numbers of classes. Raises ValueError with the message for the user."""
        if self.several:
            return [self._class(cell) for cell in dict.fromkeys(cells)]
        cell = " ".join(cells).strip()
        if self.classes is not None:
            return self._class(cell)
        try:
            number = float(cell)
        except ValueError:
            raise ValueError(f"the label {cell!r} is not a number; correct it, or name the classes in labels") from None
        if not math.isfinite(number):
            raise ValueError(f"the label {cell!r} is not finite; correct it")
        return number

    def read(self, stored: Any, numbers: Sequence[int]) -> Any:
        """Returns the label of an example. numbers: the trained network's number of each class of this column."""
        if self.several:
            return [numbers[number] for number in stored]
        return stored if self.classes is None else numbers[stored]

    def _class(self, name: str) -> int:
        assert self.classes is not None
        if name not in self.classes:
            raise ValueError(f"the label {name!r} is not in data.source.labels; {nearest(name, self.classes)}")
        return self.classes.index(name)


class StoredText(NamedTuple):
    """A stored example: its labels, from ``LabelColumn.stored``, in the order of their columns, and its texts."""

    labels: Sequence[Any]
    texts: Sequence[str]

    @classmethod
    def of(cls, content: bytes) -> StoredText:
        """Reads the content that ``entry`` writes."""
        return cls(*json.loads(content))

    def entry(self, origin: str, split: Split, path: Path, row: int) -> Text:
        """Returns the example for an index, which compares examples by their texts. Raises UnicodeEncodeError for a
        character that UTF-8 cannot write."""
        content = json.dumps([self.labels, self.texts], ensure_ascii=False).encode()
        return Text(origin, split, BytesIO(content), path, row=row, says=BETWEEN.join(self.encoded))

    @property
    def encoded(self) -> list[bytes]:
        """The texts as bytes."""
        return [text.encode() for text in self.texts]
