"""Reads a row by its ordinal: its segments, the relation between them, and the symbols that are hidden in it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import Documents
from datamodules.core.windows import Visit
from datamodules.rows.attention_masks import AttentionMasksConfig, order_of
from datamodules.rows.noises import NoiseConfig, PlainRow
from datamodules.rows.packings import PAIRS, Packed, Packing, half, packed, row_name
from datamodules.rows.phrases import Phrases
from datamodules.rows.stored_sentences import opened
from datamodules.rows.symbols import RowSymbols
from lit_transformers.batch import IGNORED

__all__ = ["RELATIONS", "ReadRow", "Relation", "RowReader"]

Relation = Literal["none", "next_sentence", "sentence_order", "sentence_structure"]
RELATIONS: dict[Relation, tuple[str, ...]] = {
    "none": (),
    "next_sentence": ("next", "other_document"),
    "sentence_order": ("in_order", "swapped"),
    "sentence_structure": ("next", "previous", "other_document"),
}
"""The names of the relations of two segments that there are to tell apart, by their numbers."""
Integers = npt.NDArray[np.int64]


class ReadRow(NamedTuple):
    """A row with its ordinal in the split. inputs, targets, segments (t,), relation, phrases (p, 3), order (t,) and
    rule are those of RowBatch."""

    ordinal: int
    inputs: Integers
    targets: Integers
    segments: Integers
    relation: int
    phrases: Integers | None = None
    order: Integers | None = None
    rule: int | None = None


class RowReader(NamedTuple):
    """Reads the rows of the sentences in a folder. Cheap to pickle.

    seed: the numbers that decide, with the epoch and the ordinal of a row and nothing else, its random choices: which
    sentences of a pair are its first segment, their relation, the hidden symbols, and one of the attention masks.
    phrases: the phrases that the noise asks for.
    """

    folder: Path
    packing: Packing
    length: int
    relation: Relation
    noise: NoiseConfig
    symbols: RowSymbols
    seed: tuple[int, ...]
    phrases: Phrases | None = None
    attention_masks: AttentionMasksConfig | None = None

    @property
    def packed(self) -> Packed:
        return packed(self.folder, self.packing, self.length)

    @property
    def total(self) -> int:
        """The number of rows."""
        return len(self.packed.first)

    def name(self, documents: Documents, ordinal: int) -> str:
        """Returns the name of a row (``row_name``); ``documents`` are those of the split."""
        return row_name(self.folder, self.packed, documents, ordinal)

    def row(self, visit: Visit) -> ReadRow:
        """Reads the row of an ordinal as it is in an epoch."""
        chance = np.random.default_rng([*self.seed, self.noise.variant(visit.epoch), visit.ordinal])
        relation, parts = self._parts(visit.ordinal, chance)
        pieces: list[Integers] = [np.array([self.symbols.vocabulary.boundary])]
        for part in parts:
            pieces += [part.astype(np.int64), np.array([self.symbols.separator])]
        symbols = np.concatenate(pieces)
        segments = np.zeros(len(symbols), np.int64)
        if self.packing in PAIRS:
            segments[len(parts[0]) + 2 :] = 1
        begins = None if self.symbols.begins is None else self.symbols.begins[symbols]
        of_symbols = self.symbols
        allowed = of_symbols.maskable[symbols]
        plain = PlainRow(symbols, allowed, begins, of_symbols.mask, of_symbols.drawable, self.phrases)
        plain, phrases = self.noise.replace(plain, chance)
        inputs, targets = self.noise.hide(plain, chance)
        if self.attention_masks is None:
            return ReadRow(visit.ordinal, inputs, targets, segments, relation, phrases)
        mask = self.attention_masks.draw(chance)
        relation = relation if mask == "bidirectional" else IGNORED
        return ReadRow(visit.ordinal, inputs, targets, segments, relation, phrases, order_of(mask, segments))

    def _parts(self, ordinal: int, chance: np.random.Generator) -> tuple[int, list[Integers]]:
        """Returns the relation of a row and the symbols between its separators."""
        rows = self.packed
        first, last = int(rows.first[ordinal]), int(rows.last[ordinal])
        if self.packing not in PAIRS:
            documents = range(rows.document(first), rows.document(last - 1))
            edges = [first, *(int(rows.documents[document + 1]) for document in documents), last]
            return IGNORED, [self._read(*edge) for edge in pairwise(edges)]
        split = first + 1 + int(chance.integers(last - first - 1))
        segments = [self._read(first, split), self._read(split, last)]
        if self.packing == "translations":
            segments = [segment[: half(self.length)] for segment in segments]
        if self.relation == "none":
            return IGNORED, segments
        relation = int(chance.integers(len(RELATIONS[self.relation])))
        if relation == 1 and self.relation != "next_sentence":
            segments.reverse()
        elif relation:
            room = self.length - 3 - len(segments[0])
            segments[1] = self._elsewhere(rows.document(first), len(segments[1]), chance)[:room]
        return relation, segments

    def _elsewhere(self, document: int, length: int, chance: np.random.Generator) -> Integers:
        """Returns sentences of any other document, from any one on: those that fit into ``length`` symbols, or one.

        The length is that of the segment whose place they take, so that it tells little of the relation. In BERT they
        fill the row.
        """
        rows = self.packed
        count = len(rows.documents) - 1
        other = (document + 1 + int(chance.integers(count - 1))) % count
        begin, end = int(rows.documents[other]), int(rows.documents[other + 1])
        start = begin + int(chance.integers(end - begin))
        fitting = int(np.searchsorted(rows.starts, rows.starts[start] + length, side="right")) - 1
        return self._read(start, min(max(fitting, start + 1), end))

    def _read(self, first: int, last: int) -> Integers:
        """Returns the symbols of sentences from ``first`` to below ``last``."""
        starts = self.packed.starts
        symbols: Integers = opened(self.folder).symbols.symbols[starts[first] : starts[last]]
        return symbols
