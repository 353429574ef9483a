"""The symbols of many texts on disk, one after another in a memory-mapped file, with the start of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from datamodules.core.documents import Document
from datamodules.core.encoding import symbol_type
from datamodules.core.integers import IntegerWriter, mapped
from datamodules.core.tokenizers import Symbols, Tokenizer, encode_document

__all__ = ["StoredSymbols", "SymbolWriter"]


class SymbolWriter:
    """Writes the symbols of texts to a file, the start of each text and at last the end to another, and counts the
    unknown symbols. ``narrow``: whether each symbol takes two bytes."""

    def __init__(self, file: BinaryIO, starts: IntegerWriter, tokenizer: Tokenizer) -> None:
        self.file, self.starts, self.tokenizer = file, starts, tokenizer
        self.unknown = 0
        self.type = symbol_type(tokenizer.vocabulary)
        self.narrow = self.type == np.uint16
        starts.append(0)

    @property
    def texts(self) -> int:
        """How many texts were written."""
        return self.starts.count - 1

    def add(self, document: Document, keep_empty: bool = True) -> None:
        """Writes the symbols of a text; one of only white space has none. Raises DataError where it is not UTF-8.

        keep_empty: whether a text without symbols counts as one.
        """
        symbols: Symbols = np.zeros(0, np.int32)
        if document.text.decode(errors="replace").strip():
            symbols = encode_document(self.tokenizer, document)
        if self.tokenizer.unknown is not None:
            self.unknown += int((symbols == self.tokenizer.unknown).sum())
        self.file.write(symbols.astype(self.type).tobytes())
        if len(symbols) or keep_empty:
            self.starts.append(self.starts.last + len(symbols))


class StoredSymbols(Sequence[Symbols]):
    """The symbols of every text: a view of a file, of which only the parts in use are read.

    starts: the file of starts that a ``SymbolWriter`` has written. Raises OSError, EOFError or ValueError where a
    file is damaged.
    """

    def __init__(self, path: Path, starts: Path, narrow: bool) -> None:
        self.starts = mapped(starts)
        dtype = np.dtype(np.uint16 if narrow else np.int32)
        open_array: Callable[..., Any] = np.memmap if self.starts[-1] else lambda *_, **__: np.zeros(0, dtype)
        self.symbols = open_array(path, dtype, mode="r").view(np.ndarray)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, ordinal: Any) -> Any:
        return self.symbols[self.starts[ordinal] : self.starts[ordinal + 1]]
