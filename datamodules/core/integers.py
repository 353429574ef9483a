"""Long arrays of integers on disk, which are written and read without being held."""

from __future__ import annotations

from array import array
from pathlib import Path
from types import TracebackType
from typing import Self, final

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

__all__ = ["IntegerWriter", "mapped"]

Integers = npt.NDArray[np.int64]
BLOCK = 1 << 16
"""The integers that wait for being written together."""


@final
class IntegerWriter:
    """Writes integers to an .npy file, whose number is known at the end alone. ``count``: how many there are so far,
    ``last``: the last one, 0 before the first. Raises OSError where they cannot be written."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("wb")
        self.count = self.last = 0
        self.pending = array("q")
        self._write_header()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, integer: int) -> None:
        self.pending.append(integer)
        self.count, self.last = self.count + 1, integer
        if len(self.pending) == BLOCK:
            self._flush()

    def extend(self, integers: Integers) -> None:
        if len(integers):
            self._flush()
            self.file.write(integers.astype(np.int64).tobytes())
            self.count, self.last = self.count + len(integers), int(integers[-1])

    def close(self) -> None:
        if not self.file.closed:
            self._flush()
            self.file.seek(0)
            self._write_header()
            self.file.close()

    def _flush(self) -> None:
        self.file.write(self.pending.tobytes())
        self.pending = array("q")

    def _write_header(self) -> None:
        # NumPy leaves room for the first length of a shape to grow, so that all headers take the same bytes.
        npy.write_array_header_1_0(self.file, {"descr": "<i8", "fortran_order": False, "shape": (self.count,)})


def mapped(path: Path) -> Integers:
    """Returns the integers of an .npy file, of which only the parts in use are read. Raises OSError, EOFError or
    ValueError where it is damaged."""
    integers: Integers = np.load(path, mmap_mode="r").view(np.ndarray)
    return integers
