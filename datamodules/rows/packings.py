"""How sentences are packed into rows: the four input formats that RoBERTa compares (arXiv:1907.11692, section 4.2).

Where rows begin and end follows from the sentences alone, so that the number of rows is known, and any one can be read.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import Documents
from datamodules.core.errors import DataError
from datamodules.core.index import make_once, writing
from datamodules.core.integers import IntegerWriter, mapped
from datamodules.core.reading import OPEN_FILES
from datamodules.rows.stored_sentences import Sentences, opened

__all__ = ["PAIRS", "Packed", "Packing", "half", "packed", "row_name"]

Packing = Literal["segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "translations"]
PAIRS: tuple[Packing, ...] = ("segment_pair", "sentence_pair", "translations")
"""The packings whose rows have two segments."""
VERSION = 1
"""Part of the name of a cache: changes when the same sentences give other rows."""
STARTS, DOCUMENTS, FIRST, LAST = "starts.npy", "documents.npy", "first.npy", "last.npy"
BLOCK = 1 << 16
"""The sentences that are packed at a time."""
Integers = npt.NDArray[np.int64]


class Packed(NamedTuple):
    """The rows of a split, views of files: each a run of sentences from ``first`` to below ``last``.

    A sentence that is longer than the room in a row (in a pair: than half of it) is cut into pieces of that length,
    which count as sentences, so that nothing is lost and any two sentences fit into a row.

    starts      where each sentence begins among the symbols, and at the end where the last one ends
    documents   the first sentence of each document that has one, and at the end the number of sentences
    """

    starts: Integers
    documents: Integers
    first: Integers
    last: Integers

    def document(self, sentence: int) -> int:
        """Returns the number of the document that a sentence is in, among those that have one."""
        return int(np.searchsorted(self.documents, sentence, side="right")) - 1


@lru_cache(maxsize=OPEN_FILES)
def packed(folder: Path, packing: Packing, length: int) -> Packed:
    """Returns the rows of at most ``length`` tokens, with their special symbols, of the sentences in a folder.

    segment_pair    as many sentences of one document as fit, at least two, which are divided into two segments
    sentence_pair   two sentences of one document that follow each other
    full_sentences  as many sentences as fit, from one document or more, with a separator after each document
    doc_sentences   as many sentences of one document as fit
    translations    the two sentences of a document, none of which is cut here (``half``)

    Every row begins where the one before ends. In a pair, a last sentence that is alone is joined by the one before,
    which then is in two rows, and a document of one sentence is left out.
    """
    place = folder.with_name(f"{folder.name}.{packing}.{length}.v{VERSION}")

    def make(temporary: Path) -> None:
        with writing(place):
            _write(temporary, opened(folder), packing, length)

    make_once(place, LAST, make)
    try:
        return Packed(*(mapped(place / name) for name in (STARTS, DOCUMENTS, FIRST, LAST)))
    except (OSError, EOFError, ValueError):
        raise DataError(f"{place}: damaged cache; remove this folder and it is made again") from None


def half(length: int) -> int:
    """Returns the most symbols of each of two segments of a row, so that both fit."""
    return (length - 3) // 2


def row_name(folder: Path, rows: Packed, documents: Documents, ordinal: int) -> str:
    """Returns the name of a row of the sentences in a folder: that of the document that it begins in, and its ordinal.

    documents: the documents of the split.
    """
    sentences = opened(folder)
    sentence = np.searchsorted(sentences.symbols.starts, rows.starts[rows.first[ordinal]], side="right") - 1
    document = int(np.searchsorted(sentences.documents, sentence, side="right")) - 1
    return f"{documents.name(document)}, row {ordinal}"


def _write(folder: Path, sentences: Sentences, packing: Packing, length: int) -> None:
    """Writes the arrays of Packed for a limited number of sentences at a time, so that memory use stays constant."""
    is_pair = packing in PAIRS
    room = length - (3 if is_pair else 2)
    most = None if packing == "translations" else room // 2 if is_pair else room
    with IntegerWriter(folder / STARTS) as starts, IntegerWriter(folder / DOCUMENTS) as documents:
        for piece_starts, begun in _cut(sentences, most):
            starts.extend(piece_starts)
            documents.extend(begun)
        documents.append(starts.count)
        starts.append(int(sentences.symbols.starts[-1]))
    pieces, begun = mapped(folder / STARTS), mapped(folder / DOCUMENTS)
    rows = _translations(begun) if most is None else _rows(pieces, begun, packing, room)
    with IntegerWriter(folder / FIRST) as firsts, IntegerWriter(folder / LAST) as lasts:
        for first, last in rows:
            firsts.extend(first)
            lasts.extend(last)


def _cut(sentences: Sentences, most: int | None) -> Iterator[tuple[Integers, Integers]]:
    """Cuts sentences of more than ``most`` symbols into pieces; yields where pieces begin, and the first piece of each
    document that has one, of a block of sentences at a time."""
    starts, documents, count = sentences.symbols.starts, sentences.documents, 0
    for begin in range(0, len(starts) - 1, BLOCK):
        block = np.array(starts[begin : begin + BLOCK + 1])
        size = len(block) - 1
        pieces = np.ones(size, np.int64) if most is None else -(-np.diff(block) // most)
        numbers = np.concatenate([[0], np.cumsum(pieces)])
        within = np.arange(numbers[-1]) - np.repeat(numbers[:-1], pieces)
        low, high = np.searchsorted(documents, [begin, begin + size])
        begun = np.unique(documents[low:high]) - begin
        yield np.repeat(block[:-1], pieces) + (most or 0) * within, count + numbers[begun]
        count += int(numbers[-1])


def _translations(documents: Integers) -> Iterator[tuple[Integers, Integers]]:
    for begin in range(0, len(documents) - 1, BLOCK):
        block = documents[begin : begin + BLOCK + 1]
        first = block[:-1][np.diff(block) == 2]
        yield first, first + 2


def _rows(starts: Integers, documents: Integers, packing: Packing, room: int) -> Iterator[tuple[Integers, Integers]]:
    """Yields the first sentences of rows, and those after their last ones, of a block of sentences at a time."""
    count, place = len(starts) - 1, 0
    for begin in range(0, count, BLOCK):
        size = min(BLOCK, count - begin)
        # A row has at most as many sentences as symbols, so that it ends within ``room`` sentences after the block.
        window = np.arange(begin, min(begin + size + room + 1, count))
        document = np.searchsorted(documents, window, side="right") - 1
        # Every document before the last one of a row has its own separator in the row.
        begins = starts[begin : begin + size] + document[:size]
        ends = starts[begin + 1 : begin + len(window) + 1] + document
        following = begin + np.searchsorted(ends, begins + room, side="right")
        if packing == "sentence_pair":
            following = window[:size] + 2
        if packing != "full_sentences":
            following = np.minimum(following, documents[document[:size] + 1])
        first = _chain(following - begin, place - begin)
        if len(first):
            last = following[first]
            place = int(last[-1])
            yield _pairs(first + begin, last, documents[document[first]]) if packing in PAIRS else (first + begin, last)


def _pairs(first: Integers, last: Integers, begun: Integers) -> tuple[Integers, Integers]:
    """Joins a sentence that is alone in its row with the one before, where it is not the first of its document, which
    ``begun`` holds, and leaves out others that are alone."""
    first = first - ((last - first == 1) & (first > begun))
    return first[last - first > 1], last[last - first > 1]


def _chain(following: Integers, place: int) -> Integers:
    """Returns ``place``, the place that follows it, the place that follows that one, ..., until the end."""
    steps = np.ascontiguousarray(following).data  # a list of as many numbers takes several times its memory
    chain = array("q")
    while place < len(steps):
        chain.append(place)
        place = steps[place]
    return np.array(chain, np.int64)
