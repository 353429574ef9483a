"""The documents of each split of a source, which are read by ordinal or at least in a fixed order."""

from __future__ import annotations

import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np

from datamodules.core.errors import DataError
from datamodules.core.reading import beginning
from lit_transformers.config import Plain

__all__ = [
    "SPLITS",
    "Corpus",
    "Document",
    "DocumentStream",
    "Documents",
    "Limit",
    "Shard",
    "Split",
    "cache_folder",
    "keep",
    "thinned",
]

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Row = TypeVar("Row")


class Document(NamedTuple):
    """One document, or one piece of a long one. ``offset``: the position of its first byte in the text of that name."""

    name: str
    text: bytes
    offset: int = 0


class Shard(NamedTuple):
    """The share of one rank: number ``number``, from 0, of ``total`` ranks. Row n of a batch is that of rank n mod
    ``total``."""

    number: int = 0
    total: int = 1

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """Returns this rank's share of the rows of a batch."""
        return [*rows[self.number :: self.total]]


class Limit(NamedTuple):
    """Restricts to the first documents: at most ``documents``, or as many as reach ``bytes`` bytes; None for all.

    cut: whether the last one ends with the bytes, before the first character that goes beyond them.
    """

    documents: int | None = None
    bytes: int | None = None
    cut: bool = False

    def applied(self, document: Document, before: int) -> Document:
        """Returns a document, or its beginning where it goes beyond the bytes. before: the bytes of those before it."""
        if not self.cut or self.bytes is None or before + len(document.text) <= self.bytes:
            return document
        return document._replace(text=beginning(document.text, self.bytes - before))


class DocumentStream(ABC):
    """Documents one after another, with their ordinals in the split."""

    @abstractmethod
    def state(self) -> Plain:
        """Returns the position of the next document as plain data, from which ``go_to`` restores it."""

    @abstractmethod
    def go_to(self, state: Plain) -> None:
        """Makes the next document the one that came next when ``state`` was taken."""

    @abstractmethod
    def take(self) -> tuple[int, Document] | None:
        """Returns the next document with its ordinal, or None at the end."""

    def take_unread(self) -> tuple[int, Callable[[], Document]] | None:
        """Hook: takes the next document as its ordinal and a function that reads it. By default it is read at once."""
        taken = self.take()
        if taken is None:
            return None
        ordinal, document = taken
        return ordinal, lambda: document


class Documents(ABC):
    """The documents of one split. Raises DataError from every method where the split is empty or cannot be read."""

    @abstractmethod
    def __iter__(self) -> Iterator[Document]:
        """Iterates over all documents in the order of their ordinals, any number of times."""

    @abstractmethod
    def name(self, ordinal: int) -> str:
        """Returns the name of the document with that ordinal."""

    @abstractmethod
    def training(self, seed: int) -> DocumentStream:
        """Returns an endless stream of all documents, shuffled anew in every pass."""

    @abstractmethod
    def evaluation(self, limit: Limit) -> DocumentStream:
        """Returns a stream of one pass over all documents in order."""

    def sample(self, size: int, seed: int) -> Iterator[Document]:
        """Hook: yields about ``size`` bytes of documents from all parts of the split, for a tokenizer that learns from
        them; all where there are no more. By default each has the same chance, and all are passed over."""
        return thinned(self, size, seed)


def thinned(documents: Iterable[Document], size: int, seed: int) -> Iterator[Document]:
    """Yields about ``size`` bytes of documents of which nobody knows how many there are, each with the same chance, in
    their order; all where they have no more. Holds about twice as many bytes at most."""
    random = np.random.default_rng([seed, 1])
    kept: list[tuple[float, Document]] = []
    total = held = 0
    for document in documents:
        total += len(document.text)
        if (drawn := random.random()) * total < size:
            kept.append((drawn, document))
            held += len(document.text)
        if total > size and held > 2 * size:
            kept = [item for item in kept if item[0] * total < size]
            held = sum(len(item[1].text) for item in kept)
    yield from (document for drawn, document in kept if drawn * total < size)


class Corpus(ABC):
    """The documents of all splits. ``fingerprint`` identifies their content."""

    fingerprint: str

    @property
    def messages(self) -> list[str]:
        """Hook: sentences on how the corpus was read, and on the properties of its documents. None by default."""
        return []

    @abstractmethod
    def documents(self, split: Split) -> Documents: ...


def keep(path: Path, plain: Plain) -> None:
    """Writes plain data to a file of the cache, as JSON, unless another process was faster. No reader sees a part of
    it: another file is written and then linked, or renamed where the disk has no links. Raises DataError where it
    cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:
            json.dump(plain, file)
        try:
            os.link(file.name, path)
        except FileExistsError:
            pass
        except OSError:
            Path(file.name).replace(path)
        Path(file.name).unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{path}: cannot write the cache ({error.strerror}); set LIT_CACHE to a folder with room"
        ) from None


def cache_folder() -> Path:
    """Returns the folder for data that is expensive to make again: LIT_CACHE, or ~/.cache/lit-transformers."""
    return Path(os.environ.get("LIT_CACHE") or "~/.cache/lit-transformers").expanduser()
