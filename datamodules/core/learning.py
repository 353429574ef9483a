"""The text that a tokenizer learns from (all training documents, the first ones, or a sample), and its progress.

A sample gives every byte of the training split the same chance. It needs no pass over a corpus with an index.
"""

from __future__ import annotations

import heapq
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import final

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from datamodules.core import preparing
from datamodules.core.documents import Document, Documents, Limit, thinned
from datamodules.core.index import IndexedDocuments

__all__ = ["TextsWithin", "WordCounts", "bytes_of", "first", "learning", "sampled", "word_counts"]

SEED = 0
"""Draws samples: the same of a corpus in every run."""
SPREAD = 1024
"""The least number of documents that are drawn, where there are as many. Of long ones parts are taken, for a few whole
ones could fill the sample."""
PART = 1 << 12
"""About the bytes of one part of a document of which a sample takes less than the whole."""
WORD = 256
"""The most bytes by which the edge of a part is moved, so that it stands before a space or a line end."""
BAR_SECONDS = 0.2
HELD_WORDS = 2_000_000
"""The most different words that are counted in memory; then their counts are written to a temporary file."""


@final
class TextsWithin:
    """Texts that the training documents of an index hold, such as the two sides of pairs: documents to learn from, of
    which a sample can be taken. texts: yields those of a document."""

    def __init__(self, documents: IndexedDocuments, texts: Callable[[Document], Iterable[Document]]) -> None:
        self.documents, self.texts = documents, texts

    def __iter__(self) -> Iterator[Document]:
        for document in self.documents:
            yield from self.texts(document)


def bytes_of(documents: Documents | Iterable[Document]) -> int | None:
    """Returns about how many bytes documents have, where an index knows it without reading them; otherwise None."""
    within = documents.documents if isinstance(documents, TextsWithin) else documents
    return within.bytes_within(Limit()) if isinstance(within, IndexedDocuments) else None


def first(documents: Iterable[Document], size: int) -> Iterator[Document]:
    """Yields the first documents, as many as reach ``size`` bytes."""
    total = 0
    for document in documents:
        yield document
        total += len(document.text)
        if total >= size:
            return


def sampled(documents: Documents | Iterable[Document], size: int) -> Iterator[Document]:
    """Yields a sample of about ``size`` bytes, and all documents in order where they have no more.

    Of an index, documents are drawn at equal distances with random offsets, so every byte has the same chance, and only
    these are read. Of more than a few megabytes in a document, parts are taken. Documents without an index know how to
    sample themselves (``Documents.sample``); any other iterable is passed over once (``thinned``).
    """
    if isinstance(documents, TextsWithin):
        yield from _sampled(documents.documents, size, documents.texts)
    elif isinstance(documents, IndexedDocuments):
        yield from _sampled(documents, size, lambda document: (document,))
    elif isinstance(documents, Documents):
        yield from documents.sample(size, SEED)
    else:
        yield from thinned(documents, size, SEED)


def _sampled(
    documents: IndexedDocuments, size: int, texts: Callable[[Document], Iterable[Document]]
) -> Iterator[Document]:
    """Yields the texts of drawn documents, or the same share of each."""
    count, total = len(documents), documents.bytes_within(Limit())
    if total <= size:
        for document in documents:
            yield from texts(document)
        return
    random = np.random.default_rng([SEED, 0])
    taken = min(count, max(math.ceil(count * size / total), SPREAD))
    share = min(1.0, size * count / total / taken)
    drawn = np.minimum(((np.arange(taken) + random.random(taken)) * (count / taken)).astype(np.int64), count - 1)
    for ordinal in np.unique(drawn).tolist():
        for text in texts(documents[ordinal]):
            yield from (text._replace(text=part) for part in _parts(text.text, share, random))


def _parts(text: bytes, share: float, random: np.random.Generator) -> Iterator[bytes]:
    """Yields a share of a text: one part of each of several equal stretches, from a random place on. A part that
    reaches the end of its stretch continues at the beginning of the stretch, so that no place has a smaller chance. A
    short text is whole, or is left out, by chance."""
    if share >= 1 or len(text) <= PART:
        if random.random() < share:
            yield text
        return
    number = max(1, round(len(text) * share / PART))
    stretch = len(text) / number
    length = stretch * share
    for begin, place in zip(stretch * np.arange(number), stretch * random.random(number), strict=True):
        end = place + length
        for start, stop in ((place, min(end, stretch)), (0.0, max(end - stretch, 0.0))):
            if content := text[_edge(text, round(begin + start)) : _edge(text, round(begin + stop))]:
                yield content


def _edge(text: bytes, place: int) -> int:
    """Returns the nearest place before, or at, one in a text that breaks no word, or at least no character."""
    if place >= len(text):
        return len(text)
    spaces = (text.rfind(space, max(place - WORD, 0), place + 1) for space in (b" ", b"\n"))
    if (edge := max(spaces)) >= 0:
        return edge
    while place > 0 and text[place] & 0xC0 == 0x80:
        place -= 1
    return place


class WordCounts:
    """Counts of words, none of which holds white space, in bounded memory: the counts of more than ``held`` different
    words are written to temporary files in ``folder`` and added up at the end."""

    def __init__(self, folder: Path, held: int = HELD_WORDS) -> None:
        self.folder, self.held = folder, held
        self.counts: Counter[str] = Counter()
        self.files: list[Path] = []

    def add(self, words: Iterable[str]) -> None:
        self.counts.update(words)
        if len(self.counts) > self.held:
            path = self.folder / str(len(self.files))
            with path.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{word}\t{count}\n" for word, count in sorted(self.counts.items()))
            self.files.append(path)
            self.counts.clear()

    def items(self) -> Iterator[tuple[str, int]]:
        """Yields each word once with its count, in the order of words where files were written."""
        if not self.files:
            yield from self.counts.items()
            return
        with ExitStack() as opened:
            files = [opened.enter_context(path.open(encoding="utf-8", newline="\n")) for path in self.files]
            parts = [map(_counted, file) for file in files]
            for word, same in groupby(heapq.merge(*parts, sorted(self.counts.items())), itemgetter(0)):
                yield word, sum(count for _, count in same)


def _counted(line: str) -> tuple[str, int]:
    word, _, count = line.rpartition("\t")
    return word, int(count)


@contextmanager
def word_counts() -> Iterator[WordCounts]:
    """Gives counts whose temporary files are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="lit-words-") as folder:
        yield WordCounts(Path(folder))


class LearningProgress:
    """How much text has been read, of about ``total`` bytes; None: nobody knows how many."""

    def __init__(self, total: int | None) -> None:
        self.total, self.done, self.is_read = total, 0, False

    def __str__(self) -> str:
        read = f"{self.done / preparing.MEGABYTE:,.0f}"
        if self.is_read:
            return f"{read} MB of text read, chooses symbols"
        total = "" if self.total is None else f" of {self.total / preparing.MEGABYTE:,.0f}"
        return f"{read}{total} MB of text read"

    def counted(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yields documents, and counts their bytes."""
        for document in documents:
            yield document
            self.done += len(document.text)
        self.is_read = True


@contextmanager
def learning(kind: str, total: int | None) -> Iterator[LearningProgress]:
    """Gives the progress of learning, and shows it on stderr while that takes long: as a bar in a terminal, otherwise
    as lines. kind: of the tokenizer."""
    progress, console = LearningProgress(total), Console(stderr=True)

    def line() -> str:
        return f"learns {kind}, once: {progress}"

    def last(seconds: float) -> str:
        return f"learned {kind} in {seconds:.0f} s from {progress.done / preparing.MEGABYTE:,.1f} MB of text"

    def draw(done: Event) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=None)
            while True:
                total = None if progress.is_read else progress.total  # without a total, the bar moves to and fro
                bar.update(task, description=line(), completed=progress.done, total=total)
                if done.wait(BAR_SECONDS):
                    return

    with preparing.shown_while(line, last, draw if console.is_terminal else None):
        yield progress
