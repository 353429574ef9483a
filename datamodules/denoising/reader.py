"""Reads a row of text by its ordinal, and turns it into the input of an encoder and the target of a decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import Documents
from datamodules.core.windows import Visit
from datamodules.denoising.corruptions import Corrupted, CorruptionConfig, PlainText
from datamodules.denoising.symbols import DenoisingSymbols
from datamodules.rows.packings import Packed, packed, row_name
from datamodules.rows.stored_sentences import opened

__all__ = ["DamagedReader", "DamagedRow", "TextPacking"]

TextPacking = Literal["full_sentences", "doc_sentences"]
SPECIAL = 1
"""How many more symbols a row of an encoder has besides its text: [CLS] and [SEP], where this one has a boundary."""


class DamagedRow(NamedTuple):
    """A row with its ordinal in the split, the pair that it becomes, and the number of symbols of its text, with the
    boundary that ends it."""

    ordinal: int
    parts: Corrupted
    text: int

    @property
    def length(self) -> int:
        """The number of symbols of the longer side, with boundaries."""
        return max(len(self.parts.source) + 1, len(self.parts.target) + self.parts.ends)


class DamagedReader(NamedTuple):
    """Reads the rows of the sentences in a folder. Cheap to pickle.

    length    symbols of the longest row with the boundary that ends it
    variants  the number of epochs after which the noise repeats; None where it never does
    seed      the numbers that decide, with the epoch and the ordinal of a row and nothing else, the noise of the row
    """

    folder: Path
    packing: TextPacking
    length: int
    noise: CorruptionConfig
    symbols: DenoisingSymbols
    variants: int | None
    seed: tuple[int, ...]

    @property
    def packed(self) -> Packed:
        return packed(self.folder, self.packing, self.length + SPECIAL)

    @property
    def total(self) -> int:
        """The number of rows."""
        return len(self.packed.first)

    def name(self, documents: Documents, ordinal: int) -> str:
        """Returns the name of a row: that of the document that it begins in, and its ordinal."""
        return row_name(self.folder, self.packed, documents, ordinal)

    def text(self, ordinal: int) -> PlainText:
        """Reads the row of an ordinal: its sentences, with a separator after each document but the last."""
        rows, symbols = self.packed, opened(self.folder).symbols.symbols
        first, last = int(rows.first[ordinal]), int(rows.last[ordinal])
        ends = np.isin(np.arange(first + 1, last + 1), rows.documents)
        ends[-1] = False
        separators = np.flatnonzero(ends)
        starts = rows.starts[first : last + 1] - rows.starts[first]
        text: npt.NDArray[np.int64] = symbols[rows.starts[first] : rows.starts[last]].astype(np.int64)
        before: npt.NDArray[np.int64] = np.cumsum(ends) - ends
        return PlainText(np.insert(text, starts[separators + 1], self.symbols.separator), starts[:-1] + before)

    def row(self, visit: Visit) -> DamagedRow:
        """Reads the row of an ordinal as it is in an epoch."""
        variant = visit.epoch if self.variants is None else visit.epoch % self.variants
        chance = np.random.default_rng([*self.seed, variant, visit.ordinal])
        noise = self.noise.at(visit.epoch)
        text = self.text(visit.ordinal)
        return DamagedRow(visit.ordinal, noise.corrupt(text, self.symbols, chance), len(text.symbols) + 1)
