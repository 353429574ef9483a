"""The symbols of many texts on disk, one after another in a memory-mapped file, with the start of each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from datamodules.core.documents import Document
from datamodules.core.tokenizers import Symbols, Tokenizer, encode_document

__all__ = ["StoredSymbols", "SymbolWriter"]

NARROW = 1 << 16
"""Symbols of a vocabulary of at most this size take two bytes each."""


class SymbolWriter:
    """Writes the symbols of texts to a file, and counts the unknown ones. ``narrow``: whether each takes two bytes."""

    def __init__(self, file: BinaryIO, tokenizer: Tokenizer) -> None:
        self.file, self.tokenizer = file, tokenizer
        self.starts, self.unknown = array("q", [0]), 0
        self.narrow = tokenizer.vocabulary.size <= NARROW

    def add(self, document: Document, keep_empty: bool = True) -> None:
        """Writes the symbols of a text; one of only white space has none. Raises DataError where it is not UTF-8.

        keep_empty: whether a text without symbols counts as one.
        """
        symbols: Symbols = np.zeros(0, np.int32)
        if document.text.decode(errors="replace").strip():
            symbols = encode_document(self.tokenizer, document)
        if self.tokenizer.unknown is not None:
            self.unknown += int((symbols == self.tokenizer.unknown).sum())
        self.file.write(symbols.astype(np.uint16 if self.narrow else np.int32).tobytes())
        if len(symbols) or keep_empty:
            self.starts.append(self.starts[-1] + len(symbols))

    def finish(self, path: Path) -> None:
        """Writes the starts to a file, which ``StoredSymbols`` reads."""
        np.save(path, np.frombuffer(self.starts, np.int64))


class StoredSymbols(Sequence[Symbols]):
    """The symbols of every text: a view of a file, of which only the parts in use are read.

    starts: the file that ``SymbolWriter.finish`` has written. Raises OSError, EOFError or ValueError where a
    file is damaged.
    """

    def __init__(self, path: Path, starts: Path, narrow: bool) -> None:
        self.starts: npt.NDArray[np.int64] = np.load(starts, mmap_mode="r").view(np.ndarray)
        dtype = np.dtype(np.uint16 if narrow else np.int32)
        open_array: Callable[..., Any] = np.memmap if self.starts[-1] else lambda *_, **__: np.zeros(0, dtype)
        self.symbols = open_array(path, dtype, mode="r").view(np.ndarray)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, ordinal: Any) -> Any:
        return self.symbols[self.starts[ordinal] : self.starts[ordinal + 1]]
