"""What a source provides: the documents of each split, which are read by ordinal or at least in a fixed order."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from lit_transformers.config import Plain

__all__ = ["SPLITS", "Corpus", "Document", "DocumentStream", "Documents", "Limit", "Shard", "Split", "cache_folder"]

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


class Document(NamedTuple):
    """One document, or one piece of a long one. ``offset``: the position of its first byte in what ``name`` names."""

    name: str
    text: bytes
    offset: int = 0


class Shard(NamedTuple):
    """The share of one reader: number ``number``, from 0, of ``total`` readers (ranks times workers)."""

    number: int = 0
    total: int = 1


class Limit(NamedTuple):
    """Restricts to the first documents: at most so many, or as many as reach so many bytes; None for all."""

    documents: int | None = None
    bytes: int | None = None


class DocumentStream(ABC):
    """The documents of a shard one after another, with their ordinals in the split."""

    @abstractmethod
    def state(self) -> Plain:
        """Returns the position of the next document as plain data, from which ``go_to`` restores it."""

    @abstractmethod
    def go_to(self, state: Plain) -> None:
        """Makes the next document the one that came next when ``state`` was taken."""

    @abstractmethod
    def take(self) -> tuple[int, Document] | None:
        """Returns the next document with its ordinal, or None at the end."""


class Documents(ABC):
    """The documents of one split. Raises DataError from every method where the split is empty or cannot be read."""

    @abstractmethod
    def __iter__(self) -> Iterator[Document]:
        """Iterates over all documents in the order of their ordinals, any number of times."""

    @abstractmethod
    def name(self, ordinal: int) -> str:
        """Returns the name of the document with that ordinal."""

    @abstractmethod
    def training(self, shard: Shard, seed: int) -> DocumentStream:
        """Returns an endless stream, shuffled anew in every pass. The shards of one pass are disjoint and complete."""

    @abstractmethod
    def evaluation(self, shard: Shard, limit: Limit) -> DocumentStream:
        """Returns a stream of one pass in order. The shards are disjoint and complete."""


class Corpus(ABC):
    """The documents of all splits. ``fingerprint`` identifies their content."""

    fingerprint: str

    @abstractmethod
    def documents(self, split: Split) -> Documents: ...


def cache_folder() -> Path:
    """Returns the folder for data that is expensive to make again: LIT_CACHE, or ~/.cache/lit-transformers."""
    return Path(os.environ.get("LIT_CACHE") or "~/.cache/lit-transformers").expanduser()
