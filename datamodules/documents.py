"""What a source gives: the documents of each split, each addressable by its ordinal or at least in a fixed order."""

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
    """One document, or one piece of a long one. ``offset``: where its first byte stands in what ``name`` names."""

    name: str
    text: bytes
    offset: int = 0


class Shard(NamedTuple):
    """One reader's share: number ``number``, from 0, of ``total`` readers (ranks times workers)."""

    number: int = 0
    total: int = 1


class Limit(NamedTuple):
    """The first documents only: so many, or as many as it takes to reach so many bytes; None for all."""

    documents: int | None = None
    bytes: int | None = None


class DocumentStream(ABC):
    """A shard's documents one after another, with their ordinals in the split."""

    @abstractmethod
    def state(self) -> Plain:
        """Where the next document comes from: plain data, enough for ``go_to``."""

    @abstractmethod
    def go_to(self, state: Plain) -> None:
        """Makes the next document the one that came next when ``state`` was taken."""

    @abstractmethod
    def take(self) -> tuple[int, Document] | None:
        """The next document with its ordinal, or None at the end."""


class Documents(ABC):
    """The documents of one split. Raises DataError from every method where the split is empty or cannot be read."""

    @abstractmethod
    def __iter__(self) -> Iterator[Document]:
        """All documents in order of their ordinals, as often as asked."""

    @abstractmethod
    def name(self, ordinal: int) -> str:
        """What the document of that ordinal is called."""

    @abstractmethod
    def training(self, shard: Shard, seed: int) -> DocumentStream:
        """An endless stream, shuffled anew in every pass. The shards of one pass are disjoint and complete."""

    @abstractmethod
    def evaluation(self, shard: Shard, limit: Limit) -> DocumentStream:
        """One pass in order. The shards are disjoint and complete."""


class Corpus(ABC):
    """``fingerprint`` stands for the content of all splits."""

    fingerprint: str

    @abstractmethod
    def documents(self, split: Split) -> Documents: ...


def cache_folder() -> Path:
    """Where what is expensive to make again is kept: LIT_CACHE, or ~/.cache/lit-transformers."""
    return Path(os.environ.get("LIT_CACHE") or "~/.cache/lit-transformers").expanduser()
