"""The symbols of the documents of a split on disk, each encoded once by the process that needs it first."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import time
import zlib
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from datamodules.core.encoding import symbol_type
from datamodules.core.reading import OPEN_FILES
from datamodules.core.tokenizers import Symbols
from lit_transformers.batch import Vocabulary

__all__ = ["SharedSymbols"]

ENTRIES, SUFFIX = "entries", ".symbols"
FIELDS, CHECKSUM = struct.Struct("<IIQI"), struct.Struct("<I")
SIZE = FIELDS.size + CHECKSUM.size
"""The bytes of an entry: its fields and their checksum."""
NOWHERE = 0
"""The number of the file in an entry whose symbols are not kept."""
PATIENCE, PAUSE = 20.0, 0.002
"""Seconds of waiting for a document that another process encodes, which may be stopped and not dead; and those between
two looks."""


class _Entry(NamedTuple):
    """Where the symbols of a document are: the number of the file, how many they are, their first byte and CRC-32."""

    file: int
    length: int
    offset: int
    checksum: int


class SharedSymbols:
    """Symbols of documents by their ordinals, which all processes of a machine read and write at any time.

    ``entries`` holds an entry for each ordinal, and N.symbols the symbols of the documents that one process at a time
    appends. An entry is written after its symbols, and both have a checksum, so that the unfinished bytes of a process
    that is killed, or of a machine that stops, count as nothing. A process claims a document before it encodes it, by a
    lock of the bytes of its entry, which ends with the process. If two processes encode one nevertheless, both write
    equal symbols.

    Where the cache cannot be written, one line on stderr says so, and each process encodes the documents that it lacks.

    keeps_symbols: False keeps the lengths of documents alone.
    """

    def __init__(self, folder: Path, vocabulary: Vocabulary, keeps_symbols: bool = True) -> None:
        self.folder, self.type, self.keeps_symbols = folder, symbol_type(vocabulary), keeps_symbols
        self.is_writable = True
        self._reading: BinaryIO | None = None
        self._claiming: BinaryIO | None = None
        self._appending: tuple[int, BinaryIO] | None = None
        self._files: dict[int, BinaryIO] = {}

    @property
    def divides_work(self) -> bool:
        """Whether a document that one process encodes is read by the others."""
        return self.keeps_symbols and self.is_writable

    def length(self, ordinal: int) -> int | None:
        """Returns how many symbols a document has; None where nobody has entered it."""
        entry = self._entry(ordinal)
        return None if entry is None else entry.length

    def symbols(self, ordinal: int) -> Symbols | None:
        """Returns the symbols of a document; None where there are none, or they have changed since they were
        written."""
        entry = self._entry(ordinal)
        if entry is None or entry.file == NOWHERE:
            return None
        try:
            content = os.pread(self._file(entry.file).fileno(), entry.length * self.type.itemsize, entry.offset)
        except OSError:
            return None
        if len(content) != entry.length * self.type.itemsize or zlib.crc32(content) != entry.checksum:
            return None
        return np.frombuffer(content, self.type)

    def claim(self, ordinal: int) -> bool:
        """Claims a document for this process until ``release``; returns False where another process has it."""
        try:
            fcntl.lockf(self._claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, SIZE, SIZE * ordinal)
        except (BlockingIOError, PermissionError) as error:
            if self._claiming is not None:
                return False
            self._give_up(error)
        except OSError as error:
            self._give_up(error)
        return True

    def release(self) -> None:
        """Ends all claims of this process."""
        if self._claiming is not None:
            fcntl.lockf(self._claiming, fcntl.LOCK_UN)

    def wait(self, ordinal: int) -> bool:
        """Waits until a document is entered or this process can claim it, and does. Returns False if neither happens
        for a long time."""
        began = time.monotonic()
        while self.length(ordinal) is None and not self.claim(ordinal):
            if time.monotonic() - began > PATIENCE:
                return False
            time.sleep(PAUSE)
        return True

    def add(self, documents: Sequence[tuple[int, Symbols]]) -> None:
        """Writes the symbols of documents, which are given with their ordinals, and then their entries."""
        if not self.is_writable:
            return
        contents = [symbols.astype(self.type, copy=False).tobytes() for _, symbols in documents]
        try:
            number, offset = self._append(b"".join(contents)) if self.keeps_symbols else (NOWHERE, 0)
            for (ordinal, symbols), content in zip(documents, contents, strict=True):
                self._enter(ordinal, _Entry(number, len(symbols), offset, zlib.crc32(content)))
                offset += len(content)
        except OSError as error:
            self._give_up(error)

    def _entry(self, ordinal: int) -> _Entry | None:
        try:
            if self._reading is None:
                self._reading = _opened(self.folder / ENTRIES, os.O_RDONLY)
            content = os.pread(self._reading.fileno(), SIZE, SIZE * ordinal)
        except OSError:
            return None
        fields = content[: FIELDS.size]
        if len(content) < SIZE or CHECKSUM.unpack_from(content, FIELDS.size)[0] != zlib.crc32(fields):
            return None
        return _Entry(*FIELDS.unpack(fields))

    def _enter(self, ordinal: int, entry: _Entry) -> None:
        fields = FIELDS.pack(*entry)
        os.pwrite(self._claims().fileno(), fields + CHECKSUM.pack(zlib.crc32(fields)), SIZE * ordinal)

    def _append(self, content: bytes) -> tuple[int, int]:
        """Writes bytes to the file of this process; returns its number and where they begin."""
        if self._appending is None:
            self._appending = self._own_file()
        number, file = self._appending
        offset, rest = file.seek(0, os.SEEK_END), memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]
        return number, offset

    def _own_file(self) -> tuple[int, BinaryIO]:
        """Returns the first file to which no living process appends, with its number."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for number in count(NOWHERE + 1):
            file = _opened(self._path(number), os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
            else:
                return number, file
        raise AssertionError  # not reached: there is always one more number

    def _claims(self) -> BinaryIO:
        """Returns the file of entries, open for claims. It stays open: to close it would end the claims."""
        if self._claiming is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._claiming = self._reading = _opened(self.folder / ENTRIES, os.O_RDWR | os.O_CREAT)
        return self._claiming

    def _file(self, number: int) -> BinaryIO:
        if number not in self._files:
            if len(self._files) == OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            self._files[number] = _opened(self._path(number), os.O_RDONLY)
        return self._files[number]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}{SUFFIX}"

    def _give_up(self, error: OSError) -> None:
        self.is_writable = False
        reason = f"cannot write the cache ({error.strerror}), so that documents are encoded again and again"
        print(f"{self.folder}: {reason}; set LIT_CACHE to a folder with room", file=sys.stderr, flush=True)


def _opened(path: Path, flags: int) -> BinaryIO:
    """Opens a file without a buffer."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    return cast(BinaryIO, os.fdopen(descriptor, "rb" if flags == os.O_RDONLY else "r+b", buffering=0))
