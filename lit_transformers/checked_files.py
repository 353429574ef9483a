"""Append-only files with a checksum for each block, which are read by a memory map; and the vectors in them, in one of
three precisions."""

from __future__ import annotations

import os
import zlib
from array import array
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lit_transformers.config import ConfigError
from lit_transformers.records.files import replace_file

__all__ = ["NOTHING", "CheckedFile", "CheckedWriter", "Extent", "Precision", "VectorLayout"]

Precision = Literal["float32", "bfloat16", "int8"]
BLOCK = 1 << 20
"""Bytes of a block. Each block has a checksum (CRC-32)."""
SUMS, SUM = ".crc32", np.dtype("<u4")
"""The suffix of the file of checksums, and the type of a checksum."""
REMEDY = "remove the folder, and write the cache again"
LARGEST = 127
"""The largest integer of int8."""


class VectorLayout(NamedTuple):
    """The layout of vectors (t, w) in a file: float32, bfloat16, or int8.

    int8 holds integers from -127 to 127. They are values divided by a float32 scale, and rounded. Each channel of the t
    vectors has one scale, its largest absolute value / 127. The scales are written before the integers.
    """

    precision: Precision
    width: int

    def size(self, vectors: int) -> int:
        """Returns the number of bytes of ``vectors`` vectors that are written together."""
        if self.precision == "int8":
            return self.width * (4 + vectors)
        return self.width * vectors * (4 if self.precision == "float32" else 2)

    def total(self, windows: int, vectors: int) -> int:
        """Returns the total number of bytes of ``vectors`` vectors that are written as ``windows`` windows."""
        return windows * self.size(0) + vectors * (self.size(1) - self.size(0))

    def written(self, vectors: Float[Tensor, "t w"]) -> bytes:
        """Returns the bytes of vectors."""
        vectors = vectors.detach().float().cpu().contiguous()
        if self.precision == "float32":
            return vectors.numpy().tobytes()
        if self.precision == "bfloat16":
            return vectors.bfloat16().view(torch.int16).numpy().tobytes()
        whole, scales = integers(vectors)
        return scales.numpy().tobytes() + whole.to(torch.int8).numpy().tobytes()

    def read(self, content: npt.NDArray[np.uint8], vectors: int) -> Float[Tensor, "t w"]:
        """Returns the vectors in the bytes of ``written``, in float32."""
        numbers, shape = torch.from_numpy(np.array(content)), (vectors, self.width)
        if self.precision == "float32":
            return numbers.view(torch.float32).view(shape)
        if self.precision == "bfloat16":
            return numbers.view(torch.bfloat16).view(shape).float()
        scales = numbers[: 4 * self.width].view(torch.float32)
        return numbers[4 * self.width :].view(torch.int8).view(shape) * scales

    def rounded(
        self, vectors: Float[Tensor, "b t w"], real: Bool[Tensor, "b t"] | None = None
    ) -> Float[Tensor, "b t w"]:
        """Returns vectors as ``read`` returns them after ``written``, each row separately, in their precision.

        real: True at vectors that are written; None: all are. Gradients pass as if nothing was rounded.
        """
        if self.precision == "float32":
            return vectors
        exact = vectors.detach().float()
        if self.precision == "bfloat16":
            read = exact.bfloat16().float()
        else:
            whole, scales = integers(exact if real is None else exact * real[..., None])
            read = whole * scales
        return read.to(vectors.dtype) + (vectors - vectors.detach())


def integers(vectors: Float[Tensor, "*b t w"]) -> tuple[Float[Tensor, "*b t w"], Float[Tensor, "*b 1 w"]]:
    """Returns integers from -127 to 127, and the scale of each channel of t vectors by which they are multiplied."""
    scales = vectors.abs().amax(dim=-2, keepdim=True) / LARGEST
    return (vectors / scales.where(scales > 0, 1.0)).round(), scales


class Extent(NamedTuple):
    """The saved part of a file: its size in bytes, and the checksum of the bytes after its last whole block."""

    size: int
    tail: int


NOTHING = Extent(0, 0)


class CheckedWriter:
    """Appends bytes to a file after ``extent``, the part that is already saved; later bytes in the file are cut off.
    The attribute ``extent`` covers all bytes appended so far. They are saved by ``save``. Raises ConfigError if the
    saved part is damaged or missing."""

    def __init__(self, path: Path, extent: Extent = NOTHING) -> None:
        self.path, self.extent, self.sums = path, extent, array("I")
        if extent.size:
            self.sums.extend(CheckedFile(path, extent).sums[:-1].tolist())
        self.file = path.open("r+b" if extent.size else "wb")
        self.file.truncate(extent.size)
        self.file.seek(extent.size)

    def append(self, content: bytes) -> int:
        """Writes bytes at the end of the file, and returns the offset of the first one."""
        (size, tail), rest = self.extent, memoryview(content)
        self.file.write(rest)
        while rest:
            room = BLOCK - size % BLOCK
            tail = zlib.crc32(rest[:room], tail)
            size, rest = size + len(rest[:room]), rest[room:]
            if size % BLOCK == 0:
                self.sums.append(tail)
                tail = 0
        begin, self.extent = self.extent.size, Extent(size, tail)
        return begin

    def save(self) -> None:
        """Writes all bytes so far, and the checksums of whole blocks, to the disk."""
        self.file.flush()
        os.fsync(self.file.fileno())
        sums = np.array(self.sums, SUM).tobytes()
        replace_file(sums_of(self.path), lambda fresh: fresh.write_bytes(sums))

    def close(self) -> None:
        self.file.close()


class CheckedFile:
    """The saved part of a file of a ``CheckedWriter``, as a memory map that all reading processes share. The checksum
    of a block is compared when a part of the block is first read.

    Raises ConfigError if the file or its file of checksums is missing or shorter than ``extent``.
    """

    def __init__(self, path: Path, extent: Extent) -> None:
        self.path, self.size = path, extent.size
        whole = self.size // BLOCK
        try:
            there = path.stat().st_size
            sums = np.frombuffer(sums_of(path).read_bytes(), SUM)[:whole]
        except (OSError, ValueError) as error:
            raise ConfigError(f"is a damaged cache ({error}); {REMEDY}", str(path)) from None
        if there < self.size or len(sums) < whole:
            short = f"{there:,} of {self.size:,} bytes" if there < self.size else f"{len(sums)} of {whole} checksums"
            raise ConfigError(f"is a damaged cache, cut short: it has {short}; {REMEDY}", str(path))
        self.sums = np.append(sums, np.array(extent.tail, SUM))
        # An empty file cannot be mapped.
        empty = np.zeros(0, np.uint8)
        self.content: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r", shape=(self.size,)) if self.size else empty
        self.checked = bytearray(len(self.sums))

    def read(self, begin: int, size: int) -> npt.NDArray[np.uint8]:
        """Returns ``size`` bytes from offset ``begin``, as a view of the file. Raises ConfigError if one of their
        blocks has changed since it was written."""
        for block in range(begin // BLOCK, -(-(begin + size) // BLOCK)):
            if not self.checked[block]:
                self._check(block)
        return self.content[begin : begin + size]

    def _check(self, block: int) -> None:
        begin, end = block * BLOCK, min((block + 1) * BLOCK, self.size)
        if zlib.crc32(self.content[begin:end].data) != self.sums[block]:
            reason = f"is a damaged cache: a byte from {begin:,} to {end:,} has changed since it was written"
            raise ConfigError(f"{reason}; {REMEDY}", str(self.path))
        self.checked[block] = True


def sums_of(path: Path) -> Path:
    """Returns the path of the checksums of a file."""
    return path.with_name(path.name + SUMS)
