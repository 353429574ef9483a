"""How sentences are packed into rows: the four input formats that RoBERTa compares (arXiv:1907.11692, section 4.2).

Where rows begin and end follows from the sentences alone, so that the number of rows is known, and any one can be read.
"""

from __future__ import annotations

from array import array
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import Documents
from datamodules.rows.store import opened

__all__ = ["PAIRS", "Packed", "Packing", "half", "packed", "row_name"]

Packing = Literal["segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "translations"]
PAIRS: tuple[Packing, ...] = ("segment_pair", "sentence_pair", "translations")
"""The packings whose rows have two segments."""
Integers = npt.NDArray[np.int64]


class Packed(NamedTuple):
    """The rows of a split, each a run of sentences from ``first`` to below ``last``.

    A sentence that is longer than what a row has room for (in a pair: than half of it) is cut into pieces of that
    length, which count as sentences, so that nothing is lost and any two sentences fit into a row.

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


@cache
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
    sentences = opened(folder)
    if packing == "translations":
        firsts = sentences.documents[:-1][np.diff(sentences.documents) == 2]
        return Packed(sentences.symbols.starts, np.unique(sentences.documents), firsts, firsts + 2)
    is_pair = packing in PAIRS
    room = length - (3 if is_pair else 2)
    starts, documents = _cut(sentences.symbols.starts, sentences.documents, room // 2 if is_pair else room)
    count = len(starts) - 1
    document = np.searchsorted(documents, np.arange(count), side="right") - 1
    stops = documents[document + 1]
    # Every document before the last one of a row has a separator of its own in the row.
    begins, ends = starts[:-1] + document, starts[1:] + document
    following = np.searchsorted(ends, begins + room, side="right")
    if packing == "sentence_pair":
        following = np.arange(count) + 2
    if packing != "full_sentences":
        following = np.minimum(following, stops)
    first = _chain(following)
    last = following[first]
    if is_pair:
        is_alone = last - first == 1
        first = first - (is_alone & (first > documents[document[first]]))
        first, last = first[last - first > 1], last[last - first > 1]
    return Packed(starts, documents, first, last)


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


def _cut(starts: Integers, documents: Integers, most: int) -> tuple[Integers, Integers]:
    """Cuts sentences of more than ``most`` symbols into pieces; returns ``starts`` and ``documents`` of Packed."""
    pieces = -(-np.diff(starts) // most)
    numbers = np.concatenate([[0], np.cumsum(pieces)])
    within = np.arange(numbers[-1]) - np.repeat(numbers[:-1], pieces)
    return np.append(np.repeat(starts[:-1], pieces) + most * within, starts[-1]), np.unique(numbers[documents])


def _chain(following: Integers) -> Integers:
    """Returns 0, what follows it, what follows that, ..., until the end."""
    steps = np.ascontiguousarray(following).data  # a list of as many numbers takes several times its memory
    chain, place = array("q"), 0
    while place < len(steps):
        chain.append(place)
        place = steps[place]
    return np.array(chain, np.int64)
